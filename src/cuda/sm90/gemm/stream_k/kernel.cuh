// SPDX-License-Identifier: Apache-2.0
// gate_up for few tokens on Hopper: mainloop.cuh under the stream-K schedule
// (schedule.hpp), which balances the bytes of the weights over the SMs. Budget and drawing:
// docs/kernels/stream_k.md.
//
// roles, one CTA an SM; swapped, the two of a cluster have neighbouring tiles of weights, and a
// half each of x's rows to send to both
//   warpgroups 0 ..  consumers: WGMMA, fix-up, stores from registers; of 64 rows of x each, or,
//                    swapped, of 128 weight rows and all of x's rows as columns, stored by TMA
//   last warpgroup   producer: one thread issues every TMA load
// shared memory
//   stages x { A: rows x 64, B: N x 64 } elements, 128-byte swizzle | mbarriers
//   Of a row tile that ends behind x a copy brings x's rows alone. The rows behind them hold what
//   was there, NaNs included: row i of a product depends on row i of A alone, and those rows are
//   neither stored nor left as partial sums.
//   swapped: stages x { B, A } | 8 warps x 2 boxes of 16 tokens x 16 columns | mbarriers
//   Tokens behind x are columns of a product, of which the same holds: TMA clips them.
// mbarriers, per stage, as in gemm.cuh
//   full[s]   1 arrival (the producer's expect_tx) and the stage's bytes; consumers wait
//   empty[s]  one arrival for each consumer warpgroup of the cluster; the producer waits
// tickets, in the workspace header
//   A warp whose tile is cut leaves its sums in the workspace and takes a ticket; whoever takes the
//   last adds all pieces up in the order of k and finishes the tile. No worker waits for another.
#pragma once

#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/ptx/ordered.cuh"
#include "cuda/sm90/gemm/mainloop.cuh"
#include "cuda/sm90/gemm/row_epilogue.cuh"
#include "cuda/sm90/gemm/stream_k/params.hpp"

namespace sluice::cuda::sm90::gemm {

template <class Cfg>
concept StreamKConfig = requires {
  requires Cfg::kTileN % 32 == 0 && Cfg::kTileN <= 256;
  requires Cfg::kKind == GemmKind::kGateUp&& Cfg::kWeightParts == 1;
  requires Cfg::kSwapAB || Cfg::kConsumers * 64 == Cfg::kRows;
  requires Cfg::kInputParts == Cfg::kCluster;
  requires Cfg::kRows % (8 * Cfg::kInputParts) == 0;  // the shares of x are whole swizzle atoms
  // Rows of a WGMMA behind the tile's weights lie in the same stage's x.
  requires !Cfg::kSwapAB || (Cfg::kConsumers * 128 - Cfg::kTileN) * kTileK * 2 <= Cfg::kABytes;
  requires Cfg::kSums % Cfg::kPassSums == 0;
  requires Cfg::kSmemBytes <= kMaxSmemBytes;
};

// A worker's CTAs: consumers of all of them.
template <class Cfg>
inline constexpr int kBlocks = Cfg::kCluster* Cfg::kConsumers;

// A position in the line of units, and the tile of this CTA.
template <class Cfg>
struct UnitCursor {
  int index;  // of the tile
  int k;      // unit of the tile
  int rank;   // in the cluster
  Tile tile;

  __device__ __forceinline__ UnitCursor(const StreamKParams& p, int unit, int cta)
      : index(unit / p.schedule.k_units), k(unit % p.schedule.k_units), rank(cta) {
    set_tile(p);
  }
  __device__ __forceinline__ void advance(const StreamKParams& p) {
    if (++k < p.schedule.k_units) return;
    k = 0;
    ++index;
    set_tile(p);
  }

