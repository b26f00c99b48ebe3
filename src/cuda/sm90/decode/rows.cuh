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
#include "cuda/sm90/decode/policy.cuh"
#include "cuda/tile/ring.cuh"
#include "math/gate.hpp"

namespace sluice::cuda::sm90::decode {

/// Where a weight producer's row of a block begins; null where it has none. Asked of the block
/// behind a phase's last one too, where it may lie beyond the matrix and nobody reads it.
template <class Cfg, bool kGated>
__device__ __forceinline__ const char* own_row(const Params& p, const Phase& phase, int block) {
  const int slot = weight_slot<Cfg>();
  const SlotRow where = slot_row(slot, kGated);
  const tile::Rows& w = !kGated ? p.w_down : where.up ? p.w_up : p.w_gate;
  const UnitRange units = phase.block(block);
  const bool mine = slot < Cfg::kRows && where.unit < units.size();
  return mine ? w.at(units.begin + where.unit) : nullptr;
}

// Streams the weights of the phase; `source` is own_row() of its first block.
template <class Cfg, bool kGated>
__device__ __forceinline__ void stream_rows(const Params& p, const Smem<Cfg>& smem,
                                            const Phase& phase, const char* source,
                                            tile::RingCursor<Cfg::kStages>& ring,
                                            std::uint64_t policy) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int slot = weight_slot<Cfg>();
  for (int b = 0; b < phase.blocks; source = own_row<Cfg, kGated>(p, phase, ++b)) {
    const bool mine = source != nullptr;
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
}

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

template <class Cfg>
using Accumulators = float[Cfg::kTiles][Cfg::kSlices][4];

// A warp's share of one stage, every kDepthWarps-th span, in registers, so that the stage goes back
// to its producers before it is multiplied. Spans outside the matrix are 0.
template <class Cfg>
struct StageOperands {
  static constexpr int kSpans = Cfg::kDepth / kSpanColumns / Cfg::kDepthWarps;
  // Rows lane / 4 and lane / 4 + 8 of a tile, token lane / 4 of a slice: the fragments of an mma.
  SpanRow upper[kSpans][Cfg::kTiles];
  SpanRow lower[kSpans][Cfg::kTiles];
  SpanRow tokens[kSpans][Cfg::kSlices];

