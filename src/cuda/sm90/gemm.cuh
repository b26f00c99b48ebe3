// SPDX-License-Identifier: Apache-2.0
// The Hopper mainloop of gate_up, down and the gradients: persistent, warp-specialised, TMA in,
// WGMMA, TMA out. Budget, drawing and log of what was tried: docs/kernels/gate_up.md,
// gate_up_grad.md.
//
// roles (384 threads, one CTA an SM)
//   warpgroup 0, 1  consumers: WGMMA, epilogue, TMA store   232 registers
//   warpgroup 2     producers: one thread issues the ring's TMA loads, another those of
//                   gate_up_grad's g and u   40 registers
// schedules
//   pingpong     a consumer owns a whole 128 x N tile; one multiplies while the other gates, stores
//   cooperative  both consumers share a 128 x N tile, 64 rows each
// shared memory
//   stages x { A: 128 x 64, B: N x 64; transposed 64 x 128, 64 x N } elements, 128-byte swizzle |
//   out tile; of gate_up_grad four slots of 64 x 64 { g, then dg, then h; u, then du } | mbarriers
// mbarriers, per stage
//   full[s]   1 arrival (the producer's expect_tx) and the stage's bytes; consumers wait
//   empty[s]  one arrival for each consumer warpgroup of each CTA of the cluster that reads the
//             stage; producers wait, since each writes half of B into both CTAs
// words in global memory
//   step_words[p.step_word]  producers of all CTAs, once a turn, where a wave reads more than L2
//   holds
// mbarriers of gate_up_grad
//   inputs[s]  1 arrival (an expect_tx) and the bytes of a piece of g and u in slot s; the consumer
//              whose turn it is waits
//   drained[s] 1 arrival: the stores of the slot's leader have read it; who fetches waits
// named barriers (bar.sync / bar.arrive)
//   1 + w     the 128 threads of consumer w
//   3 + w     256: "the tensor cores are yours", from the other consumer to w (pingpong)
//   5 + w     256: "the out tile, or the slots, are yours", from the other consumer to w (pingpong)
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/ptx/tensor_multicast.cuh"
#include "cuda/ptx/tensor_store.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/epilogue.cuh"
#include "cuda/sm90/gemm_params.hpp"
#include "cuda/sm90/step.cuh"
#include "cuda/tile/ring.cuh"

