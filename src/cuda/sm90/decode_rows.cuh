// SPDX-License-Identifier: Apache-2.0
// The decode kernel for up to 16 tokens: weights come row by row, so that any row of any layout can
// be anybody's, and are the A operand of mma.sync (16 rows a tile), tokens the B operand (8 a
// slice). See docs/kernels/mlp_decode.md.
//
// stage    activations: tokens x depth, or depth / 64 boxes of tokens x 64 with the 128-byte
//          swizzle; m tokens filled | weights: rows x depth, not padded: copies to addresses that
//          are no multiple of 128 bytes cost 5 to 25 % of the stream (log of the kernel's page)
// scratch  partial sums: 2 x { depth warps x rows x 10 floats }
#pragma once

#include <cstdint>

#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/sm90/decode_output.cuh"
#include "cuda/tile/ring.cuh"
#include "math/gate.hpp"

namespace sluice::cuda::sm90 {

__device__ __forceinline__ const char* row_of(const WeightRows& w, int row) {
  if (w.block_rows == 0) return w.base + row * w.row_bytes;
  return w.base + row / w.block_rows * w.block_bytes + row % w.block_rows * w.row_bytes;
}

// Brings what the launch behind this one reads first into L2. Its CTA starts on this SM when this
// one has left, and has its first bytes 3.5 us behind this one's last; in between the SM would ask
// memory for nothing. NOTE: earlier, with this CTA's last copies, it takes from them what it gains.
template <class Cfg>
__device__ __forceinline__ void prefetch_next(const DecodeParams& p, const DecodeSmem<Cfg>& smem,
                                              int steps, int slot) {
  constexpr int kStepsLeft = 3;  // copies under way by then
  static_assert(kStepsLeft <= Cfg::kStages);
  const int cta = static_cast<int>(blockIdx.x);
  if (p.next.columns == 0 || cta >= p.next.ctas || steps < kStepsLeft) return;
  const UnitRange rows =
      make_phase(p.next.shares.part(cta), p.next.block_rows, p.h, kSpanColumns).block(0);
  tile::RingCursor<Cfg::kStages> ring;
  ring.skip_to(steps - kStepsLeft);
  ptx::mbarrier_wait(smem.full(ring.stage), ring.parity);
  if (slot < rows.size()) {
    ptx::bulk_prefetch_l2(row_of(p.w_down, rows.begin + slot),
                          static_cast<std::uint32_t>(p.next.columns * 2));
  }
}

// Streams the weights of one phase: lane l of weight warp w owns row slot 4 l + w.
template <class Cfg, bool kGated>
__device__ __forceinline__ void stream_rows(const DecodeParams& p, const DecodeSmem<Cfg>& smem,
                                            const DecodePhase& phase,
                                            tile::RingCursor<Cfg::kStages>& ring,
                                            std::uint64_t policy) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 - kConsumerWarps;
  const int slot = lane * kWeightWarps + warp;
  const SlotRow where = slot_row(slot, kGated);
  const WeightRows& w = !kGated ? p.w_down : where.up ? p.w_up : p.w_gate;
  for (int b = 0; b < phase.blocks; ++b) {
    const UnitRange block = phase.block(b);
    const bool mine = slot < Cfg::kRows && where.unit < block.size();
    const char* source = mine ? row_of(w, block.begin + where.unit) : nullptr;
    const int rows = __popc(__ballot_sync(0xFFFFFFFFU, mine));
    for (int c = phase.chunks.begin; c < phase.chunks.end; ++c) {
      const int bytes = phase.chunk_columns(c, Cfg::kDepth) * 2;
      std::uint64_t& full = smem.full(ring.stage);
      ptx::mbarrier_wait(smem.empty(ring.stage), ring.parity);
      if (lane == 0)
        ptx::mbarrier_arrive_expect_bytes(full, static_cast<std::uint32_t>(rows * bytes));
      __syncwarp();
      if (mine) {
        ptx::bulk_copy(smem.weights(ring.stage) + slot * Cfg::kWeightRowBytes,
                       source + std::int64_t{c} * (Cfg::kDepth * 2),
                       static_cast<std::uint32_t>(bytes), full, policy);
      }
      ring.advance();
    }
  }
  // Half rings, two CTAs on an SM, have no such gap.
  if constexpr (kGated && kResident<Cfg> == 1) {
    prefetch_next<Cfg>(p, smem, phase.blocks * phase.chunks.size(), slot);
  }
}

template <class Cfg>
using Accumulators = float[Cfg::kTiles][Cfg::kSlices][4];