  static __device__ __forceinline__ StageOperands load(const char* weights, const char* activations,
                                                       int columns) {
    StageOperands out;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int row_warp = warp / Cfg::kDepthWarps;
    const char* a_row =
        weights + (row_warp * Cfg::kTiles * kMmaRows + lane / 4) * Cfg::kWeightRowBytes;
    constexpr int kTokenBytes = Cfg::kActivationBoxes ? kSpanBytes : Cfg::kTokenBytes;
    constexpr int kSpanStride = Cfg::kActivationBoxes ? Cfg::kTokens * kSpanBytes : kSpanBytes;
    const char* b_row = activations + lane / 4 * kTokenBytes;
    const int swizzle = Cfg::kActivationBoxes ? lane / 4 : 0;
#pragma unroll
    for (int i = 0; i < kSpans; ++i) {
      const int span = i * Cfg::kDepthWarps + warp % Cfg::kDepthWarps;
      const int units = (columns - span * kSpanColumns) / 8;
#pragma unroll
      for (int t = 0; t < Cfg::kTiles; ++t) {
        const char* row = a_row + t * kMmaRows * Cfg::kWeightRowBytes + span * kSpanBytes;
        out.upper[i][t] = SpanRow::load(row, units);
        out.lower[i][t] = SpanRow::load(row + kMmaRows / 2 * Cfg::kWeightRowBytes, units);
      }
#pragma unroll
      for (int s = 0; s < Cfg::kSlices; ++s) {
        const char* row = b_row + s * kSliceTokens * kTokenBytes;
        out.tokens[i][s] = SpanRow::load(row + span * kSpanStride, units, swizzle);
      }
    }
    return out;
  }
};

// d += what the operands say.
template <class Cfg>
__device__ __forceinline__ void multiply(const StageOperands<Cfg>& from, Accumulators<Cfg>& d) {
#pragma unroll
  for (int i = 0; i < StageOperands<Cfg>::kSpans; ++i) {
#pragma unroll
    for (int step = 0; step < kSpanColumns / 16; ++step) {
      // Slices in turns: an mma waits for the one before it on the same sums.
#pragma unroll
      for (int turn = 0; turn < Cfg::kSlices * Cfg::kTiles; ++turn) {
        const int s = turn / Cfg::kTiles;
        const int t = turn % Cfg::kTiles;
        const uint2 b = from.tokens[i][s].step(step);
        const uint2 up = from.upper[i][t].step(step);
        const uint2 low = from.lower[i][t].step(step);
        const std::uint32_t a[4] = {up.x, low.x, up.y, low.y};
        ptx::mma_m16n8k16<typename Cfg::Element>(d[t][s], a, b.x, b.y);
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

// What y adds to a product: bias, residual. Loaded before it is of use, and touched no sooner: who
// waits for a load keeps stages from their producers.
template <class Element>
struct Added {
  Element bias{};
  Element residual{};

  static __device__ __forceinline__ Added load(const Params& p, int token, int row) {
    Added a;
    if (p.b_down != nullptr) a.bias = static_cast<const Element*>(p.b_down)[row];
    // From L2, where it is if the launch before this one wrote it.
    if (p.residual.base != nullptr) {
      a.residual = __ldcg(element_at<Element>(p.residual, token, row));
    }
    return a;
  }
  __device__ __forceinline__ float sum() const {
    return static_cast<float>(bias) + static_cast<float>(residual);
  }
};

template <class Element>
__device__ __forceinline__ float vector_at(const void* base, int i) {
  return static_cast<float>(static_cast<const Element*>(base)[i]);
}

// h or y of one unit and token, from the CTA's sums.
template <class Cfg, bool kGated>
__device__ __forceinline__ void finish(const Params& p, const float* partial, int slot,
                                       int in_slice, int unit, int token,
                                       const Added<typename Cfg::Element>& added) {
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
    const float sum = total<Cfg>(partial, slot, in_slice) + added.sum();
    *element_at<Element>(p.y, token, unit) = Element(sum);
  }
}

// The phase of a consumer warp. There are two sets of partial sums. One slice of tokens takes them
// in turns, block by block: a set is written again two barriers later, when all have read it. Two
// slices take both, behind a barrier of their own, and are finished together.
template <class Cfg, bool kGated>
__device__ __forceinline__ void consume_rows(const Params& p, const Smem<Cfg>& smem,
                                             const Phase& phase) {
  using Element = typename Cfg::Element;
  constexpr int kUnits = kGated ? Cfg::kRows / 2 : Cfg::kRows;  // of a block, at most
  constexpr bool kInTurns = Cfg::kSlices == 1;
  static_assert(Cfg::kSlices <= 2);
  // This thread's part of a block: units are dealt first, so that neighbours store neighbouring
  // columns. Of one slice it has one at most.
  constexpr int kParts = kUnits * Cfg::kTokens;
  const auto unit_of = [](int part) { return part % kUnits; };
  const auto token_of = [](int part) { return part / kUnits; };
  const int own = static_cast<int>(threadIdx.x);
  constexpr bool kAddsEarly = !kGated && kParts <= kConsumers;
  tile::RingCursor<Cfg::kStages> ring;
  int buffer = 0;
  for (int b = 0; b < phase.blocks; ++b) {
    const UnitRange block = phase.block(b);
    const auto is_there = [&](int part) {
      return unit_of(part) < block.size() && token_of(part) < p.m;
    };
    Added<Element> added{};
    if constexpr (kAddsEarly) {
      // On its way while the block is multiplied, behind its first stage.
      ptx::mbarrier_wait(smem.full(ring.stage), ring.parity);
      if (is_there(own)) {
        added = Added<Element>::load(p, token_of(own), block.begin + unit_of(own));
      }
    }
    Accumulators<Cfg> d = {};
    for (int c = phase.chunks.begin; c < phase.chunks.end; ++c) {
      ptx::mbarrier_wait(smem.full(ring.stage), ring.parity);
      const auto operands =
          StageOperands<Cfg>::load(smem.weights(ring.stage), smem.activations(ring.stage),
                                   phase.chunk_columns(c, Cfg::kDepth));
      release<Cfg>(smem, ring.stage);
      multiply<Cfg>(operands, d);
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
    // NOTE: or ptxas has the part twice, for which half rings have no registers.
#pragma unroll 1
    for (int part = own; part < kParts; part += kConsumers) {
      if (!is_there(part)) continue;
      const int token = token_of(part);
      const int unit = unit_of(part);
      const int row = block.begin + unit;
      if (!kGated && !kAddsEarly) added = Added<Element>::load(p, token, row);
      finish<Cfg, kGated>(p, sets + token / kSliceTokens * Cfg::kPartialFloats,
                          slot_of_unit(unit, kGated), token % kSliceTokens, row, token, added);
    }
  }
}

}  // namespace sluice::cuda::sm90::decode