namespace sluice::cuda::sm90 {

template <class Cfg>
concept KernelConfig = requires {
  requires Cfg::kTileN % 32 == 0 && Cfg::kTileN <= 256;  // the WGMMA shapes in ptx/wgmma.cuh
  requires Cfg::kCluster == 1 || Cfg::kCluster == 2;     // 132 SMs divide badly by more
  requires !Cfg::kPingpong || Cfg::kTileN <= 192;        // 2 x N / 2 accumulators a thread
  requires !Cfg::kTransposedB || Cfg::kPingpong;
  requires Cfg::kSmemBytes <= 227 * 1024;
};

// Tiles in column order within groups of `group` row tiles, so that a wave shares weights in L2.
__device__ __forceinline__ Tile tile_at(const TileOrder& order, int index, int columns) {
  const int per_group = order.group * columns;
  const int first = index / per_group * order.group;
  const int rows = min(order.group, order.m_tiles - first);
  const int rest = index % per_group;
  return {first + rest % rows, rest / rows};
}

// The t-th tile of all: whole ones, then narrow ones.
template <class Cfg>
__device__ __forceinline__ Tile tile_at(const TileOrder& order, int t) {
  if constexpr (Cfg::kNarrowTiles) {
    if (t >= order.whole) {
      const Tile tile = tile_at(order, t - order.whole, order.cut.narrow);
      return {tile.m, tile.n + order.cut.whole * (Cfg::kTileN / kColumnBox), true};
    }
  }
  return tile_at(order, t, order.cut.whole);
}

template <class Cfg>
struct Smem {
  char* base;  // multiple of 1024
  __device__ char* a(int stage) const { return base + stage * Cfg::kStageBytes; }
  __device__ char* b(int stage) const { return a(stage) + Cfg::kABytes; }
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

// This CTA's share of one stage of B, sent to every CTA of the cluster.
template <class Cfg>
__device__ __forceinline__ void load_weights(const GemmParams& p, const CUtensorMap& map,
                                             const Smem<Cfg>& smem, int stage, int k, Tile tile,
                                             int rank) {
  constexpr std::uint16_t kAll = (1 << Cfg::kCluster) - 1;
  constexpr int kRows = Cfg::kTileN / Cfg::kCluster;
  char* to = smem.b(stage) + rank * kRows * kTileK * 2;
  const int first_row = tile.n * Cfg::kTileN + rank * kRows;
  std::uint64_t& full = smem.full(stage);
  if constexpr (Cfg::kTransposedB) {  // boxes of 64 columns; each CTA brings its share of their
                                      // rows
    constexpr int kDepth = kTileK / Cfg::kCluster;
    char* rows = smem.b(stage) + rank * kDepth * kBoxRowBytes;
#pragma unroll
    for (int box = 0; box < Cfg::kTileN / kColumnBox; ++box) {
      if (tile.narrow && box > 0) break;
      const std::int32_t at[5] = {first_col<Cfg>(tile) + box * kColumnBox, k + rank * kDepth};
      ptx::tensor_copy<kAll, 2>(rows + box * kBoxBytes, map, at, full);
    }
  } else if constexpr (Cfg::kKind == GemmKind::kDown) {
    const std::int32_t at[5] = {k, first_row};
    ptx::tensor_copy<kAll, 2>(to, map, at, full);
  } else {
    const PairWalk& walk = p.pair;
    for (int i = 0; i < kRows / 16; i += walk.groups_a_copy) {  // 8 gate and 8 up rows a group
      const int group = first_row / 16 + i;
      char* part = to + i * 16 * kTileK * 2;
      if (walk.rank == 4) {
        const std::int32_t at[5] = {k, 0, 0, group};
        ptx::tensor_copy<kAll, 4>(part, map, at, full);
      } else if (walk.groups_a_block == 0) {
        const std::int32_t at[5] = {k, 0, 0, 0, group};
        ptx::tensor_copy<kAll, 5>(part, map, at, full);
      } else {
        const std::int32_t at[5] = {k, 0, 0, group % walk.groups_a_block,
                                    group / walk.groups_a_block};
        ptx::tensor_copy<kAll, 5>(part, map, at, full);
      }
    }
  }
}

// This CTA's rows of one stage of A.
template <class Cfg>
__device__ __forceinline__ void load_input(const CUtensorMap& map, const Smem<Cfg>& smem, int stage,
                                           int k, int m0) {
  std::uint64_t& full = smem.full(stage);
  if constexpr (Cfg::kTransposedA) {
#pragma unroll
    for (int box = 0; box < kTileM / kColumnBox; ++box) {
      const std::int32_t at[5] = {m0 + box * kColumnBox, k};
      ptx::tensor_copy<1, 2>(smem.a(stage) + box * kBoxBytes, map, at, full);
    }
  } else {
    const std::int32_t at[5] = {k, m0};
    ptx::tensor_copy<1, 2>(smem.a(stage), map, at, full);
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

template <class Cfg>
__device__ __forceinline__ void produce(const GemmParams& p, const Smem<Cfg>& smem, int rank) {
  RingCursor<Cfg> ring;
  ring.parity = 1;  // the first pass over the ring finds every stage free
  const int k_blocks = k_blocks_of<Cfg>(p);
  // CTAs arrive so long before the end of a turn that in step nobody waits for the last to be seen.
  constexpr int kAhead = 8;
  const int arrival = max(0, k_blocks - kAhead);
  const int clusters = static_cast<int>(gridDim.x) / Cfg::kCluster;
  const int in_full_turns = p.order.tiles / clusters * clusters;
  Step step(p.step_word);
  bool waited = false;
  if (p.weights_static == 0) {
    ptx::wait_for_prerequisites();
    waited = true;
  }
  for (int t = blockIdx.x / Cfg::kCluster; t < p.order.tiles; t += clusters) {
    const Tile tile = tile_at<Cfg>(p.order, t);
    const int stage_bytes = tile.narrow ? Cfg::kABytes + kBoxBytes : Cfg::kStageBytes;
    if (t >= clusters) step.wait();
    for (int k = 0; k < k_blocks; ++k) {
      if (k == arrival && t < in_full_turns) step.arrive();
      ptx::mbarrier_wait(smem.empty(ring.stage), ring.parity);
      std::uint64_t& full = smem.full(ring.stage);
      ptx::mbarrier_arrive_expect_bytes(full, stage_bytes);
      const bool second = Cfg::kProducts == 2 && k >= k_blocks / 2;
      const int k0 = (second ? k - k_blocks / 2 : k) * kTileK;
      load_weights<Cfg>(p, second ? p.w2 : p.w, smem, ring.stage, k0, tile, rank);
      if (!waited) {  // x comes from the kernel before this one; static weights do not
        ptx::wait_for_prerequisites();
        waited = true;
      }
      load_input<Cfg>(second ? p.x2 : p.x, smem, ring.stage, k0, first_row<Cfg>(tile, rank));
      ring.advance();
    }
  }
  ptx::launch_dependents();
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

// Accumulates one tile: kHalves x 64 rows from row `row0` of A, kCols columns. Calls `issued` when
// the last WGMMA is in flight, before waiting for it.
template <class Cfg, int kCols, int kHalves, class Issued>
__device__ __forceinline__ void multiply(const Smem<Cfg>& smem, RingCursor<Cfg>& ring, int k_blocks,
                                         int row0, float (&d)[kHalves][Cfg::kTileN / 2],
                                         const Issued& issued) {
  using Mma = ptx::SplitWgmma<kCols, std::min(kCols, Cfg::kMmaN), typename Cfg::Element,
                              Cfg::kTransposedB, Cfg::kTransposedA>;
  // In the descriptor, 16 of K: 32 bytes of a row, or 16 rows of a box.
  constexpr int kAlongRow = 32 >> 4;
  constexpr int kAlongColumn = (16 * kBoxRowBytes) >> 4;
  constexpr int kStepA = Cfg::kTransposedA ? kAlongColumn : kAlongRow;
  constexpr int kStepB = Cfg::kTransposedB ? kAlongColumn : kAlongRow;
  int previous = 0;
  for (int k = 0; k < k_blocks; ++k) {
    ptx::mbarrier_wait(smem.full(ring.stage), ring.parity);
    const std::uint64_t a = descriptor<Cfg::kTransposedA>(smem.a(ring.stage) + row0 * 128);
    const std::uint64_t b = descriptor<Cfg::kTransposedB>(smem.b(ring.stage));
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileK / 16; ++step) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        Mma::mma(reinterpret_cast<float(&)[kCols / 2]>(d[half]),
                 ptx::further(a, half * 512 + kStepA * step), ptx::further(b, kStepB * step),
                 k + step == 0);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (k > 0) release<Cfg>(smem, previous);
    previous = ring.stage;
    ring.advance();
  }
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
__device__ __forceinline__ void store_tile(const GemmParams& p, const CUtensorMap& map,
                                           const char* out, Tile tile, int m0) {
#pragma unroll
  for (int box = 0; box < Cfg::kOutCols / Cfg::kOutBoxCols; ++box) {
    store_box(p, map, out + box * Cfg::kOutBoxRows * Cfg::kOutBoxCols * 2,
              tile.n * Cfg::kOutCols + box * Cfg::kOutBoxCols, m0);
  }
  ptx::bulk_commit();
}

// Fills the out tile by `write`, on the 128 threads of a consumer, and stores it. The consumer's
// last store has read the tile before anyone writes.
template <class Cfg, class Write>
__device__ __forceinline__ void put_tile(const GemmParams& p, const CUtensorMap& map, char* out,
                                         Tile tile, int m0, int consumer, const Write& write) {
  const bool leader = threadIdx.x % 128 == 0;
  if (leader) ptx::bulk_wait_read();
  ptx::named_barrier_sync(kOwnBarrier + consumer, 128);
  write();
  ptx::fence_shared_for_async();
  ptx::named_barrier_sync(kOwnBarrier + consumer, 128);
  if (leader) store_tile<Cfg>(p, map, out, tile, m0);
}

// What gate_up and down make of kHalves x 64 rows of sums, through one out tile in turn.
template <class Cfg, int kHalves>
__device__ __forceinline__ void put_outputs(const GemmParams& p, char* out, Tile tile, int m0,
                                            int consumer, float (&d)[kHalves][Cfg::kTileN / 2]) {
  if constexpr (Cfg::kKind == GemmKind::kGateUp) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) add_biases<Cfg>(p, tile, d[half]);
    put_tile<Cfg>(p, p.out, out, tile, m0, consumer, [&] {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) gate_rows<Cfg>(p, out, 64 * half, d[half]);
    });
    if (p.save == 0) return;
    put_tile<Cfg>(p, p.g, out, tile, m0, consumer, [&] {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) half_rows<Cfg>(p, false, out, 64 * half, d[half]);
    });
    put_tile<Cfg>(p, p.u, out, tile, m0, consumer, [&] {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) half_rows<Cfg>(p, true, out, 64 * half, d[half]);
    });
  } else {
    put_tile<Cfg>(p, p.out, out, tile, m0, consumer, [&] {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        plain_rows<Cfg>(p, tile, m0, out, 64 * half, d[half]);
      }
    });
  }
}

