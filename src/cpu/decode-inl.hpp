// SPDX-License-Identifier: Apache-2.0
// Dot products of weight rows with a few tokens. Included once per SIMD target.
//
// kRows rows and kTokens tokens are in flight at once: every loaded piece of x meets kRows rows and
// every widened piece of a weight row kTokens tokens. kRows * kTokens >= 8 independent sums hide
// the latency of FMA. Sums stay in lanes for kBlock elements, then are reduced and added up, so
// that a long row is summed in blocks.
#if defined(SLUICE_CPU_DECODE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_DECODE_INL
#undef SLUICE_CPU_DECODE_INL
#else
#define SLUICE_CPU_DECODE_INL
#endif

#include <algorithm>

#include "cpu/decode_blocks-inl.hpp"
#include "cpu/kernels.hpp"
#include "cpu/vector-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

inline constexpr std::int64_t kDotBlock = 4096;

// out[t * ldo + i] (+)= the block's sums.
template <class T, int kRows, int kTokens>
HWY_NOINLINE void dot_block(const void* const* lines, const float* x, std::int64_t ldx,
                            std::int64_t begin, std::int64_t end, float* out, std::int64_t ldo) {
  const F32 d;
  hn::Vec<F32> sum[kRows][kTokens];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) sum[i][t] = hn::Zero(d);
  }
  const char* line[kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) line[i] = static_cast<const char*>(lines[i]);

  std::int64_t k = begin;
  for (; k + kLanes <= end; k += kLanes) {
    hn::Vec<F32> token[kTokens];
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) token[t] = hn::LoadU(d, x + t * ldx + k);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const auto w = load<T>(d, element<T>(line[i], k));
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) sum[i][t] = hn::MulAdd(w, token[t], sum[i][t]);
    }
  }
  if (k < end) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const auto w = load_n<T>(d, element<T>(line[i], k), end - k);
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) {
        sum[i][t] = hn::MulAdd(w, hn::LoadU(d, x + t * ldx + k), sum[i][t]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
      const float s = hn::GetLane(hn::SumOfLanes(d, sum[i][t]));
      float& to = out[t * ldo + i];
      to = begin == 0 ? s : to + s;
    }
  }
}

template <class T, int kRows, int kTokens>
HWY_INLINE void dot_rows(const void* const* lines, const float* x, std::int64_t ldx, std::int64_t k,
                         float* out, std::int64_t ldo) {
  for (std::int64_t begin = 0; begin < k; begin += kDotBlock) {
    dot_block<T, kRows, kTokens>(lines, x, ldx, begin, std::min(begin + kDotBlock, k), out, ldo);
  }
}

// All rows against kTokens tokens, kRows rows at a time, then one by one. A row's sum is the same
// in either loop: it depends on k alone.
template <class T, int kRows, int kTokens>
void dot_tokens(const void* const* lines, int count, const float* x, std::int64_t ldx,
                std::int64_t k, float* out, std::int64_t ldo) {
  int i = 0;
  for (; i + kRows <= count; i += kRows)
    dot_rows<T, kRows, kTokens>(lines + i, x, ldx, k, out + i, ldo);
  for (; i < count; ++i) dot_rows<T, 1, kTokens>(lines + i, x, ldx, k, out + i, ldo);
}

// All tokens against at most kRowBlock rows; up to 4 tokens share a pass over the rows.
template <class T>
HWY_INLINE void dot_row_block(const void* const* lines, int count, const float* x, std::int64_t ldx,
                              int tokens, std::int64_t k, float* out, std::int64_t ldo) {
  constexpr int kWide = kLanes == 16 ? 4 : 2;  // 32 or 16 registers for the sums
  while (tokens > 0) {
    const int passes = (tokens + 3) / 4;
    const int group = (tokens + passes - 1) / passes;
    switch (group) {
      case 1:
        dot_tokens<T, 8, 1>(lines, count, x, ldx, k, out, ldo);
        break;
      case 2:
        dot_tokens<T, 4, 2>(lines, count, x, ldx, k, out, ldo);
        break;
      case 3:
        dot_tokens<T, kWide, 3>(lines, count, x, ldx, k, out, ldo);
        break;
      default:
        dot_tokens<T, kWide, 4>(lines, count, x, ldx, k, out, ldo);
        break;
    }
    tokens -= group;
    x += group * ldx;
    out += group * ldo;
  }
}

// Rows in blocks, so that a second pass for further tokens finds them in a near cache.
template <class T>
void dots(const void* const* lines, int count, const float* x, std::int64_t ldx, int tokens,
          std::int64_t k, float* out, std::int64_t ldo) {
  constexpr int kRowBlock = 8;
  for (int i = 0; i < count; i += kRowBlock) {
    dot_row_block<T>(lines + i, std::min(kRowBlock, count - i), x, ldx, tokens, k, out + i, ldo);
  }
}

inline const DotKernels& dot_table() {
  static constexpr DotKernels kTable = {{dots<math::BF16>, dots<math::F16>, dots<float>, nullptr,
                                         dots_of_blocks<math::Q8_0>, dots_of_blocks<math::Q4_0>,
                                         dots_of_blocks<math::Q4_1>}};
  return kTable;
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
