// SPDX-License-Identifier: Apache-2.0
// The GEMM of gate_up and down for Ampere and newer: mma.sync fed by a ring of cp.async stages.
// Budget, drawing and log: docs/kernels/sm80.md.
//
// roles       all warps alike: each copies its share of a stage, then multiplies its own
//             kWarpM x kWarpN part of the tile
// shared      stages x { A: kTileM x kTileK, B: kTileN x kTileK } elements, swizzled; after the
//             mainloop the same memory holds the output tile
// registers   accumulators, and the fragments of two steps of 16 along K: the next step's are read
//             from shared memory while this step's are multiplied
// barriers    one __syncthreads a k block, before the first read of the next stage: it says that
//             everybody's copies of that stage have landed, and that everybody has read the last
//             fragments of this one, which the next block's copies fill
// gated tiles B's rows are eight gate rows, then the eight up rows of the same numbers, and so on:
//             a thread's accumulators of an even and the next odd block of eight columns are g and
//             u of the same elements
#pragma once

#include <cstdint>

#include "cuda/host/launch.hpp"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/sm80/launch.hpp"
#include "cuda/tile/activation.cuh"
#include "cuda/tile/pair.cuh"
#include "math/gate.hpp"

namespace sluice::cuda::sm80 {

inline constexpr int kGroup = 8;  // row tiles that are walked together, for L2

template <bool kIsGated, class ElementType, Tiling kTiling>
struct GemmConfig {
  using Element = ElementType;
  static constexpr bool kGated = kIsGated;
  static constexpr int kTileM = kTiling.tile_m;
  static constexpr int kTileN = kTiling.tile_n;
  static constexpr int kTileK = kTiling.tile_k;
  static constexpr int kWarpM = kTiling.warp_m;
  static constexpr int kWarpN = kTiling.warp_n;
  static constexpr int kStages = kTiling.stages;
  static constexpr int kResident = kTiling.resident;
  static constexpr int kSteps = kTileK / 16;
  static constexpr int kWarpsN = kTileN / kWarpN;
  static constexpr int kThreads = kTileM / kWarpM * kWarpsN * 32;
  static constexpr int kRowBytes = kTileK * 2;
  static constexpr int kChunks = kRowBytes / 16;  // a row of a stage in units of 16 bytes
  static constexpr int kABytes = kTileM * kRowBytes;
  static constexpr int kStageBytes = kABytes + kTileN * kRowBytes;
  static constexpr int kOutCols = kGated ? kTileN / 2 : kTileN;
  // 16 bytes more than the row: neighbouring rows start four banks apart.
  static constexpr int kOutPitch = kOutCols * 2 + 16;
  static constexpr int kSmem = smem_bytes(kTiling);
  static_assert(kTileM * kOutPitch <= kSmem);
  static_assert(kTileM % kWarpM == 0 && kWarpM % 16 == 0 && kTileN % kWarpN == 0);
  static_assert(kWarpN % 16 == 0 && (kTileK == 32 || kTileK == 64));
};

// Where chunk `chunk` of row `row` lies in a matrix of a stage, so that eight rows of one chunk
// column touch all banks once: 128 bytes hold one row of eight chunks, or two of four.
template <class Cfg>
__device__ __forceinline__ int swizzled(int row, int chunk) {
  const int turn = Cfg::kChunks == 8 ? row % 8 : row / 2 % 4;
  return row * Cfg::kRowBytes + (chunk ^ turn) * 16;
}

// This thread's chunks of a matrix of kRows rows: the same column of chunks in every kStep-th row.
// Rows outside the matrix are read from its last row: what they give is never stored.
template <class Cfg, int kRows>
struct Copier {
  static constexpr int kStep = Cfg::kThreads / Cfg::kChunks;
  static constexpr int kCount = kRows / kStep;
  // Sixteen rows on, a row of B is of the same weight again: distances never lead from one to the
  // other, which may lie anywhere.
  static_assert(Cfg::kThreads % Cfg::kChunks == 0 && kRows % kStep == 0 && kStep % 16 == 0);

  const char* from;            // the chunk of the first row and the k block to be copied next
  std::int32_t units[kCount];  // from there to the other rows, in 16 bytes
  int to;                      // where the first row's chunk goes in a stage

