// SPDX-License-Identifier: Apache-2.0
// gate_up and down for few tokens on Hopper: mainloop.cuh under the stream-K schedule
// (stream_k.hpp), which balances the bytes of the weights over the SMs. Budget, drawing and log:
// docs/kernels/gate_up.md.
//
// roles, one CTA an SM
//   warpgroups 0 ..  consumers, of 64 rows of x each: WGMMA, fix-up, stores from registers
//   last warpgroup   producer: one thread issues every TMA load
// shared memory
//   stages x { A: rows x 64, B: N x 64 } elements, 128-byte swizzle | mbarriers
//   Of a row tile that ends behind x a copy brings x's rows alone. The rows behind them hold what
//   was there, NaNs included: row i of a product depends on row i of A alone, and those rows are
//   neither stored nor left as partial sums.
// mbarriers, per stage, as in gemm.cuh
//   full[s]   1 arrival (the producer's expect_tx) and the stage's bytes; consumers wait
//   empty[s]  one arrival for each consumer warpgroup of each CTA of the cluster that reads the
//             stage; producers wait
// tickets, in the workspace header
//   A warp whose tile is cut leaves its sums in the workspace and takes a ticket; whoever takes the
//   last adds all pieces up in the order of k and finishes the tile. Nobody waits for another CTA.
#pragma once

#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/sm90/mainloop.cuh"
#include "cuda/sm90/stream_k_params.hpp"
#include "cuda/tile/grid_barrier.cuh"

namespace sluice::cuda::sm90 {

template <class Cfg>
concept StreamKConfig = requires {
  requires Cfg::kTileN % 32 == 0 && Cfg::kTileN <= 256;
  requires Cfg::kCluster == 1 || Cfg::kCluster == 2;
  requires Cfg::kConsumers * 64 == Cfg::kRows;
  requires Cfg::kSmemBytes <= 227 * 1024;
};

// The epilogue goes by turns of 32 weight rows, all by one body: a CTA comes to it once or twice a
// launch, and instructions that other kernels have pushed out of the caches cost more than moving
// the sums to the front (docs/kernels/gate_up.md). A turn as a tile of its own:
template <class Cfg>
struct Turn : Cfg {
  static constexpr int kTurns = Cfg::kTileN / 32;
  static constexpr int kSums = 32 / 2;  // a thread
  static constexpr int kTileN = 32;
  static constexpr int kOutCols = Cfg::kOutCols / kTurns;
};

// A position in the line of units.
struct UnitCursor {
  int index;  // of the tile
  int k;      // unit of the tile
  Tile tile;

