// SPDX-License-Identifier: Apache-2.0
// What kernel.cuh and stream_k/kernel.cuh share: the stages in shared memory, the loads that
// fill them, the WGMMA loop that empties them, and how pingpong consumers alternate. kernel.cuh
// lists roles and barriers.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "cuda/ptx/tensor_copy.cuh"
#include "cuda/ptx/tensor_store.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/gemm/params.hpp"
#include "cuda/sm90/gemm/tile.cuh"
#include "cuda/sm90/limits.hpp"
#include "cuda/tile/ring.cuh"

namespace sluice::cuda::sm90::gemm {

template <class Cfg>
concept KernelConfig = requires {
  requires Cfg::kTileN % 32 == 0 && Cfg::kTileN <= 256;  // the WGMMA shapes in ptx/wgmma.cuh
  requires Cfg::kCluster == 1 || Cfg::kCluster == 2;     // 132 SMs divide badly by more
  requires !Cfg::kPingpong || Cfg::kTileN <= 192;        // 2 x N / 2 accumulators a thread
  // Their consumers are pingpong's, and so are tail tiles.
  requires !(Cfg::kGateGrad || Cfg::kKind == GemmKind::kWeightGrad) || Cfg::kPingpong;
  requires Cfg::kSmemBytes <= kMaxSmemBytes;
};

template <class Cfg>
struct Smem {
  char* base;  // multiple of 1024
  // Swapped, weights lie first: rows of a WGMMA that lie behind a tile's are tokens, and nobody's.
  static constexpr int kAOffset = Cfg::kSwapAB ? Cfg::kBBytes : 0;
  static constexpr int kBOffset = Cfg::kSwapAB ? 0 : Cfg::kABytes;
  __device__ char* a(int stage) const { return base + stage * Cfg::kStageBytes + kAOffset; }
  __device__ char* b(int stage) const { return base + stage * Cfg::kStageBytes + kBOffset; }
  __device__ char* out() const { return base + Cfg::kStages * Cfg::kStageBytes; }
  __device__ std::uint64_t& full(int stage) const {
    return reinterpret_cast<std::uint64_t*>(out() + Cfg::kOutBytes)[stage];
  }
  __device__ std::uint64_t& empty(int stage) const { return full(Cfg::kStages + stage); }
  // Of gate_up_grad.
  __device__ char* g(int slot) const { return out() + 2 * slot * Cfg::kPieceBytes; }
  __device__ char* u(int slot) const { return g(slot) + Cfg::kPieceBytes; }
  __device__ std::uint64_t& inputs(int slot) const { return full(2 * Cfg::kStages + slot); }
  __device__ std::uint64_t& drained(int slot) const { return inputs(Cfg::kSlots + slot); }
  // Of split K.
  __device__ std::uint64_t& received() const { return full(2 * Cfg::kStages); }
};

__device__ __forceinline__ int warpgroup_index() {
  return ptx::warp_uniform(static_cast<int>(threadIdx.x) / 128);
}

template <class Cfg>
using RingCursor = tile::RingCursor<Cfg::kStages>;

// In a stage, a box of an operand with k along its rows: 64 rows of K x 64 columns.
inline constexpr int kBoxRowBytes = kColumnBox * 2;
inline constexpr int kBoxBytes = kTileK * kBoxRowBytes;
static_assert(kBoxBytes == 64 * kTileK * 2, "64 rows of A take the same bytes either way");

template <bool kTransposed>
__device__ __forceinline__ std::uint64_t descriptor(const char* tile) {
  const std::uint32_t address = ptx::shared_address(tile);
  if constexpr (kTransposed) return ptx::descriptor_sw128_transposed(address, kBoxBytes);
  return ptx::descriptor_sw128(address);
}

// One box to every CTA of a cluster of so many, under a cache policy if one is given.
template <int kCtas, int kRank, class... Policy>
__device__ __forceinline__ void copy_to_all(char* to, const CUtensorMap& map,
                                            const std::int32_t (&at)[5], std::uint64_t& full,
                                            Policy... policy) {
  if constexpr (kCtas == 1) {
    ptx::tensor_copy<kRank>(to, map, at, full, policy...);
  } else {
    ptx::tensor_multicast<kRank, (1 << kCtas) - 1>(to, map, at, full, policy...);
  }
}

// This CTA's share of one stage of B, sent to every CTA that shares it, under a cache policy if one
// is given.
template <class Cfg, class... Policy>
__device__ __forceinline__ void load_weights(const GemmParams& p, const CUtensorMap& map,
                                             const Smem<Cfg>& smem, int stage, int k, Tile tile,
                                             int rank, Policy... policy) {
  constexpr int kParts = Cfg::kWeightParts;
  constexpr int kRows = Cfg::kTileN / kParts;
  const int first_row = tile.n * Cfg::kTileN + rank * kRows;
  char* to = smem.b(stage) + rank * kRows * kTileK * 2;
  std::uint64_t& full = smem.full(stage);
  if constexpr (Cfg::kTransposedB) {  // boxes of 64 columns; each CTA brings its share of their
                                      // rows
    constexpr int kDepth = kTileK / kParts;
    char* rows = smem.b(stage) + rank * kDepth * kBoxRowBytes;
#pragma unroll
    for (int box = 0; box < Cfg::kTileN / kColumnBox; ++box) {
      if (tile.tail && box > 0) break;
      const std::int32_t at[5] = {first_col<Cfg>(tile) + box * kColumnBox, k + rank * kDepth};
      copy_to_all<kParts, 2>(rows + box * kBoxBytes, map, at, full, policy...);
    }
  } else if (Cfg::kKind == GemmKind::kDown || p.pair.rank == 2) {
    const std::int32_t at[5] = {k, first_row};
    copy_to_all<kParts, 2>(to, map, at, full, policy...);
  } else {
    for (int i = 0; i < kRows / 16; i += p.pair.groups_a_copy) {  // 8 gate and 8 up rows each
      char* part = to + i * 16 * kTileK * 2;
      const int last = p.pair.last_coordinate(first_row / 16 + i);
      if (p.pair.rank == 4) {
        const std::int32_t at[5] = {k, 0, 0, last};
        copy_to_all<kParts, 4>(part, map, at, full, policy...);
      } else {
        const std::int32_t at[5] = {k, 0, 0, 0, last};
        copy_to_all<kParts, 5>(part, map, at, full, policy...);
      }
    }
  }
}

// The part of an A operand that a CTA's row tile, of `rows` rows from row m0, reads. NOTE: no more
// rows than there are, for the copy engine takes longer over rows of a box that lie behind the
// matrix than over rows of it. What lies below them in a stage makes rows that nobody stores.
struct InputTile {
  int m0;
  int rows;
  __device__ __forceinline__ InputTile(int m, int first, int tile_rows)
      : m0(first), rows(min(max(m - first, 0), tile_rows)) {}
  // Whole tiles by one map, the last one by another, whose boxes are as high as it is.
  __device__ __forceinline__ const CUtensorMap& map(const CUtensorMap& whole,
                                                    const CUtensorMap& tail, int tile_rows) const {
    return rows == tile_rows ? whole : tail;
  }
  // Of so many shares.
  __device__ __forceinline__ int stage_bytes(int parts = 1) const {
    return parts * input_part(rows, parts) * kTileK * 2;
  }
};

// This CTA's rows of one stage of A; its share of them, sent to every CTA that shares them.
template <class Cfg>
__device__ __forceinline__ void load_input(const CUtensorMap& map, const Smem<Cfg>& smem, int stage,
                                           int k, const InputTile& tile, int rank = 0) {
  std::uint64_t& full = smem.full(stage);
  if constexpr (Cfg::kTransposedA) {
#pragma unroll
    for (int box = 0; box < kTileM / kColumnBox; ++box) {
      const std::int32_t at[5] = {tile.m0 + box * kColumnBox, k};
      ptx::tensor_copy<2>(smem.a(stage) + box * kBoxBytes, map, at, full);
    }
  } else if constexpr (Cfg::kInputParts > 1) {
    const int row = rank * input_part(tile.rows, Cfg::kInputParts);
    const std::int32_t at[5] = {k, tile.m0 + row};
    copy_to_all<Cfg::kInputParts, 2>(smem.a(stage) + row * kTileK * 2, map, at, full);
  } else if (tile.rows > 0) {
    const std::int32_t at[5] = {k, tile.m0};
    ptx::tensor_copy<2>(smem.a(stage), map, at, full);
  }
}

template <class Cfg>
__device__ __forceinline__ int k_blocks_of(const GemmParams& p) {
  return Cfg::kProducts * ((p.k + kTileK - 1) / kTileK);
}

template <class Cfg>
__device__ __forceinline__ int first_row(Tile tile, int rank) {
  return (tile.m * Cfg::kCluster + rank) * kTileM;
}

// Signals every CTA of the cluster that this warpgroup has read the stage.
template <class Cfg>
__device__ __forceinline__ void release(const Smem<Cfg>& smem, int stage) {
  const unsigned target = threadIdx.x % 128;
  if (target < Cfg::kCluster) {
    if constexpr (Cfg::kCluster > 1) {
      ptx::mbarrier_arrive_at(smem.empty(stage), target);
    } else {
      ptx::mbarrier_arrive(smem.empty(stage));
    }
  }
}

// Accumulates one tile: kHalves x 64 rows from row `row0` of A, kCols columns; swapped, B's rows
// and A as columns. Calls `issued` when the last WGMMA is in flight, before waiting for it.
template <class Cfg, int kCols, int kHalves, int kSums, class Issued>
__device__ __forceinline__ void multiply(const Smem<Cfg>& smem, RingCursor<Cfg>& ring, int k_blocks,
                                         int row0, float (&d)[kHalves][kSums],
                                         const Issued& issued) {
  using Mma = ptx::SplitWgmma<kCols, std::min(kCols, Cfg::kMmaN), typename Cfg::Element,
                              Cfg::kTransposedB, Cfg::kTransposedA>;
  // In the descriptor, 16 of K: 32 bytes of a row, or 16 rows of a box.
  constexpr int kAlongRow = 32 >> 4;
  constexpr int kAlongColumn = (16 * kBoxRowBytes) >> 4;
  constexpr int kStepA = Cfg::kTransposedA ? kAlongColumn : kAlongRow;
  constexpr int kStepB = Cfg::kTransposedB ? kAlongColumn : kAlongRow;
  // Of 64 rows of A; swapped, of 8 weight rows: one half has those of gate, the other of up.
  constexpr int kHalfA = (Cfg::kSwapAB ? 8 * 128 : 64 * 128) >> 4;
  int previous = 0;
  const auto block = [&](bool first) __attribute__((always_inline)) {
    ptx::mbarrier_wait(smem.full(ring.stage), ring.parity);
    const char* rows = Cfg::kSwapAB ? smem.b(ring.stage) : smem.a(ring.stage);
    const char* columns = Cfg::kSwapAB ? smem.a(ring.stage) : smem.b(ring.stage);
    const std::uint64_t a =
        Cfg::kSwapAB ? ptx::descriptor_sw128<2048>(ptx::shared_address(rows + row0 * 128))
                     : descriptor<Cfg::kTransposedA>(rows + row0 * 128);
    const std::uint64_t b = descriptor<Cfg::kTransposedB>(columns);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileK / 16; ++step) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        Mma::mma(reinterpret_cast<float(&)[kCols / 2]>(d[half]),
                 ptx::further(a, half * kHalfA + kStepA * step), ptx::further(b, kStepB * step),
                 first && step == 0);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (!first) release<Cfg>(smem, previous);
    previous = ring.stage;
    ring.advance();
  };
  int k = 0;
  // NOTE: sums of whole and of half tiles lie in the same registers, which ptxas grants only where
  // the first wgmma reads none by a constant. In gate_up_grad this spills accumulators.
  if constexpr (Cfg::kHalfTiles) {
    block(true);
    k = 1;
  }
  for (; k < k_blocks; ++k) block(k == 0);
  issued();
  ptx::wgmma_wait<0>();
  release<Cfg>(smem, previous);
}

