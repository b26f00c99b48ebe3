// SPDX-License-Identifier: Apache-2.0
// The GEMM of gate_up and down for Ampere and newer: mma.sync fed by a ring of cp.async stages.
// Budget, drawing and log: docs/kernels/sm80.md.
//
// roles       all warps alike: each copies its share of a stage, then multiplies its own
//             kWarpM x kWarpN part of the tile
// shared      stages x { A: kTileM x 32, B: kTileN x 32 } elements, 64-byte rows, swizzled; after
//             the mainloop the same memory holds the output tile
// barriers    one __syncthreads a k block: it says that everybody's copies of this stage have
//             landed, and that everybody has read the stage that is filled next
// gated tiles B's rows are eight gate rows, then the eight up rows of the same numbers, and so on:
//             a thread's accumulators of an even and the next odd block of eight columns are g and
//             u of the same elements
#pragma once

#include <cstdint>

#include "cuda/launch.hpp"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/sm80/gemm.hpp"
#include "cuda/tile/activation.cuh"
#include "cuda/tile/pair.cuh"
#include "math/gate.hpp"

namespace sluice::cuda::sm80 {

inline constexpr int kTileK = 32;
inline constexpr int kRowBytes = kTileK * 2;
inline constexpr int kChunks = kRowBytes / 16;  // a row of a stage in units of 16 bytes
inline constexpr int kGroup = 8;                // row tiles that are walked together, for L2

template <bool kIsGated, class ElementType, int kRowsOfTile, int kWeightRows, int kRowsOfWarp,
          int kResidentCtas>
struct GemmConfig {
  using Element = ElementType;
  static constexpr bool kGated = kIsGated;
  static constexpr int kTileM = kRowsOfTile;
  static constexpr int kTileN = kWeightRows;
  static constexpr int kWarpM = kRowsOfWarp;
  static constexpr int kWarpN = 64;
  static constexpr int kResident = kResidentCtas;
  static constexpr int kStages = 4;
  static constexpr int kWarpsN = kTileN / kWarpN;
  static constexpr int kThreads = kTileM / kWarpM * kWarpsN * 32;
  static constexpr int kABytes = kTileM * kRowBytes;
  static constexpr int kStageBytes = kABytes + kTileN * kRowBytes;
  static constexpr int kOutCols = kGated ? kTileN / 2 : kTileN;
  // 16 bytes more than the row: neighbouring rows start four banks apart.
  static constexpr int kOutPitch = kOutCols * 2 + 16;
  static constexpr int kSmem = kStages * kStageBytes;
  static_assert(kSmem <= kSmemBytes && kTileM * kOutPitch <= kSmem);
  static_assert(kTileM % kWarpM == 0 && kWarpM % 16 == 0 && kTileN % kWarpN == 0);
};

// Where chunk `chunk` of row `row` lies in a stage: four chunks a row, two rows in 128 bytes, so
// that eight rows of one chunk column touch all banks once.
__device__ __forceinline__ int swizzled(int row, int chunk) {
  return row * kRowBytes + ((chunk ^ ((row >> 1) & 3)) * 16);
}

__device__ __forceinline__ const char* row_address(const Rows& rows, long long i) {
  const char* base = static_cast<const char*>(rows.base);
  if (rows.block_rows == 0) return base + i * rows.row_stride;
  return base + i / rows.block_rows * rows.block_stride + i % rows.block_rows * rows.row_stride;
}

// This thread's chunks of a matrix of kRows rows: the same column of chunks in every kStep-th row.
template <int kRows, int kThreads>
struct Copier {
  static constexpr int kStep = kThreads / kChunks;
  static constexpr int kCount = kRows / kStep;
  static_assert(kThreads % kChunks == 0 && kRows % kStep == 0);

  const char* from[kCount];  // the chunk of k block 0
  unsigned inside = 0;       // bit i: row i of this thread exists

