// SPDX-License-Identifier: Apache-2.0
// The consumers of gate_up_grad, and the thread that fetches g and u for them: pieces of 64 x 64
// through four slots, in which g becomes dg and then h, and u becomes du.
// docs/kernels/gate_up_grad.md.
//
// mbarriers, per slot
//   inputs[s]  1 arrival (an expect_tx) and the bytes of a piece of g and u in slot s; the consumer
//              whose turn it is waits
//   drained[s] 1 arrival: the stores of the slot's leader have read it; who fetches waits
#pragma once

#include <cstdint>

#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/sm90/gemm/mainloop.cuh"
#include "cuda/tile/activation.cuh"

namespace sluice::cuda::sm90::gemm {

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
    for (int piece = 0; piece < (tile.tail ? 2 : Cfg::kPieces); ++piece) {
      ptx::mbarrier_wait(smem.drained(ring.stage), ring.parity);
      std::uint64_t& full = smem.inputs(ring.stage);
      ptx::mbarrier_arrive_expect_bytes(full, 2 * Cfg::kPieceBytes);
      const std::int32_t at[5] = {first_col<Cfg>(tile) + piece / 2 * kColumnBox,
                                  first_row<Cfg>(tile, rank) + piece % 2 * 64};
      ptx::tensor_copy<2>(smem.g(ring.stage), p.g, at, full);
      ptx::tensor_copy<2>(smem.u(ring.stage), p.u, at, full);
      ring.advance();
    }
  }
}

// A consumer's tile of gate_up_grad.
struct GradTile {
  int row;  // its first
  int col;
  bool tail;
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
    if (t.tail) {
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
    const int boxes = t.tail ? 1 : kBoxes;
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
  pingpong<Cfg>(p, smem, consumer, rank, [&](int turn, int t, float(&d)[2][Cfg::kTileN / 2]) {
    const Tile tile = tile_at<Cfg>(p.order, t);
    const int whole = min(turn, whole_turns<Cfg>(p));
    const int first = whole * Cfg::kPieces + (turn - whole) * 2;
    ptx::named_barrier_sync(kOutTileBarrier + consumer, 256);
    put_pieces<Cfg>(
        p, smem, {first_row<Cfg>(tile, rank), first_col<Cfg>(tile), tile.tail, consumer, first}, d);
    ptx::named_barrier_arrive(kOutTileBarrier + (consumer ^ 1), 256);
  });
  if (leader) ptx::bulk_wait();
}

}  // namespace sluice::cuda::sm90::gemm