template <class Cfg>
__device__ __forceinline__ void clear(float (&d)[2][Cfg::kTileN / 2]) {
#pragma unroll
  for (int i = 0; i < Cfg::kTileN / 2; ++i) d[0][i] = d[1][i] = 0.0F;
}

// The tiles of one consumer, the tensor cores changing hands between the two. Calls
// finish(turn, t, d) for each: the CTA's turn, the tile's index and the sums.
template <class Cfg, class Finish>
__device__ __forceinline__ void pingpong(const GemmParams& p, const Smem<Cfg>& smem, int consumer,
                                         const Finish& finish) {
  const int k_blocks = k_blocks_of<Cfg>(p);
  RingCursor<Cfg> ring;
  if (consumer == 1) ptx::named_barrier_arrive(kTensorBarrier + 0, 256);  // consumer 0 goes first
  int turn = 0;
  for (int t = blockIdx.x / Cfg::kCluster; t < p.order.tiles;
       t += gridDim.x / Cfg::kCluster, ++turn) {
    if (turn % 2 != consumer) continue;
    ring.skip_to(turn * k_blocks);
    float d[2][Cfg::kTileN / 2];
    // NOTE: the first wgmma reads no sums, but ptxas keeps the last tile's alive until it: with the
    // epilogue of gate_up_grad it then spills them.
    if constexpr (Cfg::kGateGrad) clear<Cfg>(d);
    ptx::named_barrier_sync(kTensorBarrier + consumer, 256);
    const auto issued = [&] { ptx::named_barrier_arrive(kTensorBarrier + (consumer ^ 1), 256); };
    if (Cfg::kNarrowTiles && t >= p.order.whole) {
      multiply<Cfg, kColumnBox>(smem, ring, k_blocks, 0, d, issued);
    } else {
      multiply<Cfg, Cfg::kTileN>(smem, ring, k_blocks, 0, d, issued);
    }
    finish(turn, t, d);
  }
}