  // `address(r)` gives the start of row r in global memory, null outside.
  template <class Address>
  __device__ __forceinline__ explicit Copier(const void* anywhere, const Address& address) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const char* row = address(static_cast<int>(threadIdx.x) / kChunks + i * kStep);
      inside |= (row != nullptr ? 1U : 0U) << i;
      from[i] =
          row != nullptr ? row + threadIdx.x % kChunks * 16 : static_cast<const char*>(anywhere);
    }
  }

  // k block `block` into shared memory at `to`; columns from `k` on are zeros.
  __device__ __forceinline__ void copy(std::uint32_t to, int block, int k) const {
    const int row = static_cast<int>(threadIdx.x) / kChunks;
    const int chunk = static_cast<int>(threadIdx.x) % kChunks;
    const bool in_k = block * kTileK + chunk * 8 < k;
    const long long offset = static_cast<long long>(block) * kRowBytes;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool valid = in_k && (inside >> i & 1U) != 0;
      ptx::cp_async_16(to + swizzled(row + i * kStep, chunk), valid ? from[i] + offset : from[i],
                       valid);
    }
  }
};

struct Tile {
  int m;
  int n;
};

// Tiles in column order within groups of kGroup row tiles, so that CTAs that run together share
// weights in L2.
__device__ __forceinline__ Tile tile_at(const GemmParams& p, int index) {
  const int per_group = kGroup * p.n_tiles;
  const int first = index / per_group * kGroup;
  const int rows = min(kGroup, p.m_tiles - first);
  const int rest = index % per_group;
  return {first + rest % rows, rest / rows};
}

// One stage: two steps of 16 along K. `a` and `b` are the stage's matrices in shared memory.
template <class Cfg>
__device__ __forceinline__ void multiply(std::uint32_t a, std::uint32_t b, int row0, int col0,
                                         float (&d)[Cfg::kWarpM / 16][Cfg::kWarpN / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int a_row = row0 + lane % 16;
  const int b_row = col0 + lane % 8 + lane / 16 * 8;
#pragma unroll
  for (int step = 0; step < kTileK / 16; ++step) {
    std::uint32_t fa[Cfg::kWarpM / 16][4];
    std::uint32_t fb[Cfg::kWarpN / 16][4];
#pragma unroll
    for (int i = 0; i < Cfg::kWarpM / 16; ++i) {
      ptx::ldmatrix_x4(fa[i], a + swizzled(a_row + 16 * i, 2 * step + lane / 16));
    }
#pragma unroll
    for (int j = 0; j < Cfg::kWarpN / 16; ++j) {
      ptx::ldmatrix_x4(fb[j], b + swizzled(b_row + 16 * j, 2 * step + lane / 8 % 2));
    }
#pragma unroll
    for (int i = 0; i < Cfg::kWarpM / 16; ++i) {
#pragma unroll
      for (int j = 0; j < Cfg::kWarpN / 16; ++j) {
        using Element = typename Cfg::Element;
        ptx::mma_m16n8k16<Element>(d[i][2 * j], fa[i], fb[j][0], fb[j][1]);
        ptx::mma_m16n8k16<Element>(d[i][2 * j + 1], fa[i], fb[j][2], fb[j][3]);
      }
    }
  }
}

// Writes the warp's part of the output tile to shared memory, rounded once. `values(i, c, r)` gives
// the pair of columns 8 c + 2 (lane % 4) of row 16 i + 8 r + lane / 4 of the warp's part.
template <class Cfg, class Values>
__device__ __forceinline__ void stage_rows(char* out, int row0, int col0, const Values& values) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kBlocks = (Cfg::kGated ? Cfg::kWarpN / 2 : Cfg::kWarpN) / 8;
#pragma unroll
  for (int i = 0; i < Cfg::kWarpM / 16; ++i) {
#pragma unroll
    for (int c = 0; c < kBlocks; ++c) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = row0 + 16 * i + 8 * r + lane / 4;
        const int col = col0 + 8 * c + lane % 4 * 2;
        *reinterpret_cast<std::uint32_t*>(out + row * Cfg::kOutPitch + col * 2) =
            tile::pack<typename Cfg::Element>(values(i, c, r));
      }
    }
  }
}

