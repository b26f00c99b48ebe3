// SPDX-License-Identifier: Apache-2.0
// gate_up and down where tiles are few, on Hopper: the CTAs of a cluster multiply a part of k of
// one tile each and add up through each other's shared memory. Budget and drawing:
// docs/kernels/split_k.md.
//
// roles, 384 threads, one CTA an SM
//   warpgroups 0, 1  consumers: WGMMA of 64 rows each, exchange, stores from registers
//   warpgroup 2      producer: one thread issues every TMA load
// shared memory
//   stages x { A: 128 x 64, B: N x 64 } elements, 128-byte swizzle | slots | mbarriers
//   A slot is a part of a tile as one CTA summed it: a consumer's rows by 32 weight rows in fp32, 8
//   KiB. Part i is finished by CTA i % split, to which the others send theirs. Slots lie beside the
//   ring, since a CTA still multiplies when the first of them arrive.
// mbarriers
//   full[s], empty[s]  as in kernel.cuh, of one CTA
//   received           1 arrival (the expect_tx at the start) and the bytes of all slots
// Parts of a sum are added in the order of k, whoever comes first. A CTA waits for all that is sent
// to it, so none is gone before its last slot has come.
#pragma once

#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/sm90/gemm/mainloop.cuh"
#include "cuda/sm90/gemm/row_epilogue.cuh"
#include "cuda/sm90/gemm/split_k/params.hpp"

namespace sluice::cuda::sm90::gemm {

template <class Cfg>
concept SplitKConfig = requires {
  requires Cfg::kTileN == 64 || Cfg::kTileN == 128;
  requires Cfg::kSmemBytes <= kMaxSmemBytes;
};

// One CTA's view: its tile, and its part of k in blocks of kTileK.
template <class Cfg>
struct Share {
  int split;
  int rank;
  Tile tile;
  int begin;
  int end;

