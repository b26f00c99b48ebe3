// SPDX-License-Identifier: Apache-2.0
// The decode kernel for more than 16 tokens: weights come by tensor maps as boxes of 16 rows x 64
// columns and are the A operand of wgmma (64 rows), tokens the B operand. Two warpgroups take the
// blocks of a CTA in turns: one multiplies while the other stores. See docs/kernels/mlp_decode.md.
//
// stage    weights: depth / 64 spans of { rows x 64 }, 128-byte swizzle; sixteen rows are 8 gate
//          rows and the up rows of the same numbers, which one thread then holds, or rows of w_down
//          | activations: depth / 64 spans of { tokens x 64 }, 128-byte swizzle; m tokens filled
// named barriers 2 + w, 256: "the ring is yours", from the other warpgroup to w. Without it w might
//          meet a stage's mbarrier a whole turn of the ring too early and take it for full.
#pragma once

#include <cstdint>

#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/decode_output.cuh"
#include "cuda/tile/activation.cuh"
#include "cuda/tile/ring.cuh"

namespace sluice::cuda::sm90 {

inline constexpr int kRingBarrier = 2;  // named, of each warpgroup

// One box of weights: unit `unit`, columns from k.
template <bool kGated>
__device__ __forceinline__ void copy_box(const DecodeParams& p, char* to, int k, int unit,
                                         std::uint64_t& full, std::uint64_t policy) {
  if constexpr (!kGated) {
    const std::int32_t at[5] = {k, unit * kMmaRows};
    ptx::tensor_copy<2>(to, p.w_down_map, at, full, policy);
  } else if (p.pair.rank == 4) {
    const std::int32_t at[5] = {k, 0, 0, unit};
    ptx::tensor_copy<4>(to, p.w_pair_map, at, full, policy);
  } else if (p.pair.groups_a_block == 0) {
    const std::int32_t at[5] = {k, 0, 0, 0, unit};
    ptx::tensor_copy<5>(to, p.w_pair_map, at, full, policy);
  } else {
    const std::int32_t at[5] = {k, 0, 0, unit % p.pair.groups_a_block,
                                unit / p.pair.groups_a_block};
    ptx::tensor_copy<5>(to, p.w_pair_map, at, full, policy);
  }
}

// Streams the weights of one phase: lane l of weight warp w owns box 4 l + w of each stage.
template <class Cfg, bool kGated>
__device__ __forceinline__ void stream_boxes(const DecodeParams& p, const DecodeSmem<Cfg>& smem,
                                             const DecodePhase& phase,
                                             tile::RingCursor<Cfg::kStages>& ring,
                                             std::uint64_t policy) {
  constexpr int kBoxBytes = kMmaRows * kSpanBytes;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int box = lane * kWeightWarps + static_cast<int>(threadIdx.x) / 32 - kConsumerWarps;
  const int unit = box / Cfg::kSpans;
  const int span = box % Cfg::kSpans;
  const int offset = span * Cfg::kRows * kSpanBytes + unit * kBoxBytes;
  for (int b = 0; b < phase.blocks; ++b) {
    const UnitRange block = phase.block(b);
    for (int c = phase.chunks.begin; c < phase.chunks.end; ++c) {
      // A box is whole: outside the matrix it reads as 0.
      const bool mine = unit < block.size() && span < phase.chunk_spans(c, Cfg::kDepth);
      const int boxes = __popc(__ballot_sync(0xFFFFFFFFU, mine));
      std::uint64_t& full = smem.full(ring.stage);
      ptx::mbarrier_wait(smem.empty(ring.stage), ring.parity);
      if (lane == 0)
        ptx::mbarrier_arrive_expect_bytes(full, static_cast<std::uint32_t>(boxes * kBoxBytes));
      __syncwarp();
      if (mine) {
        copy_box<kGated>(p, smem.weights(ring.stage) + offset,
                         c * Cfg::kDepth + span * kSpanColumns, block.begin + unit, full, policy);
      }
      ring.advance();
    }
  }
}

template <class Cfg>
using Sums = float[Cfg::kTokens / 2];

// d += the products of one stage's `spans`.
template <class Cfg>
__device__ __forceinline__ void multiply_boxes(const DecodeSmem<Cfg>& smem, int stage, int spans,
                                               Sums<Cfg>& d) {
  using Mma = ptx::Wgmma<Cfg::kTokens, typename Cfg::Element>;
  // In a descriptor, addresses count 16 bytes.
  constexpr int kWeightSpan = Cfg::kRows * kSpanBytes / 16;
  constexpr int kTokenSpan = Cfg::kTokens * kSpanBytes / 16;
  const std::uint64_t a = ptx::descriptor_sw128(ptx::shared_address(smem.weights(stage)));
  const std::uint64_t b = ptx::descriptor_sw128(ptx::shared_address(smem.activations(stage)));
  ptx::wgmma_fence();
#pragma unroll
  for (int span = 0; span < Cfg::kSpans; ++span) {
    if (span >= spans) break;
#pragma unroll
    for (int step = 0; step < kSpanColumns / 16; ++step) {
      Mma::mma(d, a + span * kWeightSpan + step * 2, b + span * kTokenSpan + step * 2, false);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
}

// h of one block, from a warpgroup's sums.
template <class Cfg>
__device__ __forceinline__ void finish_pairs(const DecodeParams& p, UnitRange block,
                                             const Sums<Cfg>& d) {
  using Element = typename Cfg::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32;
  const int unit = block.begin + warp;
  if (unit >= block.end) return;
  const int pair = unit * kUnitPairs<Cfg> + lane / 4;
  const float b_gate = p.b_gate != nullptr ? vector_at<Element>(p.b_gate, pair) : 0;
  const float b_up = p.b_gate != nullptr ? vector_at<Element>(p.b_up, pair) : 0;
  tile::with_epilogue_gate(p.gate, [&](const Gate& gate) {
#pragma unroll
    for (int i = 0; i < Cfg::kTokens / 4; ++i) {
      const int token = i / 2 * 8 + lane % 4 * 2 + i % 2;
      const float first = d[i / 2 * 4 + i % 2];
      const float second = d[i / 2 * 4 + i % 2 + 2];
      const float g = (p.up_first != 0 ? second : first) + b_gate;
      const float u = (p.up_first != 0 ? first : second) + b_up;
      if (token < p.m) {
        *element_at<Element>(p.h_out, token, pair) = Element(math::gate_mul(gate, g, u));
      }
    }
  });
}

// Two CTAs, a cluster, divide K of down: adds the other's sums to those rows that this CTA
// finishes, the first two warps' or the last two's. One block, so the ring is free: sums change
// hands there.
template <class Cfg>
__device__ __forceinline__ void add_other_half(const DecodeSmem<Cfg>& smem, bool mine, int rank,
                                               Sums<Cfg>& d) {
  constexpr int kVectors = Cfg::kTokens / 8;  // of four floats, a thread
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) % 64 / 32;
  float4* const box = reinterpret_cast<float4*>(smem.base) + warp * 32 + lane;
  ptx::cluster_sync();  // both have read their last stage
  if (!mine) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float* from = &d[i * 4];
      ptx::store_to_peer(box + i * 64, make_float4(from[0], from[1], from[2], from[3]), rank ^ 1);
    }
  }
  ptx::cluster_sync();
  if (!mine) return;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const float4 other = box[i * 64];
    float* sums = &d[i * 4];
    sums[0] += other.x;
    sums[1] += other.y;
    sums[2] += other.z;
    sums[3] += other.w;
  }
}