// h = gate(g + bg, u + bu).
template <class Cfg>
__device__ __forceinline__ void gate_rows(const GemmParams& p, Tile tile, char* out, int row0,
                                          int col0,
                                          float (&d)[Cfg::kWarpM / 16][Cfg::kWarpN / 8][4]) {
  const int first = tile.n * Cfg::kOutCols + col0 + static_cast<int>(threadIdx.x) % 4 * 2;
  if (p.bias[0] != nullptr) {
#pragma unroll
    for (int j = 0; j < Cfg::kWarpN / 8; ++j) {
      const int col = first + j / 2 * 8;
      const tile::Pair bias =
          tile::load_pair<typename Cfg::Element>(p.bias[j % 2], col, col < p.n, col + 1 < p.n);
#pragma unroll
      for (int i = 0; i < Cfg::kWarpM / 16; ++i) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          d[i][j][2 * r] += bias.lo;
          d[i][j][2 * r + 1] += bias.hi;
        }
      }
    }
  }
  tile::with_activation(p.gate.activation, [&](auto activation) {
    Gate gate = p.gate;
    gate.activation = activation;
    stage_rows<Cfg>(out, row0, col0, [&](int i, int c, int r) {
      const float* g = d[i][2 * c] + 2 * r;
      const float* u = d[i][2 * c + 1] + 2 * r;
      return tile::Pair{math::gate_mul(gate, g[0], u[0]), math::gate_mul(gate, g[1], u[1])};
    });
  });
}

// y = d + bias + residual.
template <class Cfg>
__device__ __forceinline__ void plain_rows(const GemmParams& p, Tile tile, char* out, int row0,
                                           int col0,
                                           float (&d)[Cfg::kWarpM / 16][Cfg::kWarpN / 8][4]) {
  using Element = typename Cfg::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = tile.m * Cfg::kTileM + row0 + lane / 4;
  const int first_col = tile.n * Cfg::kOutCols + col0 + lane % 4 * 2;
  stage_rows<Cfg>(out, row0, col0, [&](int i, int c, int r) {
    const int row = first_row + 16 * i + 8 * r;
    const int col = first_col + 8 * c;
    tile::Pair v{d[i][c][2 * r], d[i][c][2 * r + 1]};
    if (p.bias[0] != nullptr) {
      const tile::Pair b = tile::load_pair<Element>(p.bias[0], col, col < p.n, col + 1 < p.n);
      v.lo += b.lo;
      v.hi += b.hi;
    }
    if (p.residual.base != nullptr && row < p.m) {
      const tile::Pair b =
          tile::load_pair<Element>(row_address(p.residual, row), col, col < p.n, col + 1 < p.n);
      v.lo += b.lo;
      v.hi += b.hi;
    }
    return v;
  });
}

// From shared memory to the matrix, 16 bytes a thread, neighbouring threads along a row.
template <class Cfg>
__device__ __forceinline__ void store_tile(const GemmParams& p, Tile tile, const char* out) {
  constexpr int kUnits = Cfg::kOutCols / 8;  // 16 bytes each
  for (int at = static_cast<int>(threadIdx.x); at < Cfg::kTileM * kUnits; at += Cfg::kThreads) {
    const int row = tile.m * Cfg::kTileM + at / kUnits;
    const int col = tile.n * Cfg::kOutCols + at % kUnits * 8;
    if (row < p.m && col < p.n) {
      char* to =
          static_cast<char*>(p.out) + row * p.out_row_bytes + static_cast<long long>(col) * 2;
      *reinterpret_cast<uint4*>(to) =
          *reinterpret_cast<const uint4*>(out + at / kUnits * Cfg::kOutPitch + at % kUnits * 16);
    }
  }
}