// One row's 64 columns of a span as the four lanes of a quad hold them: lane t has the eight
// columns of unit t in `low` and those of unit 4 + t in `high`, zero where the span ends before.
// Which columns an mma calls its k-th is free as long as both operands agree, so that 16-byte loads
// serve where ldmatrix would need padded or swizzled rows. Rows begin in the same bank: lanes of
// odd rows load the high half first, so that the two rows of each eight lanes lie in different
// banks.
struct SpanRow {
  uint4 low;
  uint4 high;

  /// `units` of the span's eight are there; unit u lies at u ^ `swizzle`.
  static __device__ __forceinline__ SpanRow load(const char* span, int units, int swizzle = 0) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool odd = lane / 4 % 2 != 0;
    const int first = lane % 4 + (odd ? 4 : 0);
    const int second = first ^ 4;
    const uint4* at = reinterpret_cast<const uint4*>(span);
    const uint4 a = first < units ? at[first ^ swizzle] : uint4{};
    const uint4 b = second < units ? at[second ^ swizzle] : uint4{};
    return {odd ? b : a, odd ? a : b};
  }
  /// The two registers that step `step` of the span's four takes of this row.
  __device__ __forceinline__ uint2 step(int step) const {
    const uint4& half = step < 2 ? low : high;
    return step % 2 == 0 ? make_uint2(half.x, half.y) : make_uint2(half.z, half.w);
  }
};

// d += this warp's share of one stage: every kDepthWarps-th span.
template <class Cfg>
__device__ __forceinline__ void multiply_stage(const char* weights, const char* activations,
                                               int columns, Accumulators<Cfg>& d) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int depth_warp = warp % Cfg::kDepthWarps;
  const int row_warp = warp / Cfg::kDepthWarps;
  // Rows lane / 4 and lane / 4 + 8 of a tile, token lane / 4 of a slice: the fragments of an mma.
  const char* a_row =
      weights + (row_warp * Cfg::kTiles * kMmaRows + lane / 4) * Cfg::kWeightRowBytes;
  // Slices in turns: an mma waits for the one before it on the same sums.
  constexpr int kPair = Cfg::kSlices > 1 ? 2 : 1;
  constexpr int kTokenBytes = Cfg::kActivationBoxes ? kSpanBytes : Cfg::kTokenBytes;
  constexpr int kSpanStride = Cfg::kActivationBoxes ? Cfg::kTokens * kSpanBytes : kSpanBytes;
  const char* b_row = activations + lane / 4 * kTokenBytes;
  const int swizzle = Cfg::kActivationBoxes ? lane / 4 : 0;
#pragma unroll
  for (int i = 0; i < Cfg::kDepth / kSpanColumns / Cfg::kDepthWarps; ++i) {
    const int span = i * Cfg::kDepthWarps + depth_warp;
    if (span * kSpanColumns >= columns) break;
    const int units = (columns - span * kSpanColumns) / 8;
    const int at = span * kSpanBytes;
    SpanRow upper[Cfg::kTiles];
    SpanRow lower[Cfg::kTiles];
#pragma unroll
    for (int t = 0; t < Cfg::kTiles; ++t) {
      upper[t] = SpanRow::load(a_row + t * kMmaRows * Cfg::kWeightRowBytes + at, units);
      lower[t] =
          SpanRow::load(a_row + (t * kMmaRows + kMmaRows / 2) * Cfg::kWeightRowBytes + at, units);
    }
#pragma unroll
    for (int first = 0; first < Cfg::kSlices; first += kPair) {
      SpanRow x[kPair];
#pragma unroll
      for (int s = 0; s < kPair; ++s) {
        const char* row = b_row + (first + s) * kSliceTokens * kTokenBytes + span * kSpanStride;
        x[s] = SpanRow::load(row, units, swizzle);
      }
#pragma unroll
      for (int step = 0; step < kSpanColumns / 16; ++step) {
#pragma unroll
        for (int turn = 0; turn < kPair * Cfg::kTiles; ++turn) {
          const int s = turn / Cfg::kTiles;
          const int t = turn % Cfg::kTiles;
          const uint2 b = x[s].step(step);
          const uint2 up = upper[t].step(step);
          const uint2 low = lower[t].step(step);
          const std::uint32_t a[4] = {up.x, low.x, up.y, low.y};
          ptx::mma_m16n8k16<typename Cfg::Element>(d[t][first + s], a, b.x, b.y);
        }
      }
    }
  }
}

// This warp's sums of one slice, for the others to read: [depth warp][slot][token].
template <class Cfg>
__device__ __forceinline__ void write_partial(float* partial, int slice, Accumulators<Cfg>& d) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first = warp % Cfg::kDepthWarps * Cfg::kRows +
                    warp / Cfg::kDepthWarps * Cfg::kTiles * kMmaRows + lane / 4;
