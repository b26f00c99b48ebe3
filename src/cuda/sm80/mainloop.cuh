// SPDX-License-Identifier: Apache-2.0
// The main loop of the GEMM for Ampere and newer: mma.sync fed by a ring of cp.async stages.
// Budget, drawing and log: docs/kernels/sm80.md.
//
// roles       all warps alike: each copies its share of a stage, then multiplies its own
//             kWarpM x kWarpN part of the tile
// shared      stages x { A: kTileM x kTileK, B: kTileN x kTileK } elements, swizzled; after the
//             mainloop the same memory holds the output tile, or its fp32 sums (sums.cuh)
// registers   accumulators, and the fragments of two steps of 16 along K: the next step's are read
//             from shared memory while this step's are multiplied
// barriers    one __syncthreads a k block, before the first read of the next stage: it says that
//             everybody's copies of that stage have landed, and that everybody has read the last
//             fragments of this one, which the next block's copies fill
// gated tiles B's rows are eight gate rows, then the eight up rows of the same numbers, and so on:
//             a thread's accumulators of an even and the next odd block of eight columns are g and
//             u of the same elements
// gradients   an operand whose rows are K lies in a stage as it lies in memory, K rows of a tile's
//             columns, and ldmatrix transposes it; input_grad's two products follow each other in
//             one ring
#pragma once

#include <cstdint>

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/sm80/launch.hpp"
#include "cuda/tile/rows.hpp"

namespace sluice::cuda::sm80 {

inline constexpr int kGroup = 8;  // row tiles that are walked together, for L2

template <GemmKind kTheKind, class ElementType, Tiling kTiling>
struct GemmConfig {
  using Element = ElementType;
  static constexpr GemmKind kKind = kTheKind;
  static constexpr bool kGated = kKind == GemmKind::kGateUp || kKind == GemmKind::kGateUpSave;
  // Whether A's rows, B's rows are K.
  static constexpr bool kTransposesA = kKind == GemmKind::kWeightGrad;
  static constexpr bool kTransposesB =
      kTransposesA || kKind == GemmKind::kGateUpGrad || kKind == GemmKind::kInputGrad;
  static constexpr int kProducts = kKind == GemmKind::kInputGrad ? 2 : 1;
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

  // After `blocks` blocks, to the first one of a matrix of the same layout.
  __device__ __forceinline__ void restart(const char* last, const char* next, int blocks) {
    from += next - last - static_cast<long long>(blocks) * Cfg::kRowBytes;
  }
};

// Where chunk `chunk` of K row `row` of a stage lies: ldmatrix reads a chunk of eight rows.
template <int kCols>
__device__ __forceinline__ int swizzled_columns(int row, int chunk) {
  return row * kCols * 2 + (chunk ^ row % 8) * 16;
}

// This thread's chunks of a matrix whose rows are K: the same column of chunks in every kStep-th of
// kTileK rows. Zeros after its last row and column.
template <class Cfg, int kCols>
struct ColumnCopier {
  static constexpr int kChunks = kCols / 8;
  static constexpr int kStep = Cfg::kThreads / kChunks;
  static constexpr int kCount = Cfg::kTileK / kStep;
  static_assert(Cfg::kThreads % kChunks == 0 && Cfg::kTileK % kStep == 0 && kStep % 8 == 0);

  tile::Rows rows;  // from the chunk's column on
  int row;          // of the first chunk of the block to be copied next
  int end;          // rows that there are; none of a column outside
  int to;           // where the first row's chunk goes in a stage

  __device__ __forceinline__ ColumnCopier(int offset, const tile::Rows& matrix, int k,
                                          int first_col, int cols)
      : rows(matrix), row(static_cast<int>(threadIdx.x) / kChunks) {
    const int chunk = static_cast<int>(threadIdx.x) % kChunks;
    const int col = first_col + chunk * 8;
    rows.base += static_cast<long long>(col) * 2;
    end = col < cols ? k : 0;
    to = offset + swizzled_columns<kCols>(row, chunk);
  }

  __device__ __forceinline__ void copy(int i, std::uint32_t stage, bool /*inside*/) const {
    const int at = row + i * kStep;
    ptx::cp_async_16(stage + to + i * kStep * kCols * 2, rows.at(at), at < end);
  }

  __device__ __forceinline__ void advance() { row += Cfg::kTileK; }

