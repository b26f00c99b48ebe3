// SPDX-License-Identifier: Apache-2.0
// How the decode kernel's consumers read rows of shared memory that are not padded, and what they
// multiply weights by where that is what lies there.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode_policy.cuh"

namespace sluice::cuda::sm90 {

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

// The B operand of a block: a token's columns as they lie in a stage.
template <class Cfg>
class PlainTokens {
 public:
  __device__ __forceinline__ explicit PlainTokens(const DecodeParams&) {}
  /// This lane's columns of the span at `at` of token row `row`.
  static __device__ __forceinline__ SpanRow operand(const char* /*activations*/, const char* row,
                                                    int at, int units, int swizzle) {
    return SpanRow::load(row + at, units, swizzle);
  }
  // What only a deferred norm has to do.
  static __device__ __forceinline__ void write_squares(float*) {}
  static __device__ __forceinline__ void read_squares(const DecodeParams&, const float*, int) {}
};

}  // namespace sluice::cuda::sm90