constexpr int kOwnBarrier = 1;      // + consumer
constexpr int kTensorBarrier = 3;   // + consumer
constexpr int kOutTileBarrier = 5;  // + consumer

// Hands a box of a finished tile to TMA, which clips it at the matrix's edge. Boxes wholly outside
// are left out.
__device__ __forceinline__ void store_box(const GemmParams& p, const CUtensorMap& map,
                                          const char* box, int col, int row) {
  if (col < p.n && row < p.m) ptx::tensor_store_2d(map, box, col, row);
}

template <class Cfg>
__device__ __forceinline__ void clear(float (&d)[2][Cfg::kTileN / 2]) {
#pragma unroll
  for (int i = 0; i < Cfg::kTileN / 2; ++i) d[0][i] = d[1][i] = 0.0F;
}

// Whether this CTA's part of a tile has no row behind its first 64.
template <class Cfg>
__device__ __forceinline__ bool is_half_tile(const GemmParams& p, int t, int rank) {
  if constexpr (!Cfg::kHalfTiles) return false;
  return p.m - first_row<Cfg>(tile_at<Cfg>(p.order, t), rank) <= kOutRows;
}

// The tiles of one consumer, the tensor cores changing hands between the two. Calls
// finish(turn, t, d) for each: the CTA's turn, the tile's index and the sums, of a half tile those
// of 64 rows alone.
template <class Cfg, class Finish>
__device__ __forceinline__ void pingpong(const GemmParams& p, const Smem<Cfg>& smem, int consumer,
                                         int rank, const Finish& finish) {
  const int k_blocks = k_blocks_of<Cfg>(p);
  RingCursor<Cfg> ring;
  if (consumer == 1) ptx::named_barrier_arrive(kTensorBarrier + 0, 256);  // consumer 0 goes first
  int turn = 0;
  for (int t = blockIdx.x / Cfg::kCluster; t < p.order.tiles;
       t += gridDim.x / Cfg::kCluster, ++turn) {
    if (turn % 2 != consumer) continue;
    ring.skip_to(turn * k_blocks);
    constexpr int kSums = Cfg::kTileN / 2;
    float d[2][kSums];
    // NOTE: the first wgmma reads no sums, but ptxas keeps the last tile's alive until it: with the
    // epilogue of gate_up_grad it then spills them.
    if constexpr (Cfg::kGateGrad) clear<Cfg>(d);
    ptx::named_barrier_sync(kTensorBarrier + consumer, 256);
    const auto issued = [&] { ptx::named_barrier_arrive(kTensorBarrier + (consumer ^ 1), 256); };
    if (Cfg::kTailTiles && t >= p.order.whole) {
      multiply<Cfg, kColumnBox>(smem, ring, k_blocks, 0, d, issued);
    } else if (is_half_tile<Cfg>(p, t, rank)) {
      multiply<Cfg, Cfg::kTileN>(smem, ring, k_blocks, 0, reinterpret_cast<float(&)[1][kSums]>(d),
                                 issued);
    } else {
      multiply<Cfg, Cfg::kTileN>(smem, ring, k_blocks, 0, d, issued);
    }
    finish(turn, t, d);
  }
}

}  // namespace sluice::cuda::sm90::gemm