  __device__ __forceinline__ void restart(const char* last, const char* next, int blocks) {
    rows.base += next - last;
    row -= blocks * Cfg::kTileK;
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

// What a warp multiplies in one step of 16 along K.
template <class Cfg>
struct Fragments {
  std::uint32_t a[Cfg::kWarpM / 16][4];
  std::uint32_t b[Cfg::kWarpN / 16][4];
};

// Reads 16 rows or columns, the i-th, of a step. `at` is this lane's address for the first ones of
// step 0: along a swizzled row both are an exclusive or of it.
template <class Cfg, bool kTransposes, int kCols>
__device__ __forceinline__ void read(std::uint32_t (&m)[4], std::uint32_t at, int i, int step) {
  if constexpr (kTransposes) {
    ptx::ldmatrix_x4_transposed(m, (at ^ (i * 32)) + step * 16 * kCols * 2);
  } else {
    ptx::ldmatrix_x4(m, (at ^ (step * 32)) + i * 16 * Cfg::kRowBytes);
  }
}

template <class Cfg>
__device__ __forceinline__ void read(Fragments<Cfg>& f, std::uint32_t a, std::uint32_t b,
                                     int step) {
#pragma unroll
  for (int i = 0; i < Cfg::kWarpM / 16; ++i) {
    read<Cfg, Cfg::kTransposesA, Cfg::kTileM>(f.a[i], a, i, step);
  }
#pragma unroll
  for (int j = 0; j < Cfg::kWarpN / 16; ++j) {
    read<Cfg, Cfg::kTransposesB, Cfg::kTileN>(f.b[j], b, j, step);
  }
}

// A lane's address of step 0 in a stage, of the warp's rows of A from row0 on: matrices of eight
// rows and eight k, first the other rows, then the other k.
template <class Cfg>
__device__ __forceinline__ int fragment_a(int lane, int row0) {
  if constexpr (Cfg::kTransposesA) {
    return swizzled_columns<Cfg::kTileM>(lane % 8 + lane / 16 * 8, row0 / 8 + lane / 8 % 2);
  } else {
    return swizzled<Cfg>(row0 + lane % 16, lane / 16);
  }
}

// Of B's from weight0 on: first the other k, then the other rows.
template <class Cfg>
__device__ __forceinline__ int fragment_b(int lane, int weight0) {
  if constexpr (Cfg::kTransposesB) {
    return Cfg::kABytes +
           swizzled_columns<Cfg::kTileN>(lane % 8 + lane / 8 % 2 * 8, weight0 / 8 + lane / 16);
  } else {
    return Cfg::kABytes + swizzled<Cfg>(weight0 + lane % 8 + lane / 16 * 8, lane / 8 % 2);
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

// Stages that K is.
template <class Cfg>
__device__ __forceinline__ int blocks_of(int k) {
  return (k + Cfg::kTileK - 1) / Cfg::kTileK;
}

template <class Cfg>
__device__ __forceinline__ auto copier_of_a(const GemmParams& p, Tile tile) {
  if constexpr (Cfg::kTransposesA) {
    return ColumnCopier<Cfg, Cfg::kTileM>(0, p.x, p.k, tile.m * Cfg::kTileM, p.m);
  } else {
    return Copier<Cfg, Cfg::kTileM>(
        0, [&](int r) { return p.x.at(min(tile.m * Cfg::kTileM + r, p.m - 1)); });
  }
}

template <class Cfg>
__device__ __forceinline__ auto copier_of_b(const GemmParams& p, Tile tile) {
  if constexpr (Cfg::kTransposesB) {
    return ColumnCopier<Cfg, Cfg::kTileN>(Cfg::kABytes, p.w[0], p.k, tile.n * Cfg::kTileN, p.n);
  } else {
    return Copier<Cfg, Cfg::kTileN>(Cfg::kABytes, [&](int r) {
      const int up = Cfg::kGated ? r / 8 % 2 : 0;
      const int row = tile.n * Cfg::kOutCols + (Cfg::kGated ? r / 16 * 8 + r % 8 : r);
      return p.w[up].at(min(row, p.n - 1));
    });
  }
}

// The products of all of K: of the warp's rows from row0 on and weight rows from weight0 on.
template <class Cfg>
__device__ __forceinline__ void multiply_all(const GemmParams& p, Tile tile, std::uint32_t shared,
                                             int row0, int weight0, Accumulators<Cfg>& d) {
  auto a = copier_of_a<Cfg>(p, tile);
  auto b = copier_of_b<Cfg>(p, tile);
  int columns = p.k - static_cast<int>(threadIdx.x) % Cfg::kChunks * 8;  // left from this chunk on
  constexpr int kCopiesA = decltype(a)::kCount;
  constexpr int kCopies = kCopiesA + decltype(b)::kCount;
  // Copies `from` to `to` - 1 of a block.
  const auto fill = [&](std::uint32_t stage, int from, int to) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (i < from || i >= to) continue;
      if (i < kCopiesA) {
        a.copy(i, stage, columns > 0);
      } else {
        b.copy(i - kCopiesA, stage, columns > 0);
      }
    }
  };
  [[maybe_unused]] int copied = 0;
  const auto next_block = [&] {
    ptx::cp_async_commit();
    a.advance();
    b.advance();
    columns -= Cfg::kTileK;
    if constexpr (Cfg::kProducts == 2) {
      const int product = blocks_of<Cfg>(p.k);
      if (++copied != product) return;
      a.restart(p.x.base, p.x2.base, product);
      b.restart(p.w[0].base, p.w[1].base, product);
      columns += product * Cfg::kTileK;
    }
  };
  constexpr std::uint32_t kRing = Cfg::kStages * Cfg::kStageBytes;
  const auto after = [&](std::uint32_t stage) {
    stage += Cfg::kStageBytes;
    return stage == shared + kRing ? shared : stage;
  };

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int a_at = fragment_a<Cfg>(lane, row0);
  const int b_at = fragment_b<Cfg>(lane, weight0);
  const int blocks = Cfg::kProducts * blocks_of<Cfg>(p.k);
  std::uint32_t filled = shared;
  for (int i = 0; i < Cfg::kStages - 1; ++i) {
    if (i < blocks) fill(filled, 0, kCopies);
    next_block();
    filled = after(filled);
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
        filled = after(filled);
        stage = after(stage);
        ptx::cp_async_wait<Cfg::kStages - 2>();
        __syncthreads();
      } else if (more) {
        fill(filled, kCopies * step / kFillSteps, kCopies * (step + 1) / kFillSteps);
      }
      // After the last block this reads a stage that nobody multiplies.
      read<Cfg>(f[(step + 1) % 2], stage + a_at, stage + b_at, (step + 1) % Cfg::kSteps);
      multiply<Cfg>(f[step % 2], d);
    }
  }
  ptx::cp_async_wait<0>();
  __syncthreads();
}

}  // namespace sluice::cuda::sm80