template <class Cfg>
__device__ __forceinline__ void consume_pingpong(const GemmParams& p, const Smem<Cfg>& smem,
                                                 int consumer, int rank) {
  const bool leader = threadIdx.x % 128 == 0;
  if (consumer == 1) ptx::named_barrier_arrive(kOutTileBarrier + 0, 256);
  pingpong<Cfg>(p, smem, consumer, [&](int, int t, float(&d)[2][Cfg::kTileN / 2]) {
    const Tile tile = tile_at<Cfg>(p.order, t);
    ptx::named_barrier_sync(kOutTileBarrier + consumer, 256);
    put_outputs<Cfg, 2>(p, smem.out(), tile, first_row<Cfg>(tile, rank), consumer, d);
    if (leader) ptx::bulk_wait_read();
    ptx::named_barrier_sync(kOwnBarrier + consumer, 128);
    ptx::named_barrier_arrive(kOutTileBarrier + (consumer ^ 1), 256);
  });
  if (leader) ptx::bulk_wait();
}

template <class Cfg>
__device__ __forceinline__ void consume_cooperative(const GemmParams& p, const Smem<Cfg>& smem,
                                                    int consumer, int rank) {
  const int k_blocks = k_blocks_of<Cfg>(p);
  char* out = smem.out() + consumer * (Cfg::kOutTileBytes / 2);
  RingCursor<Cfg> ring;
  for (int t = blockIdx.x / Cfg::kCluster; t < p.order.tiles; t += gridDim.x / Cfg::kCluster) {
    const Tile tile = tile_at<Cfg>(p.order, t);
    float d[1][Cfg::kTileN / 2];
    multiply<Cfg, Cfg::kTileN>(smem, ring, k_blocks, consumer * 64, d, [] {});
    const int m0 = first_row<Cfg>(tile, rank) + consumer * 64;
    put_outputs<Cfg, 1>(p, out, tile, m0, consumer, d);
  }
  if (threadIdx.x % 128 == 0) ptx::bulk_wait();
}