  __device__ __forceinline__ explicit Share(const SplitKParams& p)
      : split(p.split), rank(static_cast<int>(ptx::cluster_rank())) {
    const int index = static_cast<int>(blockIdx.x) / split;
    tile = {index % p.gemm.order.m_tiles, index / p.gemm.order.m_tiles};
    const int blocks = k_blocks_of<Cfg>(p.gemm);
    begin = blocks * rank / split;
    end = blocks * (rank + 1) / split;
  }
  [[nodiscard]] __device__ __forceinline__ int row0() const { return tile.m * kTileM; }
  // Parts that this CTA finishes.
  [[nodiscard]] __device__ __forceinline__ int parts() const {
    return (Cfg::kConsumers * kAlternates<Cfg> - rank + split - 1) / split;
  }
  // Where `owner` has the sums of `from` for its part `part`.
  [[nodiscard]] __device__ __forceinline__ float4* slot(const Smem<Cfg>& smem, int part, int owner,
                                                        int from) const {
    const int at = part / split * (split - 1) + from - (from > owner ? 1 : 0);
    return reinterpret_cast<float4*>(smem.out() + at * Cfg::kSlotBytes) + threadIdx.x % 128;
  }
};

// The ring is filled with weights before the wait for x, where no one writes them.
template <class Cfg>
__device__ __forceinline__ void produce_share(const GemmParams& p, const Smem<Cfg>& smem,
                                              const Share<Cfg>& share) {
  const InputTile input(p.m, share.row0(), kTileM);
  const CUtensorMap& x = input.map(p.x, p.x_tail, kTileM);
  const auto load_columns = [&](int stage, int k) {
    ptx::mbarrier_arrive_expect_bytes(smem.full(stage), Cfg::kBBytes + input.stage_bytes());
    load_weights<Cfg>(p, p.w, smem, stage, k * kTileK, share.tile, /*rank=*/0);
  };
  const int early = p.weights_static != 0 ? min(Cfg::kStages, share.end - share.begin) : 0;
  for (int i = 0; i < early; ++i) load_columns(i, share.begin + i);
  ptx::wait_for_prerequisites();
  RingCursor<Cfg> ring;
  ring.parity = 1;  // the first pass over the ring finds every stage free
  for (int k = share.begin; k < share.end; ++k) {
    if (k >= share.begin + early) {
      ptx::mbarrier_wait(smem.empty(ring.stage), ring.parity);
      load_columns(ring.stage, k);
    }
    load_input<Cfg>(x, smem, ring.stage, k * kTileK, input);
    ring.advance();
  }
}

// Sends what others finish of a consumer's sums.
template <class Cfg>
__device__ __forceinline__ void send_parts(const Smem<Cfg>& smem, const Share<Cfg>& share,
                                           int consumer, const float (&d)[Cfg::kSums]) {
#pragma unroll
  for (int turn = 0; turn < kAlternates<Cfg>; ++turn) {
    const int part = consumer * kAlternates<Cfg> + turn;
    const int owner = part % share.split;
    if (owner == share.rank) continue;
    const std::uint32_t to = ptx::peer_address(share.slot(smem, part, owner, share.rank), owner);
    const std::uint32_t received = ptx::peer_address(&smem.received(), owner);
#pragma unroll
    for (int i = 0; i < Cfg::kPassSums / 4; ++i) {
      const float* sums = d + turn * Cfg::kPassSums + 4 * i;
      ptx::store_to_peer(to + i * 128 * 16, make_float4(sums[0], sums[1], sums[2], sums[3]),
                         received);
    }
  }
}

// Adds what the others sent of a part to this CTA's `sums`, in the order of k.
template <class Cfg>
__device__ __forceinline__ void add_slots(const Smem<Cfg>& smem, const Share<Cfg>& share, int part,
                                          float (&sums)[Cfg::kPassSums]) {
  float total[Cfg::kPassSums] = {};
  for (int from = 0; from < share.split; ++from) {
    const bool own = from == share.rank;
    const float4* slot = share.slot(smem, part, share.rank, from);
#pragma unroll
    for (int i = 0; i < Cfg::kPassSums / 4; ++i) {
      float4 v{sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
      if (!own) v = slot[i * 128];
      total[4 * i] += v.x;
      total[4 * i + 1] += v.y;
      total[4 * i + 2] += v.z;
      total[4 * i + 3] += v.w;
    }
  }
#pragma unroll
  for (int i = 0; i < Cfg::kPassSums; ++i) sums[i] = total[i];
}

template <class Cfg>
__device__ __forceinline__ void consume_share(const SplitKParams& p, const Smem<Cfg>& smem,
                                              const Share<Cfg>& share, int consumer) {
  RingCursor<Cfg> ring;
  float d[1][Cfg::kSums];
  multiply<Cfg, Cfg::kTileN>(smem, ring, share.end - share.begin, consumer * 64, d, [] {});
  ptx::wgmma_fence_accumulators(d[0]);
  send_parts<Cfg>(smem, share, consumer, d[0]);
  const int row0 = share.row0() + consumer * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16;
  bool received = false;
#pragma unroll 1
  for (int turn = 0; turn < kAlternates<Cfg>; ++turn) {
    float sums[Cfg::kPassSums];
    // Registers have no index: the sums go on by one turn.
#pragma unroll
    for (int i = 0; i < Cfg::kPassSums; ++i) sums[i] = d[0][i];
#pragma unroll
    for (int i = 0; i < Cfg::kSums - Cfg::kPassSums; ++i) d[0][i] = d[0][i + Cfg::kPassSums];
    const int part = consumer * kAlternates<Cfg> + turn;
    if (part % share.split != share.rank) continue;
    if (!received) ptx::mbarrier_wait<ptx::Completer::kCluster>(smem.received(), 0);
    received = true;
    if (row0 >= p.gemm.m) continue;
    add_slots<Cfg>(smem, share, part, sums);
    finish_pass<Turn<Cfg>>(p, {share.tile.m, share.tile.n * kAlternates<Cfg> + turn}, row0, sums);
  }
}

template <class Cfg>
__global__ void __launch_bounds__(kThreads, 1) split_k(const __grid_constant__ SplitKParams p) {
  static_assert(SplitKConfig<Cfg>);
  extern __shared__ __align__(1024) char raw[];
  const Smem<Cfg> smem{raw};
  const Share<Cfg> share(p);
  const int warpgroup = warpgroup_index();
  if (threadIdx.x == 0) {
    for (int s = 0; s < Cfg::kStages; ++s) {
      ptx::mbarrier_init(smem.full(s), 1);
      ptx::mbarrier_init(smem.empty(s), Cfg::kConsumers);
    }
    ptx::mbarrier_init(smem.received(), 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_bytes(smem.received(),
                                      share.parts() * (share.split - 1) * Cfg::kSlotBytes);
  }
  ptx::cluster_sync();
  ptx::launch_dependents();
  if (warpgroup == Cfg::kConsumers) {
    ptx::give_registers<Cfg::kProducerRegisters>();
    if (ptx::acts_for_warp(Cfg::kConsumers * 4)) produce_share<Cfg>(p.gemm, smem, share);
    __syncwarp();
  } else {
    ptx::take_registers<Cfg::kConsumerRegisters>();
    ptx::wait_for_prerequisites();  // outputs may be read, bias and residual written
    consume_share<Cfg>(p, smem, share, warpgroup);
  }
}

}  // namespace sluice::cuda::sm90::gemm
