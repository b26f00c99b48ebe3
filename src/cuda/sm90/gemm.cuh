// SPDX-License-Identifier: Apache-2.0
// The Hopper mainloop of gate_up and down: persistent, warp-specialised, TMA in, WGMMA, TMA out.
// Budget, drawing and log of what was tried: docs/kernels/gate_up.md.
//
// roles (384 threads, one CTA an SM)
//   warpgroup 0, 1  consumers: WGMMA, epilogue, TMA store   240 registers
//   warpgroup 2     producer: one thread issues every TMA load  24 registers
// schedules
//   pingpong     a consumer owns a whole 128 x N tile; one multiplies while the other gates and
//   stores cooperative  both consumers share a 128 x N tile, 64 rows each
// shared memory
//   stages x { A: 128 x 64, B: N x 64 } elements, 128-byte swizzle | out tile | mbarriers
// mbarriers, per stage
//   full[s]   1 arrival (the producer's expect_tx) and the stage's bytes; consumers wait
//   empty[s]  one arrival for each consumer warpgroup of each CTA of the cluster that reads the
//   stage;
//             producers wait, since each writes half of B into both CTAs
// named barriers (bar.sync / bar.arrive)
//   1 + w     the 128 threads of consumer w
//   3 + w     256: "the tensor cores are yours", from the other consumer to w (pingpong)
//   5 + w     256: "the out tile is yours", from the other consumer to w (pingpong)
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/ptx/tensor_multicast.cuh"
#include "cuda/ptx/tensor_store.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/epilogue.cuh"
#include "cuda/sm90/gemm_params.hpp"

namespace sluice::cuda::sm90 {

template <class Cfg>
concept KernelConfig = requires {
  requires Cfg::kTileN % 64 == 0 && Cfg::kTileN <= 256;  // the WGMMA shapes in ptx/wgmma.cuh
  requires Cfg::kCluster == 1 || Cfg::kCluster == 2;     // 132 SMs divide badly by more
  requires !Cfg::kPingpong || Cfg::kTileN <= 192;        // 2 x N / 2 accumulators a thread
  requires Cfg::kSmemBytes <= 227 * 1024;
};

// Tiles in column order within groups of `group` row tiles, so that a wave shares weights in L2.
__device__ __forceinline__ Tile tile_at(const TileOrder& order, int index) {
  const int per_group = order.group * order.n_tiles;
  const int first = index / per_group * order.group;
  const int rows = min(order.group, order.m_tiles - first);
  const int rest = index % per_group;
  return {first + rest % rows, rest / rows};
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
};

// A position in the ring of stages.
template <class Cfg>
struct RingCursor {
  int stage = 0;
  std::uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == Cfg::kStages) stage = 0, phase ^= 1;
  }
  __device__ __forceinline__ void skip_to(int step) {
    stage = step % Cfg::kStages;
    phase = (step / Cfg::kStages) & 1;
  }
};

// This CTA's share of one stage of B, sent to every CTA of the cluster.
template <class Cfg>
__device__ __forceinline__ void load_weights(const GemmParams& p, const Smem<Cfg>& smem, int stage,
                                             int k, int n_tile, int rank) {
  constexpr std::uint16_t kAll = (1 << Cfg::kCluster) - 1;
  constexpr int kRows = Cfg::kTileN / Cfg::kCluster;
  char* to = smem.b(stage) + rank * kRows * kTileK * 2;
  const int first_row = n_tile * Cfg::kTileN + rank * kRows;
  std::uint64_t& full = smem.full(stage);
  if constexpr (!Cfg::kGated) {
    const std::int32_t at[5] = {k, first_row};
    ptx::tensor_copy<kAll, 2>(to, p.w, at, full);
  } else {
    const PairWalk& walk = p.pair;
    for (int i = 0; i < kRows / 16; i += walk.groups_a_copy) {  // 8 gate and 8 up rows a group
      const int group = first_row / 16 + i;
      char* part = to + i * 16 * kTileK * 2;
      if (walk.rank == 4) {
        const std::int32_t at[5] = {k, 0, 0, group};
        ptx::tensor_copy<kAll, 4>(part, p.w, at, full);
      } else if (walk.groups_a_block == 0) {
        const std::int32_t at[5] = {k, 0, 0, 0, group};
        ptx::tensor_copy<kAll, 5>(part, p.w, at, full);
      } else {
        const std::int32_t at[5] = {k, 0, 0, group % walk.groups_a_block,
                                    group / walk.groups_a_block};
        ptx::tensor_copy<kAll, 5>(part, p.w, at, full);
      }
    }
  }
}