// Turns of this CTA that are whole tiles: the first ones.
template <class Cfg>
__device__ __forceinline__ int whole_turns(const GemmParams& p) {
  const int clusters = static_cast<int>(gridDim.x) / Cfg::kCluster;
  const int first = static_cast<int>(blockIdx.x) / Cfg::kCluster;
  return (max(p.order.whole - first, 0) + clusters - 1) / clusters;
}

// Fetches the pieces of g and u, 64 rows x 64 columns, of all tiles of the CTA, each into its slot
// when the stores from there have read it. In a tile the upper rows of a column box come first,
// then the lower. One thread.
template <class Cfg>
__device__ __forceinline__ void fetch_pieces(const GemmParams& p, const Smem<Cfg>& smem, int rank) {
  tile::RingCursor<Cfg::kSlots> ring;
  ring.parity = 1;  // the first pass finds every slot free
  ptx::wait_for_prerequisites();
  const int clusters = static_cast<int>(gridDim.x) / Cfg::kCluster;
  for (int t = blockIdx.x / Cfg::kCluster; t < p.order.tiles; t += clusters) {
    const Tile tile = tile_at<Cfg>(p.order, t);
    for (int piece = 0; piece < (tile.narrow ? 2 : Cfg::kPieces); ++piece) {
      ptx::mbarrier_wait(smem.drained(ring.stage), ring.parity);
      std::uint64_t& full = smem.inputs(ring.stage);
      ptx::mbarrier_arrive_expect_bytes(full, 2 * Cfg::kPieceBytes);
      const std::int32_t at[5] = {first_col<Cfg>(tile) + piece / 2 * kColumnBox,
                                  first_row<Cfg>(tile, rank) + piece % 2 * 64};
      ptx::tensor_copy<1, 2>(smem.g(ring.stage), p.g, at, full);
      ptx::tensor_copy<1, 2>(smem.u(ring.stage), p.u, at, full);
      ring.advance();
    }
  }
}

// A consumer's tile of gate_up_grad.
struct GradTile {
  int row;  // its first
  int col;
  bool narrow;
  int consumer;
  int first;  // its first piece, in the CTA's count
};

// Stores dg and du, or h, of a piece of the tile.
template <class Cfg>
__device__ __forceinline__ void store_piece(const GemmParams& p, const Smem<Cfg>& smem,
                                            const GradTile& t, int piece, bool hidden) {
  const int slot = (t.first + piece) % Cfg::kSlots;
  const int col = t.col + piece / 2 * kColumnBox;
  const int row = t.row + piece % 2 * 64;
  store_box(p, hidden ? p.out : p.dg, smem.g(slot), col, row);
  if (!hidden) store_box(p, p.du, smem.u(slot), col, row);
}

// Writes h of a piece by hidden(g) over its dg, which every store has read by then.
template <class Cfg, class Hidden>
__device__ __forceinline__ void put_hidden(const GemmParams& p, const Smem<Cfg>& smem,
                                           const GradTile& t, int piece, const Hidden& hidden) {
  if (threadIdx.x % 128 == 0) ptx::bulk_wait_read();
  if (p.writes_h == 0) return;
  ptx::named_barrier_sync(kOwnBarrier + t.consumer, 128);
  hidden(smem.g((t.first + piece) % Cfg::kSlots));
}