  __device__ __forceinline__ UnitCursor(const StreamKParams& p, int unit)
      : index(unit / p.schedule.k_units),
        k(unit % p.schedule.k_units),
        tile(tile_at(p.gemm.order, index, p.gemm.order.cut.whole)) {}
  __device__ __forceinline__ void advance(const StreamKParams& p) {
    if (++k < p.schedule.k_units) return;
    k = 0;
    tile = tile_at(p.gemm.order, ++index, p.gemm.order.cut.whole);
  }
};

template <class Cfg>
__device__ __forceinline__ int stream_k_row(Tile tile, int rank) {
  return (tile.m * Cfg::kCluster + rank) * Cfg::kRows;
}

template <class Cfg>
__device__ __forceinline__ InputTile input_tile(const StreamKParams& p, Tile tile, int rank) {
  return {p.gemm.m, stream_k_row<Cfg>(tile, rank), Cfg::kRows};
}

template <class Cfg>
__device__ __forceinline__ void load_rows(const StreamKParams& p, const Smem<Cfg>& smem, int stage,
                                          const UnitCursor& at, int rank) {
  const InputTile input = input_tile<Cfg>(p, at.tile, rank);
  const CUtensorMap& map = input.map(p.gemm.x, p.gemm.x_tail, Cfg::kRows);
  load_input<Cfg>(map, smem, stage, at.k * kTileK, input);
}

template <class Cfg>
__device__ __forceinline__ void load_columns(const StreamKParams& p, const Smem<Cfg>& smem,
                                             int stage, const UnitCursor& at, int rank) {
  const int bytes = Cfg::kBBytes + input_tile<Cfg>(p, at.tile, rank).stage_bytes();
  ptx::mbarrier_arrive_expect_bytes(smem.full(stage), bytes);
  load_weights<Cfg>(p.gemm, p.gemm.w, smem, stage, at.k * kTileK, at.tile, rank);
}

// The ring is filled with weights before the wait for x, where no one writes them.
template <class Cfg>
__device__ __forceinline__ void produce_stream(const StreamKParams& p, const Smem<Cfg>& smem,
                                               int worker, int rank) {
  const int begin = p.schedule.begin(worker);
  const int units = p.schedule.begin(worker + 1) - begin;
  const int early = p.gemm.weights_static != 0 ? min(Cfg::kStages, units) : 0;
  const UnitCursor first(p, begin);
  UnitCursor at = first;
  for (int i = 0; i < early; ++i, at.advance(p)) load_columns<Cfg>(p, smem, i, at, rank);
  ptx::wait_for_prerequisites();
  at = first;
  for (int i = 0; i < early; ++i, at.advance(p)) load_rows<Cfg>(p, smem, i, at, rank);
  RingCursor<Cfg> ring;
  ring.parity = 1;  // the first pass over the ring finds every stage free
  for (int i = 0; i < early; ++i) ring.advance();
  for (int i = early; i < units; ++i, at.advance(p)) {
    ptx::mbarrier_wait(smem.empty(ring.stage), ring.parity);
    load_columns<Cfg>(p, smem, ring.stage, at, rank);
    load_rows<Cfg>(p, smem, ring.stage, at, rank);
    ring.advance();
  }
}

// Who shares a tile with whom: one warp's view.
struct Pieces {
  int first;  // workers first .. last
  int last;
  int worker;  // this one
  int tile;
};

// Where a worker leaves 64 rows of its sums, `block` of a tile's: this thread's first four floats,
// the next ones 128 vectors on.
template <class Cfg>
__device__ __forceinline__ float4* piece(const StreamKParams& p, int tile, int worker, int block,
                                         int rank) {
  constexpr int kVectors = Cfg::kTileN / 8;  // of a thread and 64 rows
  const long long slot = p.schedule.slot(worker, tile) * Cfg::kCluster + rank;
  return reinterpret_cast<float4*>(p.partials) +
         (slot * Cfg::kConsumers + block) * (kVectors * 128) + threadIdx.x % 128;
}

// Leaves a warp's sums of a cut tile for the others and takes a ticket. True in the warp that takes
// the last one and finishes the tile; what the others left is then there to read.
template <class Cfg>
__device__ __forceinline__ bool leave_piece(const StreamKParams& p, const Pieces& pieces, int block,
                                            int rank, const float (&d)[Cfg::kTileN / 2]) {
  const int lane = threadIdx.x % 32;
  // A byte a warp; the word belongs to the worker that holds the tile's first piece, since no two
  // tiles can share that one.
  const int owner = (pieces.first * Cfg::kCluster + rank) * Cfg::kConsumers + block;
  std::uint32_t& word = p.header->tickets[owner];
  const int shift = static_cast<int>(threadIdx.x) % 128 / 32 * 8;
  const int others = pieces.last - pieces.first;
  const auto taken = [&](std::uint32_t value) { return static_cast<int>(value >> shift & 0xFF); };
  // Seen all others: nothing to leave, no ticket to take.
  std::uint32_t before = lane == 0 ? tile::load_acquire(&word) : 0;
  int count = __shfl_sync(0xFFFFFFFF, taken(before), 0);
  int mine = 0;
  if (count != others) {
    float4* to = piece<Cfg>(p, pieces.tile, pieces.worker, block, rank);
#pragma unroll
    for (int i = 0; i < Cfg::kTileN / 8; ++i) {
      __stcg(to + i * 128, make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]));
    }
    __syncwarp();
    if (lane == 0) before = tile::add_release(&word, 1U << shift);
    count = __shfl_sync(0xFFFFFFFF, taken(before), 0);
    if (count != others) return false;
    mine = 1;
  }
  __syncwarp();  // what lane 0 acquired holds for all
  // The next launch finds the field at 0.
  if (lane == 0) {
    tile::add_release(&word, 0U - (static_cast<std::uint32_t>(others + mine) << shift));
  }
  return true;
}