template <class Cfg>
__device__ __forceinline__ void produce(const GemmParams& p, const Smem<Cfg>& smem, int rank) {
  RingCursor<Cfg> ring;
  ring.phase = 1;  // the first pass over the ring finds every stage free
  const int k_blocks = (p.k + kTileK - 1) / kTileK;
  bool waited = false;
  if (p.weights_static == 0) {
    ptx::wait_for_prerequisites();
    waited = true;
  }
  for (int t = blockIdx.x / Cfg::kCluster; t < p.order.tiles; t += gridDim.x / Cfg::kCluster) {
    const Tile tile = tile_at(p.order, t);
    for (int k = 0; k < k_blocks; ++k) {
      ptx::mbarrier_wait(smem.empty(ring.stage), ring.phase);
      std::uint64_t& full = smem.full(ring.stage);
      ptx::mbarrier_arrive_expect_bytes(full, Cfg::kStageBytes);
      load_weights<Cfg>(p, smem, ring.stage, k * kTileK, tile.n, rank);
      if (!waited) {  // x comes from the kernel before this one; static weights do not
        ptx::wait_for_prerequisites();
        waited = true;
      }
      const std::int32_t at[5] = {k * kTileK, (tile.m * Cfg::kCluster + rank) * kTileM};
      ptx::tensor_copy<1, 2>(smem.a(ring.stage), p.x, at, full);
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

// Accumulates one tile: kHalves x 64 rows from row `row0` of A. Calls `issued` when the last WGMMA
// is in flight, before waiting for it.
template <class Cfg, int kHalves, class Issued>
__device__ __forceinline__ void multiply(const Smem<Cfg>& smem, RingCursor<Cfg>& ring, int k_blocks,
                                         int row0, float (&d)[kHalves][Cfg::kTileN / 2],
                                         const Issued& issued) {
  int previous = -1;
  for (int k = 0; k < k_blocks; ++k) {
    ptx::mbarrier_wait(smem.full(ring.stage), ring.phase);
    const std::uint64_t a =
        ptx::descriptor_sw128(ptx::shared_address(smem.a(ring.stage)) + row0 * 128);
    const std::uint64_t b = ptx::descriptor_sw128(ptx::shared_address(smem.b(ring.stage)));
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileK / 16; ++step) {  // 16 of K are 32 bytes: 2 in the descriptor
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        ptx::Wgmma<Cfg::kTileN, typename Cfg::Element>::mma(d[half], a + half * 512 + 2 * step,
                                                            b + 2 * step, k + step == 0);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (previous >= 0) release<Cfg>(smem, previous);
    previous = ring.stage;
    ring.advance();
  }
  issued();
  ptx::wgmma_wait<0>();
  release<Cfg>(smem, previous);
}

// Hands the finished out tile to TMA, which clips a box at the matrix's edge. Boxes wholly outside
// are left out.
template <class Cfg>
__device__ __forceinline__ void store_tile(const GemmParams& p, const char* out, Tile tile,
                                           int m0) {
#pragma unroll
  for (int box = 0; box < Cfg::kOutCols / Cfg::kOutBoxCols; ++box) {
    const int col = tile.n * Cfg::kOutCols + box * Cfg::kOutBoxCols;
    if (col < p.n && m0 < p.m) {
      ptx::tensor_store_2d(p.out, out + box * Cfg::kOutBoxRows * Cfg::kOutBoxCols * 2, col, m0);
    }
  }
  ptx::bulk_commit();
}

template <class Cfg>
__device__ __forceinline__ void write_rows(const GemmParams& p, Tile tile, int m0, char* out,
                                           int row0, float (&d)[Cfg::kTileN / 2]) {
  if constexpr (Cfg::kGated) {
    gate_rows<Cfg>(p, tile, out, row0, d);
  } else {
    plain_rows<Cfg>(p, tile, m0, out, row0, d);
  }
}

constexpr int kOwnBarrier = 1;      // + consumer
constexpr int kTensorBarrier = 3;   // + consumer
constexpr int kOutTileBarrier = 5;  // + consumer

template <class Cfg>
__device__ __forceinline__ void consume_pingpong(const GemmParams& p, const Smem<Cfg>& smem,
                                                 int consumer, int rank) {
  const int k_blocks = (p.k + kTileK - 1) / kTileK;
  const bool leader = threadIdx.x % 128 == 0;
  RingCursor<Cfg> ring;
  if (consumer == 1) {  // consumer 0 goes first
    ptx::named_barrier_arrive(kTensorBarrier + 0, 256);
    ptx::named_barrier_arrive(kOutTileBarrier + 0, 256);
  }
  int turn = 0;
  for (int t = blockIdx.x / Cfg::kCluster; t < p.order.tiles;
       t += gridDim.x / Cfg::kCluster, ++turn) {
    if (turn % 2 != consumer) continue;
    const Tile tile = tile_at(p.order, t);
    const int m0 = (tile.m * Cfg::kCluster + rank) * kTileM;
    ring.skip_to(turn * k_blocks);
    float d[2][Cfg::kTileN / 2];
    ptx::named_barrier_sync(kTensorBarrier + consumer, 256);
    multiply<Cfg, 2>(smem, ring, k_blocks, 0, d,
                     [&] { ptx::named_barrier_arrive(kTensorBarrier + (consumer ^ 1), 256); });
    ptx::named_barrier_sync(kOutTileBarrier + consumer, 256);
    write_rows<Cfg>(p, tile, m0, smem.out(), 0, d[0]);
    write_rows<Cfg>(p, tile, m0, smem.out(), 64, d[1]);
    ptx::fence_shared_for_async();
    ptx::named_barrier_sync(kOwnBarrier + consumer, 128);
    if (leader) {
      store_tile<Cfg>(p, smem.out(), tile, m0);
      ptx::bulk_wait_read();
    }
    ptx::named_barrier_sync(kOwnBarrier + consumer, 128);
    ptx::named_barrier_arrive(kOutTileBarrier + (consumer ^ 1), 256);
  }
  if (leader) ptx::bulk_wait();
}

template <class Cfg>
__device__ __forceinline__ void consume_cooperative(const GemmParams& p, const Smem<Cfg>& smem,
                                                    int consumer, int rank) {
  const int k_blocks = (p.k + kTileK - 1) / kTileK;
  const bool leader = threadIdx.x % 128 == 0;
  char* out = smem.out() + consumer * (Cfg::kOutBytes / 2);
  RingCursor<Cfg> ring;
  for (int t = blockIdx.x / Cfg::kCluster; t < p.order.tiles; t += gridDim.x / Cfg::kCluster) {
    const Tile tile = tile_at(p.order, t);
    const int m0 = (tile.m * Cfg::kCluster + rank) * kTileM + consumer * 64;
    float d[1][Cfg::kTileN / 2];
    multiply<Cfg, 1>(smem, ring, k_blocks, consumer * 64, d, [] {});
    if (leader) ptx::bulk_wait_read();  // the tile before has left
    ptx::named_barrier_sync(kOwnBarrier + consumer, 128);
    write_rows<Cfg>(p, tile, m0, out, 0, d[0]);
    ptx::fence_shared_for_async();
    ptx::named_barrier_sync(kOwnBarrier + consumer, 128);
    if (leader) store_tile<Cfg>(p, out, tile, m0);
  }
  if (leader) ptx::bulk_wait();
}

template <class Cfg>
__global__ void __launch_bounds__(kThreads, 1) gemm(const __grid_constant__ GemmParams p) {
  static_assert(KernelConfig<Cfg>);
  extern __shared__ char raw[];
  const Smem<Cfg> smem{raw + (1024 - ptx::shared_address(raw) % 1024) % 1024};
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  const int rank = Cfg::kCluster > 1 ? static_cast<int>(ptx::cluster_rank()) : 0;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Cfg::kStages; ++s) {
      ptx::mbarrier_init(smem.full(s), 1);
      ptx::mbarrier_init(smem.empty(s), Cfg::kCluster * (Cfg::kPingpong ? 1 : 2));
    }
    ptx::fence_mbarrier_init();
  }
  if constexpr (Cfg::kCluster > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
  if (warpgroup == 2) {
    ptx::give_registers<24>();
    if (threadIdx.x == 256) produce<Cfg>(p, smem, rank);
    __syncwarp();
  } else {
    ptx::take_registers<240>();
    ptx::wait_for_prerequisites();  // the out tile may be read by the kernel before this one
    if constexpr (Cfg::kPingpong) {
      consume_pingpong<Cfg>(p, smem, warpgroup, rank);
    } else {
      consume_cooperative<Cfg>(p, smem, warpgroup, rank);
    }
  }
  // A CTA must not leave while its peer may still signal or write its shared memory.
  if constexpr (Cfg::kCluster > 1) ptx::cluster_sync();
}

}  // namespace sluice::cuda::sm90