// A piece of a tile: dg and du over g and u by rows(g), h of the piece before by hidden(g), then
// their stores. The stores before those have read by then: the slot of the piece before the last is
// free. Small stores, early: the ring's copies wait behind them.
template <class Cfg, class Rows, class Hidden>
__device__ __forceinline__ void put_piece(const GemmParams& p, const Smem<Cfg>& smem,
                                          const GradTile& t, int piece, const Rows& rows,
                                          const Hidden& hidden) {
  const int count = t.first + piece;
  const int slot = count % Cfg::kSlots;
  ptx::mbarrier_wait(smem.inputs(slot), count / Cfg::kSlots & 1);
  rows(smem.g(slot));
  if (piece > 0) put_hidden<Cfg>(p, smem, t, piece - 1, hidden);
  ptx::fence_shared_for_async();
  ptx::named_barrier_sync(kOwnBarrier + t.consumer, 128);
  if (threadIdx.x % 128 != 0) return;
  store_piece<Cfg>(p, smem, t, piece, false);
  if (piece > 0 && p.writes_h != 0) store_piece<Cfg>(p, smem, t, piece - 1, true);
  ptx::bulk_commit();
  if (piece > 1) ptx::mbarrier_arrive(smem.drained((count - 2) % Cfg::kSlots));
}

// What is left behind the last piece: its h, and the last two slots.
template <class Cfg, class Hidden>
__device__ __forceinline__ void put_last(const GemmParams& p, const Smem<Cfg>& smem,
                                         const GradTile& t, int piece, const Hidden& hidden) {
  const bool leader = threadIdx.x % 128 == 0;
  put_hidden<Cfg>(p, smem, t, piece, hidden);
  const int count = t.first + piece;
  if (leader) ptx::mbarrier_arrive(smem.drained((count - 1) % Cfg::kSlots));
  if (p.writes_h != 0) {
    ptx::fence_shared_for_async();
    ptx::named_barrier_sync(kOwnBarrier + t.consumer, 128);
    if (leader) {
      store_piece<Cfg>(p, smem, t, piece, true);
      ptx::bulk_commit();
      ptx::bulk_wait_read();
    }
  }
  if (leader) ptx::mbarrier_arrive(smem.drained(count % Cfg::kSlots));
}

// Moves the sums of the next column box to the front.
template <class Cfg>
__device__ __forceinline__ void next_box(float (&d)[Cfg::kTileN / 2]) {
  constexpr int kSums = kColumnBox / 2;
#pragma unroll
  for (int i = 0; i < Cfg::kTileN / 2 - kSums; ++i) d[i] = d[i + kSums];
}

// The pieces of a tile. Plain silu, what most models use, takes the sums where they are. All other
// gates share one body for every box: unrolled, their instructions outgrow the SM's cache, which
// took up to twice the time (docs/kernels/gate_up_grad.md). Kernels of their own: side by side in
// one, ptxas spills for both; apart, nothing of plain silu's.
template <class Cfg>
__device__ __forceinline__ void put_pieces(const GemmParams& p, const Smem<Cfg>& smem,
                                           const GradTile& t, float (&d)[2][Cfg::kTileN / 2]) {
  constexpr int kBoxes = Cfg::kTileN / kColumnBox;
  using Sums = float[Cfg::kTileN / 2];
  if constexpr (Cfg::kPlainSilu) {
    const Gate silu = tile::plain_gate(Activation::kSilu);
    const auto put = [&](int piece, Sums& sums, Sums& before) {
      put_piece<Cfg>(
          p, smem, t, piece, [&](char* g) { grad_rows<Cfg>(silu, g, piece / 2, sums); },
          [&](char* g) { grad_h_rows<Cfg>(g, (piece - 1) / 2, before); });
    };
    const auto put_end = [&](int piece) {
      put_last<Cfg>(p, smem, t, piece, [&](char* g) { grad_h_rows<Cfg>(g, piece / 2, d[1]); });
    };
    put(0, d[0], d[1]);
    put(1, d[1], d[0]);
    if (t.narrow) {
      put_end(1);
    } else {
#pragma unroll
      for (int box = 1; box < kBoxes; ++box) {
        put(2 * box, d[0], d[1]);
        put(2 * box + 1, d[1], d[0]);
      }
      put_end(2 * kBoxes - 1);
    }
  } else {
    const bool plain = math::is_plain(p.gate);
    const auto put = [&](int piece, Sums& sums, Sums& before) {
      put_piece<Cfg>(
          p, smem, t, piece,
          [&](char* g) {
            tile::with_gate(p.gate, plain,
                            [&](const Gate& gate) { grad_rows<Cfg>(gate, g, 0, sums); });
          },
          [&](char* g) { grad_h_rows<Cfg>(g, 0, before); });
    };
    const int boxes = t.narrow ? 1 : kBoxes;
#pragma unroll 1
    for (int box = 0; box < boxes; ++box) {
      put(2 * box, d[0], d[1]);
      if (box > 0) next_box<Cfg>(d[1]);
      put(2 * box + 1, d[1], d[0]);
      next_box<Cfg>(d[0]);
    }
    put_last<Cfg>(p, smem, t, 2 * boxes - 1, [&](char* g) { grad_h_rows<Cfg>(g, 0, d[1]); });
  }
}