// y of one block.
template <class Cfg>
__device__ __forceinline__ void finish_down(const DecodeParams& p, const DecodeSmem<Cfg>& smem,
                                            UnitRange block, Sums<Cfg>& d) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32;
  if (p.split > 1) {
    const int rank = Group(p.split).rank;
    const bool mine = warp / 2 == rank;
    add_other_half<Cfg>(smem, mine, rank, d);
    if (!mine) return;
  }
  const int unit = block.begin + warp;
  if (unit >= block.end) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = unit * kUnitRows<Cfg> + half * 8 + lane / 4;
    if (row >= p.d) break;
#pragma unroll
    for (int i = 0; i < Cfg::kTokens / 4; ++i) {
      const int token = i / 2 * 8 + lane % 4 * 2 + i % 2;
      if (token >= p.m) continue;
      store_y<typename Cfg::Element>(p, token, row, d[i / 2 * 4 + half * 2 + i % 2]);
    }
  }
}

// Where a warpgroup stands: steps of the ring and blocks so far, of both warpgroups.
struct Turns {
  int step = 0;
  int block = 0;
};

// One phase of a consumer warpgroup: every second block.
template <class Cfg, bool kGated>
__device__ __forceinline__ void consume_boxes(const DecodeParams& p, const DecodeSmem<Cfg>& smem,
                                              const DecodePhase& phase, Turns& turns) {
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  for (int b = 0; b < phase.blocks; ++b) {
    tile::RingCursor<Cfg::kStages> ring;
    ring.skip_to(turns.step);
    turns.step += phase.chunks.size();
    if (turns.block++ % 2 != warpgroup) continue;
    ptx::named_barrier_sync(kRingBarrier + warpgroup, kConsumers);
    Sums<Cfg> d = {};
    for (int c = phase.chunks.begin; c < phase.chunks.end; ++c) {
      ptx::mbarrier_wait(smem.full(ring.stage), ring.parity);
      multiply_boxes<Cfg>(smem, ring.stage, phase.chunk_spans(c, Cfg::kDepth), d);
      release<Cfg>(smem, ring.stage);
      ring.advance();
    }
    ptx::named_barrier_arrive(kRingBarrier + (warpgroup ^ 1), kConsumers);
    ptx::wgmma_fence_accumulators(d);
    if constexpr (kGated) {
      finish_pairs<Cfg>(p, phase.block(b), d);
    } else {
      finish_down<Cfg>(p, smem, phase.block(b), d);
    }
  }
}

}  // namespace sluice::cuda::sm90