// Adds up all pieces of one turn in the order of k; `sums` are this worker's before, the tile's
// after. Loads of several pieces are under way at once: one after the other they would take a trip
// to L2 each.
template <class Cfg>
__device__ __forceinline__ void add_pieces(const StreamKParams& p, const Pieces& pieces, int block,
                                           int rank, int turn, float (&sums)[Turn<Cfg>::kSums]) {
  constexpr int kVectors = Turn<Cfg>::kSums / 4;
  constexpr int kAtOnce = Cfg::kPiecesAtOnce;
  float total[Turn<Cfg>::kSums] = {};
  for (int from = pieces.first; from <= pieces.last; from += kAtOnce) {
    float4 loaded[kAtOnce][kVectors];
#pragma unroll
    for (int w = 0; w < kAtOnce; ++w) {
      if (from + w > pieces.last || from + w == pieces.worker) continue;
      const float4* source =
          piece<Cfg>(p, pieces.tile, from + w, block, rank) + turn * (kVectors * 128);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) loaded[w][i] = __ldcg(source + i * 128);
    }
#pragma unroll
    for (int w = 0; w < kAtOnce; ++w) {
      if (from + w > pieces.last) continue;
      const bool own = from + w == pieces.worker;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        total[4 * i] += own ? sums[4 * i] : loaded[w][i].x;
        total[4 * i + 1] += own ? sums[4 * i + 1] : loaded[w][i].y;
        total[4 * i + 2] += own ? sums[4 * i + 2] : loaded[w][i].z;
        total[4 * i + 3] += own ? sums[4 * i + 3] : loaded[w][i].w;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < Turn<Cfg>::kSums; ++i) sums[i] = total[i];
}

// Writes a warp's 16 rows of the output from row `row0`; values as for store_rows().
template <class Cfg, class Values>
__device__ __forceinline__ void write_rows(const StreamKParams& p, const OutputRows& out, Tile tile,
                                           int row0, const Values& values) {
  const int lane = threadIdx.x % 32;
  const int col0 = tile.n * Cfg::kOutCols + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = row0 + 8 * i + lane / 4;
    if (row >= p.gemm.m) continue;
    auto* line = reinterpret_cast<std::uint32_t*>(out.base + row * out.row_bytes + col0 * 2LL);
#pragma unroll
    for (int c = 0; c < Cfg::kOutCols / 8; ++c) {
      if (col0 + 8 * c < p.gemm.n) line[4 * c] = pack<typename Cfg::Element>(values(c, i));
    }
  }
}

// From sums to outputs: a warp's 16 rows from row `row0`, the columns of one turn.
template <class Cfg>
__device__ __forceinline__ void finish_turn(const StreamKParams& p, Tile tile, int row0,
                                            float (&d)[Cfg::kTileN / 2]) {
  const GemmParams& gemm = p.gemm;
  if constexpr (Cfg::kKind == GemmKind::kGateUp) {
    add_biases<Cfg>(gemm, tile, d);
    const PairOrder order = pair_order(gemm);
    tile::with_epilogue_gate(gemm.gate, [&](const Gate& gate) {
      write_rows<Cfg>(p, p.out, tile, row0,
                      [&](int c, int i) { return gated_pair<Cfg>(order, gate, d, c, i); });
    });
    if (gemm.save == 0) return;
    write_rows<Cfg>(p, p.g, tile, row0,
                    [&](int c, int i) { return half_pair<Cfg>(order, false, d, c, i); });
    write_rows<Cfg>(p, p.u, tile, row0,
                    [&](int c, int i) { return half_pair<Cfg>(order, true, d, c, i); });
  } else {
    const int lane = threadIdx.x % 32;
    const int col0 = tile.n * Cfg::kOutCols + lane % 4 * 2;
    write_rows<Cfg>(p, p.out, tile, row0, [&](int c, int i) {
      return plain_pair<Cfg>(gemm, d, c, i, row0 + 8 * i + lane / 4, col0 + 8 * c);
    });
  }
}

