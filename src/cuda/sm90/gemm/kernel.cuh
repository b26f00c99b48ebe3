// SPDX-License-Identifier: Apache-2.0
// The Hopper kernel of gate_up, down and the gradients: persistent, warp-specialised, TMA in,
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
//   step_words[p.lockstep_word]  producers of all CTAs, once a turn and every 192 blocks of k,
//   where a wave reads more than L2 holds
// mbarriers of gate_up_grad
//   inputs[s], drained[s]  grad_epilogue.cuh
// named barriers (bar.sync / bar.arrive)
//   1 + w     the 128 threads of consumer w
//   3 + w     256: "the tensor cores are yours", from the other consumer to w (pingpong)
//   5 + w     256: "the out tile, or the slots, are yours", from the other consumer to w (pingpong)
#pragma once

#include <cstdint>

#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/sm90/gemm/epilogue.cuh"
#include "cuda/sm90/gemm/grad_epilogue.cuh"
#include "cuda/sm90/gemm/lockstep.cuh"
#include "cuda/sm90/gemm/mainloop.cuh"

namespace sluice::cuda::sm90::gemm {

template <class Cfg>
__device__ __forceinline__ void produce(const GemmParams& p, const Smem<Cfg>& shared, int rank) {
  const Smem<Cfg> smem{ptx::held(shared.base)};
  RingCursor<Cfg> ring;
  ring.parity = 1;  // the first pass over the ring finds every stage free
  const int k_blocks = k_blocks_of<Cfg>(p);
  // CTAs arrive so long before they meet that in step nobody waits for the last to be seen.
  constexpr int kAhead = 8;
  const int clusters = static_cast<int>(gridDim.x) / Cfg::kCluster;
  const int in_full_turns = p.order.tiles / clusters * clusters;
  Step step(p.lockstep_word);
  bool waited = false;
  if (p.weights_static == 0) {
    ptx::wait_for_prerequisites();
    waited = true;
  }
  for (int t = blockIdx.x / Cfg::kCluster; t < p.order.tiles; t += clusters) {
    const Tile tile = tile_at<Cfg>(p.order, t);
    const InputTile input(p.m, first_row<Cfg>(tile, rank), kTileM);
    const CUtensorMap& x = Cfg::kTransposedA ? p.x : input.map(p.x, p.x_tail, kTileM);
    const CUtensorMap& x2 = input.map(p.x2, p.x2_tail, kTileM);
    const int stage_bytes = (Cfg::kTransposedA ? Cfg::kABytes : input.stage_bytes()) +
                            (tile.tail ? kBoxBytes : Cfg::kBBytes);
    if (t >= clusters) step.wait();
    int meeting = next_meeting(0, k_blocks);
    for (int k = 0; k < k_blocks; ++k) {
      if (t < in_full_turns) {
        if (k == meeting) {
          step.wait();
          meeting = next_meeting(k, k_blocks);
        }
        if (k == max(meeting - kAhead, 0)) step.arrive();
      }
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
      load_input<Cfg>(second ? x2 : x, smem, ring.stage, k0, input);
      ring.advance();
    }
  }
  ptx::launch_dependents();
}

// On the 128 threads of a consumer: its last store has read the out tile, which may be written.
__device__ __forceinline__ void open_tile(int consumer) {
  if (threadIdx.x % 128 == 0) ptx::bulk_wait_read();
  ptx::named_barrier_sync(kOwnBarrier + consumer, 128);
}

// Stores the out tile that all of them have written.
template <class Cfg>
__device__ __forceinline__ void store_tile(const GemmParams& p, const CUtensorMap& map,
                                           const char* out, Tile tile, int row, int consumer) {
  ptx::fence_shared_for_async();
  ptx::named_barrier_sync(kOwnBarrier + consumer, 128);
  if (threadIdx.x % 128 != 0) return;
#pragma unroll
  for (int box = 0; box < Cfg::kOutCols / Cfg::kOutBoxCols; ++box) {
    store_box(p, map, out + box * kOutRows * Cfg::kOutBoxCols * 2,
              tile.n * Cfg::kOutCols + box * Cfg::kOutBoxCols, row);
  }
  ptx::bulk_commit();
}

// What gate_up and down make of kHalves x 64 rows of sums, 64 at a time through one out tile.
template <class Cfg, int kHalves>
__device__ __forceinline__ void put_outputs(const GemmParams& p, char* out, Tile tile, int m0,
                                            int consumer, float (&d)[kHalves][Cfg::kTileN / 2]) {
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int row = m0 + kOutRows * half;
    if (half > 0 && row >= p.m) break;  // a half tile
    open_tile(consumer);
    if constexpr (Cfg::kKind == GemmKind::kGateUp) {
      add_biases<Cfg>(p, tile, d[half]);
      gate_rows<Cfg>(p, out, d[half]);
    } else {
      plain_rows<Cfg>(p, tile, row, out, d[half]);
    }
    store_tile<Cfg>(p, p.out, out, tile, row, consumer);
    if (Cfg::kKind != GemmKind::kGateUp || p.save == 0) continue;
    open_tile(consumer);
    half_rows<Cfg>(p, false, out, d[half]);
    store_tile<Cfg>(p, p.g, out, tile, row, consumer);
    open_tile(consumer);
    half_rows<Cfg>(p, true, out, d[half]);
    store_tile<Cfg>(p, p.u, out, tile, row, consumer);
  }
}

template <class Cfg>
__device__ __forceinline__ void consume_pingpong(const GemmParams& p, const Smem<Cfg>& smem,
                                                 int consumer, int rank) {
  if (consumer == 1) ptx::named_barrier_arrive(kOutTileBarrier + 0, 256);
  // NOTE: by its length the compiler would call it, with the sums in memory.
  const auto finish = [&](int, int t, float(&d)[2][Cfg::kTileN / 2])
      __attribute__((always_inline)) {
    const Tile tile = tile_at<Cfg>(p.order, t);
    ptx::named_barrier_sync(kOutTileBarrier + consumer, 256);
    put_outputs<Cfg, 2>(p, smem.out(), tile, first_row<Cfg>(tile, rank), consumer, d);
    open_tile(consumer);
    ptx::named_barrier_arrive(kOutTileBarrier + (consumer ^ 1), 256);
  };
  pingpong<Cfg>(p, smem, consumer, rank, finish);
  if (threadIdx.x % 128 == 0) ptx::bulk_wait();
}

template <class Cfg>
__device__ __forceinline__ void consume_cooperative(const GemmParams& p, const Smem<Cfg>& smem,
                                                    int consumer, int rank) {
  const int k_blocks = k_blocks_of<Cfg>(p);
  char* out = smem.out() + consumer * Cfg::kOutTileBytes;
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

// A weight's gradient: whole sectors from registers, no out tile.
template <class Cfg>
__device__ __forceinline__ void consume_weight_grad(const GemmParams& p, const Smem<Cfg>& smem,
                                                    int consumer, int rank) {
  pingpong<Cfg>(p, smem, consumer, rank, [&](int, int t, float(&d)[2][Cfg::kTileN / 2]) {
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
  if (threadIdx.x == 256) {
    ptx::prefetch_tensor_map(Cfg::kTransposedA || p.m >= kTileM ? p.x : p.x_tail);
    ptx::prefetch_tensor_map(p.w);
  }
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
    if (ptx::acts_for_warp(8)) produce<Cfg>(p, smem, rank);
    if constexpr (Cfg::kGateGrad) {
      if (ptx::acts_for_warp(9)) fetch_pieces<Cfg>(p, smem, rank);
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

}  // namespace sluice::cuda::sm90::gemm
