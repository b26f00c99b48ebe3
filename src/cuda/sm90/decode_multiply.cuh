// SPDX-License-Identifier: Apache-2.0
// What a consumer warp of the decode kernel does with a stage: weights are the A operand of
// mma.sync (16 rows a tile), tokens the B operand (8 a slice). See docs/kernels/mlp_decode.md.
#pragma once

#include <cstdint>

#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/sm90/decode_schedule.hpp"

namespace sluice::cuda::sm90 {

// What a warp loads of a row at once: all banks, and the span of the 128-byte swizzle.
inline constexpr int kSpanColumns = 64;
inline constexpr int kSpanBytes = 2 * kSpanColumns;
inline constexpr int kSliceTokens = 8;  // columns of one mma, and of one slice of the reduction

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

// By spans, from rows without padding: every kDepthWarps-th span.
template <class Cfg>
__device__ __forceinline__ void multiply_spans(const char* weights, const char* activations,
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
  constexpr int kTokenBytes = Cfg::kBoxes ? kSpanBytes : Cfg::kTokenBytes;
  constexpr int kSpanStride = Cfg::kBoxes ? Cfg::kTokens * kSpanBytes : kSpanBytes;
  const char* b_row = activations + lane / 4 * kTokenBytes;
  const int swizzle = Cfg::kBoxes ? lane / 4 : 0;
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

// By ldmatrix, from padded rows of weights: every kDepthWarps-th step of 16 columns. In a last step
// of 8 columns the other 8 hold what an earlier stage left: both operands count as 0 there.
template <class Cfg>
__device__ __forceinline__ void multiply_steps(const char* weights, const char* activations,
                                               int columns, Accumulators<Cfg>& d) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int depth_warp = warp % Cfg::kDepthWarps;
  const int row_warp = warp / Cfg::kDepthWarps;
  const std::uint32_t a_row =
      ptx::shared_address(weights) +
      (row_warp * Cfg::kTiles * kMmaRows + lane % 16) * Cfg::kWeightRowBytes + lane / 16 * 16;
  const std::uint32_t b_box = ptx::shared_address(activations);
  // Lane's row and half of K in the matrices of B, two slices of tokens.
  const int b_half = lane / 8 % 2;
  const int b_token = lane % 8 + lane / 16 * 8;
#pragma unroll
  for (int i = 0; i < Cfg::kDepth / 16 / Cfg::kDepthWarps; ++i) {
    const int step = i * Cfg::kDepthWarps + depth_warp;
    if (step * 16 >= columns) break;
    const bool half_step = step * 16 + 8 == columns;
    std::uint32_t a[Cfg::kTiles][4];
#pragma unroll
    for (int t = 0; t < Cfg::kTiles; ++t) {
      ptx::ldmatrix_x4(a[t], a_row + t * kMmaRows * Cfg::kWeightRowBytes + step * 32);
      if (half_step) a[t][2] = a[t][3] = 0;
    }
    std::uint32_t b[Cfg::kSlices][2];
    const int unit = (step % 4 * 2 + b_half) ^ (lane % 8);
    const std::uint32_t b_at =
        b_box + step / 4 * (Cfg::kTokens * kSpanBytes) + b_token * kSpanBytes + unit * 16;
#pragma unroll
    for (int s = 0; s < Cfg::kSlices; s += 2) {
      std::uint32_t two[4];
      ptx::ldmatrix_x4(two, b_at + s * kSliceTokens * kSpanBytes);
      b[s][0] = two[0], b[s][1] = two[1];
      b[s + 1][0] = two[2], b[s + 1][1] = two[3];
    }
#pragma unroll
    for (int s = 0; s < Cfg::kSlices; ++s) {
      if (half_step) b[s][1] = 0;
#pragma unroll
      for (int t = 0; t < Cfg::kTiles; ++t) {
        ptx::mma_m16n8k16<typename Cfg::Element>(d[t][s], a[t], b[s][0], b[s][1]);
      }
    }
  }
}

// d += this warp's share of one stage.
template <class Cfg>
__device__ __forceinline__ void multiply_stage(const char* weights, const char* activations,
                                               int columns, Accumulators<Cfg>& d) {
  if constexpr (Cfg::kLdmatrix) {
    multiply_steps<Cfg>(weights, activations, columns, d);
  } else {
    multiply_spans<Cfg>(weights, activations, columns, d);
  }
}

}  // namespace sluice::cuda::sm90