template <class Cfg>
__global__ void __launch_bounds__(Cfg::kThreads, Cfg::kResident)
    gemm(const __grid_constant__ GemmParams p) {
  extern __shared__ __align__(128) char smem[];
  const std::uint32_t shared = ptx::shared_address(smem);
  const Tile tile = tile_at(p, static_cast<int>(blockIdx.x));

  const Copier<Cfg::kTileM, Cfg::kThreads> a(p.x.base, [&](int r) -> const char* {
    const int row = tile.m * Cfg::kTileM + r;
    return row < p.m ? row_address(p.x, row) : nullptr;
  });
  const Copier<Cfg::kTileN, Cfg::kThreads> b(p.w[0].base, [&](int r) -> const char* {
    const int half = Cfg::kGated ? r / 8 % 2 : 0;
    const int row = tile.n * Cfg::kOutCols + (Cfg::kGated ? r / 16 * 8 + r % 8 : r);
    return row < p.n ? row_address(p.w[half], row) : nullptr;
  });
  const int k_blocks = (p.k + kTileK - 1) / kTileK;
  const auto fill = [&](int block) {  // an empty group behind the last block keeps the count
    if (block < k_blocks) {
      const std::uint32_t stage = shared + block % Cfg::kStages * Cfg::kStageBytes;
      a.copy(stage, block, p.k);
      b.copy(stage + Cfg::kABytes, block, p.k);
    }
    ptx::cp_async_commit();
  };

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row0 = warp / Cfg::kWarpsN * Cfg::kWarpM;
  const int weight0 = warp % Cfg::kWarpsN * Cfg::kWarpN;
  float d[Cfg::kWarpM / 16][Cfg::kWarpN / 8][4] = {};
  for (int block = 0; block < Cfg::kStages - 1; ++block) fill(block);
  for (int block = 0; block < k_blocks; ++block) {
    ptx::cp_async_wait<Cfg::kStages - 2>();
    __syncthreads();
    fill(block + Cfg::kStages - 1);  // into the stage that was read one block ago
    const std::uint32_t stage = shared + block % Cfg::kStages * Cfg::kStageBytes;
    multiply<Cfg>(stage, stage + Cfg::kABytes, row0, weight0, d);
  }
  ptx::cp_async_wait<0>();
  __syncthreads();

  if constexpr (Cfg::kGated) {
    gate_rows<Cfg>(p, tile, smem, row0, weight0 / 2, d);
  } else {
    plain_rows<Cfg>(p, tile, smem, row0, weight0, d);
  }
  __syncthreads();
  store_tile<Cfg>(p, tile, smem);
}

template <class Cfg>
Status launch_config(const GemmLaunch& launch, GemmParams& p) noexcept {
  p.m_tiles = (p.m + Cfg::kTileM - 1) / Cfg::kTileM;
  p.n_tiles = (p.n + Cfg::kOutCols - 1) / Cfg::kOutCols;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(p.m_tiles) * static_cast<unsigned>(p.n_tiles));
  shape.block = dim3(Cfg::kThreads);
  shape.smem_bytes = Cfg::kSmem;
  return cuda::launch<gemm<Cfg>>(launch.device, shape, launch.stream, p);
}

template <bool kGated, class Element>
Status launch_typed(const GemmLaunch& launch, GemmParams& params) noexcept {
  const Tiling& t = launch.tiling;
  if (t.tile_m == 128 && t.tile_n == 256) {
    return launch_config<GemmConfig<kGated, Element, 128, 256, 64, 1>>(launch, params);
  }
  if (t.tile_m == 128 && t.tile_n == 128) {
    return launch_config<GemmConfig<kGated, Element, 128, 128, 64, 2>>(launch, params);
  }
  if (t.tile_m == 64 && t.tile_n == 128) {
    return launch_config<GemmConfig<kGated, Element, 64, 128, 32, 3>>(launch, params);
  }
  return make_error(ErrorCode::kInternal, "sm80: no kernel for a tile of %d x %d", t.tile_m,
                    t.tile_n);
}

}  // namespace sluice::cuda::sm80