// gate_up_grad. The slots pass from consumer to consumer with their next contents.
template <class Cfg>
__device__ __forceinline__ void consume_gate_grad(const GemmParams& p, const Smem<Cfg>& smem,
                                                  int consumer, int rank) {
  const bool leader = threadIdx.x % 128 == 0;
  if (consumer == 1) ptx::named_barrier_arrive(kOutTileBarrier + 0, 256);
  pingpong<Cfg>(p, smem, consumer, [&](int turn, int t, float(&d)[2][Cfg::kTileN / 2]) {
    const Tile tile = tile_at<Cfg>(p.order, t);
    const int whole = min(turn, whole_turns<Cfg>(p));
    const int first = whole * Cfg::kPieces + (turn - whole) * 2;
    ptx::named_barrier_sync(kOutTileBarrier + consumer, 256);
    put_pieces<Cfg>(
        p, smem, {first_row<Cfg>(tile, rank), first_col<Cfg>(tile), tile.narrow, consumer, first},
        d);
    ptx::named_barrier_arrive(kOutTileBarrier + (consumer ^ 1), 256);
  });
  if (leader) ptx::bulk_wait();
}

// A weight's gradient: whole sectors from registers, no out tile.
template <class Cfg>
__device__ __forceinline__ void consume_weight_grad(const GemmParams& p, const Smem<Cfg>& smem,
                                                    int consumer, int rank) {
  pingpong<Cfg>(p, smem, consumer, [&](int, int t, float(&d)[2][Cfg::kTileN / 2]) {
    const Tile tile = tile_at<Cfg>(p.order, t);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      add_grad_rows<Cfg>(p, tile, first_row<Cfg>(tile, rank) + 64 * half, d[half]);
    }
  });
}

template <class Cfg>
__global__ void __launch_bounds__(kThreads, 1) gemm(const __grid_constant__ GemmParams p) {
  static_assert(KernelConfig<Cfg>);
  extern __shared__ __align__(1024) char raw[];
  const Smem<Cfg> smem{raw};
  const int warpgroup = warpgroup_index();
  const int rank = Cfg::kCluster > 1 ? static_cast<int>(ptx::cluster_rank()) : 0;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Cfg::kStages; ++s) {
      ptx::mbarrier_init(smem.full(s), 1);
      ptx::mbarrier_init(smem.empty(s), Cfg::kCluster * (Cfg::kPingpong ? 1 : 2));
    }
    if constexpr (Cfg::kGateGrad) {
      for (int slot = 0; slot < 2 * Cfg::kSlots; ++slot) ptx::mbarrier_init(smem.inputs(slot), 1);
    }
    ptx::fence_mbarrier_init();
  }
  if constexpr (Cfg::kCluster > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
  if (warpgroup == 2) {
    ptx::give_registers<Cfg::kProducerRegisters>();
    if (threadIdx.x == 256) produce<Cfg>(p, smem, rank);
    if constexpr (Cfg::kGateGrad) {
      if (threadIdx.x == 288) fetch_pieces<Cfg>(p, smem, rank);
    }
    __syncwarp();
  } else {
    ptx::take_registers<Cfg::kConsumerRegisters>();
    ptx::wait_for_prerequisites();  // the out tile may be read by the kernel before this one
    if constexpr (Cfg::kGateGrad) {
      consume_gate_grad<Cfg>(p, smem, warpgroup, rank);
    } else if constexpr (Cfg::kFromRegisters) {
      consume_weight_grad<Cfg>(p, smem, warpgroup, rank);
    } else if constexpr (Cfg::kPingpong) {
      consume_pingpong<Cfg>(p, smem, warpgroup, rank);
    } else {
      consume_cooperative<Cfg>(p, smem, warpgroup, rank);
    }
  }
  // A CTA must not leave while its peer may still signal or write its shared memory.
  if constexpr (Cfg::kCluster > 1) ptx::cluster_sync();
}

}  // namespace sluice::cuda::sm90