 private:
  __device__ __forceinline__ void set_tile(const StreamKParams& p) {
    tile = tile_at(p.gemm.order, index, p.gemm.order.cut.whole);
    if constexpr (Cfg::kCluster > 1) tile.n = tile.n * Cfg::kCluster + rank;
  }
};

template <class Cfg>
__device__ __forceinline__ InputTile input_tile(const StreamKParams& p, Tile tile) {
  return {p.gemm.m, tile.m * Cfg::kRows, Cfg::kRows};
}

template <class Cfg>
__device__ __forceinline__ void load_rows(const StreamKParams& p, const Smem<Cfg>& smem, int stage,
                                          const UnitCursor<Cfg>& at) {
  const InputTile input = input_tile<Cfg>(p, at.tile);
  const CUtensorMap& map =
      Cfg::kInputParts > 1 ? p.gemm.x : input.map(p.gemm.x, p.gemm.x_tail, Cfg::kRows);
  load_input<Cfg>(map, smem, stage, at.k * kTileK, input, at.rank);
}

template <class Cfg>
__device__ __forceinline__ void load_columns(const StreamKParams& p, const Smem<Cfg>& smem,
                                             int stage, const UnitCursor<Cfg>& at,
                                             std::uint64_t policy) {
  const int bytes = Cfg::kBBytes + input_tile<Cfg>(p, at.tile).stage_bytes(Cfg::kInputParts);
  ptx::mbarrier_arrive_expect_bytes(smem.full(stage), bytes);
  load_weights<Cfg>(p.gemm, p.gemm.w, smem, stage, at.k * kTileK, at.tile, /*rank=*/0, policy);
}

// The ring is filled with weights before the wait for x, where no one writes them.
template <class Cfg>
__device__ __forceinline__ void produce_stream(const StreamKParams& p, const Smem<Cfg>& smem,
                                               int worker, int rank) {
  const int begin = p.schedule.begin(worker);
  const int units = p.schedule.begin(worker + 1) - begin;
  // As a rule weights are read once, or by all row tiles at the same time: what is written
  // stays in L2 instead. NOTE: a policy of evict_normal is not the same as none. By it products of
  // 1024 and 4096 tokens, in waves, took 11 and 20 % longer (docs/kernels/log/gate_up.md).
  const std::uint64_t policy = ptx::evict_first_policy();
  const int early = p.gemm.weights_static != 0 ? min(Cfg::kStages, units) : 0;
  const UnitCursor<Cfg> first(p, begin, rank);
  UnitCursor<Cfg> at = first;
  for (int i = 0; i < early; ++i, at.advance(p)) load_columns<Cfg>(p, smem, i, at, policy);
  ptx::wait_for_prerequisites();
  at = first;
  for (int i = 0; i < early; ++i, at.advance(p)) load_rows<Cfg>(p, smem, i, at);
  RingCursor<Cfg> ring;
  ring.parity = 1;  // the first pass over the ring finds every stage free
  for (int i = 0; i < early; ++i) ring.advance();
  for (int i = early; i < units; ++i, at.advance(p)) {
    ptx::mbarrier_wait(smem.empty(ring.stage), ring.parity);
    load_columns<Cfg>(p, smem, ring.stage, at, policy);
    load_rows<Cfg>(p, smem, ring.stage, at);
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

// A thread's sums of a tile: those of the WGMMAs of its kHalves times 64 rows.
template <class Cfg>
using Sums = float[Cfg::kHalves][Cfg::kSums];

// Where a worker leaves the sums of one consumer, `block` of its kBlocks: this thread's first four
// floats, the next ones 128 vectors on.
template <class Cfg>
__device__ __forceinline__ float4* piece(const StreamKParams& p, int tile, int worker, int block) {
  constexpr int kVectors = Cfg::kHalves * Cfg::kSums / 4;  // of a thread
  const long long slot = p.schedule.slot(worker, tile);
  return reinterpret_cast<float4*>(p.partials) + (slot * kBlocks<Cfg> + block) * (kVectors * 128) +
         threadIdx.x % 128;
}

// Leaves a warp's sums of a cut tile for the others and takes a ticket. True in the warp that takes
// the last one and finishes the tile; what the others left is then there to read.
template <class Cfg>
__device__ __forceinline__ bool leave_piece(const StreamKParams& p, const Pieces& pieces, int block,
                                            const Sums<Cfg>& d) {
  const int lane = threadIdx.x % 32;
  // A byte a warp; the word belongs to the worker that holds the tile's first piece, since no two
  // tiles can share that one.
  const int owner = pieces.first * kBlocks<Cfg> + block;
  std::uint32_t& word = p.header->tickets[owner];
  const int shift = static_cast<int>(threadIdx.x) % 128 / 32 * 8;
  const int others = pieces.last - pieces.first;
  const auto taken = [&](std::uint32_t value) { return static_cast<int>(value >> shift & 0xFF); };
  // Seen all others: nothing to leave, no ticket to take.
  std::uint32_t before = lane == 0 ? ptx::load_acquire(&word) : 0;
  int count = __shfl_sync(0xFFFFFFFF, taken(before), 0);
  int mine = 0;
  if (count != others) {
    float4* to = piece<Cfg>(p, pieces.tile, pieces.worker, block);
#pragma unroll
    for (int half = 0; half < Cfg::kHalves; ++half) {
      const float* sums = d[half];
#pragma unroll
      for (int i = 0; i < Cfg::kSums; i += 4) {
        __stcg(to, make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
        to += 128;
      }
    }
    __syncwarp();
    if (lane == 0) before = ptx::add_release(&word, 1U << shift);
    count = __shfl_sync(0xFFFFFFFF, taken(before), 0);
    if (count != others) return false;
    mine = 1;
  }
  __syncwarp();  // what lane 0 acquired holds for all
  // The next launch finds the field at 0.
  if (lane == 0) {
    ptx::add_release(&word, 0U - (static_cast<std::uint32_t>(others + mine) << shift));
  }
  return true;
}

// Vectors of a piece that are on their way at a time: as many as registers have room for, of those
// that divide a half.
template <class Cfg>
inline constexpr int kPieceVectors = [] {
  int vectors = Cfg::kSwapAB && Cfg::kSums < 80 ? 6 : 4;
  while (Cfg::kSums / 4 % vectors != 0) --vectors;
  return vectors;
}();

// Adds up all pieces in the order of k; `d` are this worker's sums before, the tile's after.
template <class Cfg>
__device__ __forceinline__ void add_pieces(const StreamKParams& p, const Pieces& pieces, int block,
                                           Sums<Cfg>& d) {
  constexpr int kVectors = kPieceVectors<Cfg>;
#pragma unroll
  for (int half = 0; half < Cfg::kHalves; ++half) {
#pragma unroll
    for (int first = 0; first < Cfg::kSums / 4; first += kVectors) {
      float* sums = d[half] + 4 * first;
      float total[4 * kVectors] = {};
#pragma unroll 1
      for (int from = pieces.first; from <= pieces.last; ++from) {
        if (from == pieces.worker) {
#pragma unroll
          for (int i = 0; i < 4 * kVectors; ++i) total[i] += sums[i];
          continue;
        }
        const float4* source =
            piece<Cfg>(p, pieces.tile, from, block) + (half * (Cfg::kSums / 4) + first) * 128;
        float4 loaded[kVectors];
#pragma unroll
        for (int i = 0; i < kVectors; ++i) loaded[i] = __ldcg(source + i * 128);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          total[4 * i] += loaded[i].x;
          total[4 * i + 1] += loaded[i].y;
          total[4 * i + 2] += loaded[i].z;
          total[4 * i + 3] += loaded[i].w;
        }
      }
#pragma unroll
      for (int i = 0; i < 4 * kVectors; ++i) sums[i] = total[i];
    }
  }
}

// Swapped, a warp's output leaves by TMA, a turn of tokens by 16 columns a box, from two boxes of
// shared memory by turns.
template <class Cfg>
struct TurnBoxes {
  static constexpr int kTokens = 2 * Cfg::kPassSums;
  static constexpr int kBytes = kTokens * 16 * 2;
  char* boxes;
  int sent = 0;

  // values(c, i) gives the pair of tokens 8 c + 2 (lane % 4) of the turn, of column 8 i + lane / 4.
  template <class Values>
  __device__ __forceinline__ void send(const CUtensorMap& map, int token0, int col0,
                                       const Values& values) {
    using Element = typename Cfg::Element;
    const int lane = threadIdx.x % 32;
    char* box = boxes + sent++ % 2 * kBytes;
    if (lane == 0) ptx::bulk_wait_read_but_one();
    __syncwarp();
    // Rows of 32 bytes, swizzled as out_offset() says. Matrices 0, 1 are columns 0 to 7, 8 to 15 of
    // 8 tokens; 2, 3 of the next 8.
    const int row = lane / 16 * 8 + lane % 8;
    char* line = box + row * 32 + ((lane / 8 ^ row / 4) % 2) * 16;
#pragma unroll
    for (int c = 0; c < kTokens / 8; c += 2) {
      ptx::stmatrix_x4_transposed(line + c * 8 * 32, pack<Element>(values(c, 0)),
                                  pack<Element>(values(c, 1)), pack<Element>(values(c + 1, 0)),
                                  pack<Element>(values(c + 1, 1)));
    }
    ptx::fence_shared_for_async();
    __syncwarp();
    if (lane == 0) {
      ptx::tensor_store_2d(map, box, col0, token0);
      ptx::bulk_commit();
    }
  }
};

// As finish_pass(), swapped: one turn of tokens of a warp's 16 columns from `col0`. The halves are
// gate and up, as the paired view has them.
template <class Cfg>
__device__ __forceinline__ void finish_tokens(const StreamKParams& p, TurnBoxes<Cfg>& boxes,
                                              int token0, int col0, float (&d)[2][Cfg::kPassSums]) {
  using Element = typename Cfg::Element;
  const GemmParams& gemm = p.gemm;
  const bool up_first = gemm.up_first != 0;
  if (gemm.bias0 != nullptr) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int col = col0 + 8 * i + static_cast<int>(threadIdx.x) % 32 / 4;
      const bool in = col < gemm.n;
      const Element zero = static_cast<Element>(0.0F);
      const float gate =
          static_cast<float>(in ? static_cast<const Element*>(gemm.bias0)[col] : zero);
      const float up = static_cast<float>(in ? static_cast<const Element*>(gemm.bias1)[col] : zero);
#pragma unroll
      for (int c = 0; c < Cfg::kPassSums; c += 4) {
#pragma unroll
        for (int x = 2 * i; x < 2 * i + 2; ++x) {
          d[0][c + x] += up_first ? up : gate;
          d[1][c + x] += up_first ? gate : up;
        }
      }
    }
  }
  const auto half = [&](bool up, int c, int i) -> Pair {
    const int at = 4 * c + 2 * i;
    const bool second = up != up_first;
    return {second ? d[1][at] : d[0][at], second ? d[1][at + 1] : d[0][at + 1]};
  };
  tile::with_epilogue_gate(gemm.gate, [&](const Gate& gate) {
    boxes.send(gemm.out, token0, col0,
               [&](int c, int i) { return gated<Cfg>(gate, half(false, c, i), half(true, c, i)); });
  });
  if (gemm.save == 0) return;
  boxes.send(gemm.g, token0, col0, [&](int c, int i) { return half(false, c, i); });
  boxes.send(gemm.u, token0, col0, [&](int c, int i) { return half(true, c, i); });
}

// What of a tile a warp finishes: 16 rows of x, or swapped 16 columns of h, and whether there is
// any of it, which is the same in every piece.
template <class Cfg>
struct WarpPart {
  int first;
  bool any;