#pragma unroll
  for (int t = 0; t < Cfg::kTiles; ++t) {
    float* upper = partial + (first + t * kMmaRows) * kPartialStride + lane % 4 * 2;
    float* lower = upper + kMmaRows / 2 * kPartialStride;
    *reinterpret_cast<float2*>(upper) = make_float2(d[t][slice][0], d[t][slice][1]);
    *reinterpret_cast<float2*>(lower) = make_float2(d[t][slice][2], d[t][slice][3]);
  }
}

// The sum over the depth warps, in their order.
template <class Cfg>
__device__ __forceinline__ float total(const float* partial, int slot, int token) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < Cfg::kDepthWarps; ++w) {
    sum += partial[(w * Cfg::kRows + slot) * kPartialStride + token];
  }
  return sum;
}

template <class Element>
__device__ __forceinline__ void store_y(const DecodeParams& p, int token, int row, float sum) {
  if (p.b_down != nullptr) sum += vector_at<Element>(p.b_down, row);
  if (p.residual.base != nullptr) {
    // From L2: with a norm another SM wrote it in this launch.
    sum += static_cast<float>(__ldcg(element_at<Element>(p.residual, token, row)));
  }
  *element_at<Element>(p.y, token, row) = Element(sum);
}

// h or y of one unit and token, from the CTA's sums.
template <class Cfg, bool kGated>
__device__ __forceinline__ void finish(const DecodeParams& p, const float* partial, int slot,
                                       int in_slice, int unit, int token) {
  using Element = typename Cfg::Element;
  if constexpr (kGated) {
    float g = total<Cfg>(partial, slot, in_slice);
    float u = total<Cfg>(partial, slot + kMmaRows / 2, in_slice);
    if (p.b_gate != nullptr) {
      g += vector_at<Element>(p.b_gate, unit);
      u += vector_at<Element>(p.b_up, unit);
    }
    *element_at<Element>(p.h_out, token, unit) = Element(math::gate_mul(p.gate, g, u));
  } else {
    store_y<Element>(p, token, unit, total<Cfg>(partial, slot, in_slice));
  }
}

// One phase of a consumer warp. There are two sets of partial sums. One slice of tokens takes them
// in turns, block by block over both phases: a set is written again two barriers later, when all
// have read it. Two slices take both, behind a barrier of their own, and are finished together.
template <class Cfg, bool kGated>
__device__ __forceinline__ void consume_rows(const DecodeParams& p, const DecodeSmem<Cfg>& smem,
                                             const DecodePhase& phase,
                                             tile::RingCursor<Cfg::kStages>& ring, int& buffer) {
  constexpr int kUnits = kGated ? Cfg::kRows / 2 : Cfg::kRows;  // of a block, at most
  constexpr bool kInTurns = Cfg::kSlices == 1;
  static_assert(Cfg::kSlices <= 2);
  for (int b = 0; b < phase.blocks; ++b) {
    const UnitRange block = phase.block(b);
    Accumulators<Cfg> d = {};
    for (int c = phase.chunks.begin; c < phase.chunks.end; ++c) {
      ptx::mbarrier_wait(smem.full(ring.stage), ring.parity);
      multiply_stage<Cfg>(smem.weights(ring.stage), smem.activations(ring.stage),
                          phase.chunk_columns(c, Cfg::kDepth), d);
      release<Cfg>(smem, ring.stage);
      ring.advance();
    }
    float* const sets = smem.scratch() + (kInTurns ? buffer * Cfg::kPartialFloats : 0);
    if (kInTurns) {
      buffer ^= 1;
    } else {
      ptx::named_barrier_sync(kConsumerBarrier, kConsumers);  // the last block's have been read
    }
#pragma unroll
    for (int slice = 0; slice < Cfg::kSlices; ++slice) {
      write_partial<Cfg>(sets + slice * Cfg::kPartialFloats, slice, d);
    }
    ptx::named_barrier_sync(kConsumerBarrier, kConsumers);
    for (int i = static_cast<int>(threadIdx.x); i < kUnits * Cfg::kTokens; i += kConsumers) {
      const int unit = i % kUnits;  // neighbours store neighbouring columns
      const int token = i / kUnits;
      if (unit < block.size() && token < p.m) {
        finish<Cfg, kGated>(p, sets + token / kSliceTokens * Cfg::kPartialFloats,
                            slot_of_unit(unit, kGated), token % kSliceTokens, block.begin + unit,
                            token);
      }
    }
  }
}

}  // namespace sluice::cuda::sm90