  // `address(r)` gives the start of row r in global memory.
  template <class Address>
  __device__ __forceinline__ explicit Copier(int offset, const Address& address) {
    const int row = static_cast<int>(threadIdx.x) / Cfg::kChunks;
    const int chunk = static_cast<int>(threadIdx.x) % Cfg::kChunks;
    const char* const first = address(row);
    from = first + chunk * 16;
    to = offset + swizzled<Cfg>(row, chunk);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      units[i] = static_cast<std::int32_t>((address(row + i * kStep) - first) / 16);
    }
  }

  // The i-th chunk into the stage at `stage`; zeros where `inside` is false.
  __device__ __forceinline__ void copy(int i, std::uint32_t stage, bool inside) const {
    ptx::cp_async_16(stage + to + i * kStep * Cfg::kRowBytes,
                     from + static_cast<long long>(units[i]) * 16, inside);
  }

  __device__ __forceinline__ void advance() { from += Cfg::kRowBytes; }
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

// What a warp multiplies in one step of 16 along K.
template <class Cfg>
struct Fragments {
  std::uint32_t a[Cfg::kWarpM / 16][4];
  std::uint32_t b[Cfg::kWarpN / 16][4];
};

// Reads a step's fragments. `a` and `b` are this lane's row and chunk of step 0 in a stage; a step
// moves the chunk by two, which the swizzle turns into an exclusive or of the address.
template <class Cfg>
__device__ __forceinline__ void read(Fragments<Cfg>& f, std::uint32_t a, std::uint32_t b,
                                     int step) {
#pragma unroll
  for (int i = 0; i < Cfg::kWarpM / 16; ++i) {
    ptx::ldmatrix_x4(f.a[i], (a ^ (step * 32)) + i * 16 * Cfg::kRowBytes);
  }
#pragma unroll
  for (int j = 0; j < Cfg::kWarpN / 16; ++j) {
    ptx::ldmatrix_x4(f.b[j], (b ^ (step * 32)) + j * 16 * Cfg::kRowBytes);
  }
}

template <class Cfg>
using Accumulators = float[Cfg::kWarpM / 16][Cfg::kWarpN / 8][4];

template <class Cfg>
__device__ __forceinline__ void multiply(const Fragments<Cfg>& f, Accumulators<Cfg>& d) {
#pragma unroll
  for (int j = 0; j < Cfg::kWarpN / 16; ++j) {
#pragma unroll
    for (int i = 0; i < Cfg::kWarpM / 16; ++i) {
      using Element = typename Cfg::Element;
      ptx::mma_m16n8k16<Element>(d[i][2 * j], f.a[i], f.b[j][0], f.b[j][1]);
      ptx::mma_m16n8k16<Element>(d[i][2 * j + 1], f.a[i], f.b[j][2], f.b[j][3]);
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
    __syncwarp();  // keeps the compiler from computing all rows at once, which takes registers
  }
}

// h = gate(g + bg, u + bu).
template <class Cfg>
__device__ __forceinline__ void gate_rows(const GemmParams& p, Tile tile, char* out, int row0,
                                          int col0, Accumulators<Cfg>& d) {
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
  tile::with_epilogue_gate(p.gate, [&](const Gate& gate) {
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
                                           int col0, Accumulators<Cfg>& d) {
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
          tile::load_pair<Element>(p.residual.at(row), col, col < p.n, col + 1 < p.n);
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

// The products of all of K: of the warp's rows from row0 on and weight rows from weight0 on.
template <class Cfg>
__device__ __forceinline__ void multiply_all(const GemmParams& p, Tile tile, std::uint32_t shared,
                                             int row0, int weight0, Accumulators<Cfg>& d) {
  Copier<Cfg, Cfg::kTileM> a(0,
                             [&](int r) { return p.x.at(min(tile.m * Cfg::kTileM + r, p.m - 1)); });
  Copier<Cfg, Cfg::kTileN> b(Cfg::kABytes, [&](int r) {
    const int half = Cfg::kGated ? r / 8 % 2 : 0;
    const int row = tile.n * Cfg::kOutCols + (Cfg::kGated ? r / 16 * 8 + r % 8 : r);
    return p.w[half].at(min(row, p.n - 1));
  });
  int columns = p.k - static_cast<int>(threadIdx.x) % Cfg::kChunks * 8;  // left from this chunk on
  constexpr int kCopies = a.kCount + b.kCount;
  // Copies `first` to `last` - 1 of a block.
  const auto fill = [&](std::uint32_t stage, int first, int last) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (i < first || i >= last) continue;
      if (i < a.kCount) {
        a.copy(i, stage, columns > 0);
      } else {
        b.copy(i - a.kCount, stage, columns > 0);
      }
    }
  };
  const auto next_block = [&] {
    ptx::cp_async_commit();
    a.advance();
    b.advance();
    columns -= Cfg::kTileK;
  };
  constexpr std::uint32_t kRing = Cfg::kStages * Cfg::kStageBytes;
  const auto behind = [&](std::uint32_t stage) {
    stage += Cfg::kStageBytes;
    return stage == shared + kRing ? shared : stage;
  };

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int a_at = swizzled<Cfg>(row0 + lane % 16, lane / 16);
  const int b_at = Cfg::kABytes + swizzled<Cfg>(weight0 + lane % 8 + lane / 16 * 8, lane / 8 % 2);
  const int blocks = (p.k + Cfg::kTileK - 1) / Cfg::kTileK;
  std::uint32_t filled = shared;
  for (int i = 0; i < Cfg::kStages - 1; ++i) {
    if (i < blocks) fill(filled, 0, kCopies);
    next_block();
    filled = behind(filled);
  }
  std::uint32_t stage = shared;
  Fragments<Cfg> f[2];
  ptx::cp_async_wait<Cfg::kStages - 2>();
  __syncthreads();
  read<Cfg>(f[0], stage + a_at, stage + b_at, 0);
  for (int block = 0; block < blocks; ++block) {
    const bool more = block + Cfg::kStages - 1 < blocks;
#pragma unroll
    for (int step = 0; step < Cfg::kSteps; ++step) {
      constexpr int kFillSteps = Cfg::kSteps - 1;
      if (step == kFillSteps) {
        next_block();
        filled = behind(filled);
        stage = behind(stage);
        ptx::cp_async_wait<Cfg::kStages - 2>();
        __syncthreads();
      } else if (more) {
        fill(filled, kCopies * step / kFillSteps, kCopies * (step + 1) / kFillSteps);
      }
      // Behind the last block this reads a stage that nobody multiplies.
      read<Cfg>(f[(step + 1) % 2], stage + a_at, stage + b_at, (step + 1) % Cfg::kSteps);
      multiply<Cfg>(f[step % 2], d);
    }
  }
  ptx::cp_async_wait<0>();
  __syncthreads();
}

template <class Cfg>
__global__ void __launch_bounds__(Cfg::kThreads, Cfg::kResident)
    gemm(const __grid_constant__ GemmParams p) {
  extern __shared__ __align__(128) char smem[];
  const Tile tile = tile_at(p, static_cast<int>(blockIdx.x));
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row0 = warp / Cfg::kWarpsN * Cfg::kWarpM;
  const int weight0 = warp % Cfg::kWarpsN * Cfg::kWarpN;
  Accumulators<Cfg> d = {};
  multiply_all<Cfg>(p, tile, ptx::shared_address(smem), row0, weight0, d);
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
  const LaunchShape shape{
      .grid = static_cast<unsigned>(p.m_tiles) * static_cast<unsigned>(p.n_tiles),
      .block = Cfg::kThreads,
      .smem_bytes = Cfg::kSmem};
  return cuda::launch<gemm<Cfg>>(launch.device, shape, launch.stream, p);
}

template <bool kGated, class Element, std::size_t kIndex = 0>
Status launch_typed(const GemmLaunch& launch, GemmParams& params) noexcept {
  if constexpr (kIndex < std::size(kTilings)) {
    if (launch.tiling == kTilings[kIndex]) {
      return launch_config<GemmConfig<kGated, Element, kTilings[kIndex]>>(launch, params);
    }
    return launch_typed<kGated, Element, kIndex + 1>(launch, params);
  } else {
    return make_error(ErrorCode::kInternal, "sm80: no kernel for a tile of %d x %d",
                      launch.tiling.tile_m, launch.tiling.tile_n);
  }
}

}  // namespace sluice::cuda::sm80