  __device__ __forceinline__ WarpPart(const StreamKParams& p, Tile tile, int consumer) {
    const int in_tile = consumer * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16;
    if constexpr (Cfg::kSwapAB) {
      first = tile.n * Cfg::kOutCols + in_tile;
      any = in_tile < Cfg::kOutCols && first < p.gemm.n;
    } else {
      first = tile.m * Cfg::kRows + in_tile;
      any = first < p.gemm.m;
    }
  }
};

// The sums of one turn. Registers have no index: swapped, each turn has moves of its own; else the
// sums go on by one turn, whose registers ptxas allots without spilling.
template <class Cfg, int kTurn = 0>
__device__ __forceinline__ void take_turn(int turn, Sums<Cfg>& d,
                                          float (&sums)[Cfg::kHalves][Cfg::kPassSums]) {
  if (Cfg::kSwapAB && turn != kTurn) {
    if constexpr (kTurn + 1 < kAlternates<Cfg>) take_turn<Cfg, kTurn + 1>(turn, d, sums);
    return;
  }
#pragma unroll
  for (int half = 0; half < Cfg::kHalves; ++half) {
#pragma unroll
    for (int i = 0; i < Cfg::kPassSums; ++i) sums[half][i] = d[half][kTurn * Cfg::kPassSums + i];
  }
  if constexpr (!Cfg::kSwapAB) {
#pragma unroll
    for (int i = 0; i < Cfg::kSums - Cfg::kPassSums; ++i) d[0][i] = d[0][i + Cfg::kPassSums];
  }
}

// A warp's part of a tile, a whole one or the last piece of a cut one.
template <class Cfg>
__device__ __forceinline__ void finish_part(const StreamKParams& p, const Pieces& pieces, Tile tile,
                                            int block, int first, TurnBoxes<Cfg>& boxes,
                                            Sums<Cfg>& d) {
  if (pieces.first != pieces.last) add_pieces<Cfg>(p, pieces, block, d);
#pragma unroll 1
  for (int turn = 0; turn < kAlternates<Cfg>; ++turn) {
    const int token0 = turn * kPassTokens;
    if (Cfg::kSwapAB && token0 >= p.gemm.m) return;
    float sums[Cfg::kHalves][Cfg::kPassSums];
    take_turn<Cfg>(turn, d, sums);
    if constexpr (Cfg::kSwapAB) {
      finish_tokens<Cfg>(p, boxes, token0, first, sums);
    } else {
      finish_pass<Turn<Cfg>>(p, {tile.m, tile.n * kAlternates<Cfg> + turn}, first, sums[0]);
    }
  }
}

// The segments of a worker's share, one a tile: a part of each is this consumer's, 64 rows of x or
// swapped 64 columns of h.
template <class Cfg>
__device__ __forceinline__ void consume_stream(const StreamKParams& p, const Smem<Cfg>& smem,
                                               int consumer, int worker, int rank) {
  const int block = rank * Cfg::kConsumers + consumer;
  const StreamK& s = p.schedule;
  const int end = s.begin(worker + 1);
  RingCursor<Cfg> ring;
  TurnBoxes<Cfg> boxes{smem.out() + threadIdx.x / 32 * 2 * TurnBoxes<Cfg>::kBytes};
  for (int unit = s.begin(worker); unit < end;) {
    const UnitCursor<Cfg> at(p, unit, rank);
    const int units = min(end - unit, s.k_units - at.k);
    unit += units;
    Sums<Cfg> d;
    multiply<Cfg, 2 * Cfg::kSums>(smem, ring, units, consumer * Cfg::kHalves * 64, d, [] {});
#pragma unroll
    for (int half = 0; half < Cfg::kHalves; ++half) ptx::wgmma_fence_accumulators(d[half]);
    const WarpPart<Cfg> part(p, at.tile, consumer);
    if (!part.any) continue;
    Pieces pieces{worker, worker, worker, at.index};
    if (units < s.k_units) {
      pieces.first = s.first_holder(at.index);
      pieces.last = s.last_holder(at.index);
      if (!leave_piece<Cfg>(p, pieces, block, d)) continue;
    }
    finish_part<Cfg>(p, pieces, at.tile, block, part.first, boxes, d);
  }
  // Shared memory must outlive its readers; that stores are seen is the next launch's
  // wait_for_prerequisites(), as of every other store.
  if (Cfg::kSwapAB && threadIdx.x % 32 == 0) ptx::bulk_wait_read();
}

template <class Cfg>
__global__ void __launch_bounds__(Cfg::kThreads, 1)
    stream_k(const __grid_constant__ StreamKParams p) {
  static_assert(StreamKConfig<Cfg>);
  extern __shared__ __align__(1024) char raw[];
  const Smem<Cfg> smem{raw};
  const int worker = static_cast<int>(blockIdx.x) / Cfg::kCluster;
  const int rank = Cfg::kCluster > 1 ? static_cast<int>(ptx::cluster_rank()) : 0;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Cfg::kStages; ++i) {
      ptx::mbarrier_init(smem.full(i), 1);
      ptx::mbarrier_init(smem.empty(i), kBlocks<Cfg>);
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
    if (ptx::acts_for_warp(Cfg::kConsumers * 4)) produce_stream<Cfg>(p, smem, worker, rank);
    __syncwarp();
  } else {
    ptx::take_registers<Cfg::kConsumerRegisters>();
    ptx::wait_for_prerequisites();  // partial sums and outputs may be read, biases written
    consume_stream<Cfg>(p, smem, consumer, worker, rank);
  }
  // A CTA must not leave while the other may still signal or write its shared memory.
  if constexpr (Cfg::kCluster > 1) ptx::cluster_sync();
}

}  // namespace sluice::cuda::sm90::gemm