// A warp's 16 rows of a tile, a whole one or the last piece of a cut one, from row `row0`.
template <class Cfg>
__device__ __forceinline__ void finish_rows(const StreamKParams& p, const Pieces& pieces, Tile tile,
                                            int block, int rank, int row0,
                                            float (&d)[Cfg::kTileN / 2]) {
  using Columns = Turn<Cfg>;
#pragma unroll 1
  for (int turn = 0; turn < Columns::kTurns; ++turn) {
    float sums[Columns::kSums];
#pragma unroll
    for (int i = 0; i < Columns::kSums; ++i) sums[i] = d[i];
    if (pieces.first != pieces.last) add_pieces<Cfg>(p, pieces, block, rank, turn, sums);
    finish_turn<Columns>(p, {tile.m, tile.n * Columns::kTurns + turn}, row0, sums);
#pragma unroll
    for (int i = 0; i < Cfg::kTileN / 2 - Columns::kSums; ++i) d[i] = d[i + Columns::kSums];
  }
}

// The segments of a worker's share, one a tile: 64 rows of each are this consumer's.
template <class Cfg>
__device__ __forceinline__ void consume_stream(const StreamKParams& p, const Smem<Cfg>& smem,
                                               int consumer, int worker, int rank) {
  const StreamK& s = p.schedule;
  const int end = s.begin(worker + 1);
  const int warp_row = static_cast<int>(threadIdx.x) % 128 / 32 * 16;
  RingCursor<Cfg> ring;
  for (int unit = s.begin(worker); unit < end;) {
    const UnitCursor at(p, unit);
    const int units = min(end - unit, s.k_units - at.k);
    unit += units;
    float d[1][Cfg::kTileN / 2];
    multiply<Cfg, Cfg::kTileN>(smem, ring, units, consumer * 64, d, [] {});
    ptx::wgmma_fence_accumulators(d[0]);
    const int row0 = stream_k_row<Cfg>(at.tile, rank) + consumer * 64 + warp_row;
    if (row0 >= p.gemm.m) continue;  // the same in every piece of the tile
    Pieces pieces{worker, worker, worker, at.index};
    if (units < s.k_units) {
      pieces.first = s.first_holder(at.index);
      pieces.last = s.last_holder(at.index);
      if (!leave_piece<Cfg>(p, pieces, consumer, rank, d[0])) continue;
    }
    finish_rows<Cfg>(p, pieces, at.tile, consumer, rank, row0, d[0]);
  }
}

template <class Cfg>
__global__ void __launch_bounds__(Cfg::kThreads, 1)
    stream_k(const __grid_constant__ StreamKParams p) {
  static_assert(StreamKConfig<Cfg>);
  extern __shared__ __align__(1024) char raw[];
  const Smem<Cfg> smem{raw};
  const int rank = Cfg::kCluster > 1 ? static_cast<int>(ptx::cluster_rank()) : 0;
  const int worker = static_cast<int>(blockIdx.x) / Cfg::kCluster;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Cfg::kStages; ++i) {
      ptx::mbarrier_init(smem.full(i), 1);
      ptx::mbarrier_init(smem.empty(i), Cfg::kCluster * Cfg::kConsumers);
    }
    ptx::fence_mbarrier_init();
  }
  if constexpr (Cfg::kCluster > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
  ptx::launch_dependents();  // they fill their rings while this kernel ends
  const int consumer = warpgroup_index();
  if (consumer == Cfg::kConsumers) {
    ptx::give_registers<Cfg::kProducerRegisters>();
    if (threadIdx.x == Cfg::kConsumers * 128) produce_stream<Cfg>(p, smem, worker, rank);
    __syncwarp();
  } else {
    ptx::take_registers<Cfg::kConsumerRegisters>();
    ptx::wait_for_prerequisites();  // partial sums and outputs may be read, bias and residual
                                    // written
    consume_stream<Cfg>(p, smem, consumer, worker, rank);
  }
  // A CTA must not leave while its peer may still signal or write its shared memory.
  if constexpr (Cfg::kCluster > 1) ptx::cluster_sync();
}

}  // namespace sluice::cuda::sm90
