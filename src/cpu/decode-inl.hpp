// SPDX-License-Identifier: Apache-2.0
// Dot products of weight rows with a few tokens. Included once per SIMD target.
//
// One token is bound by memory: rows are read one after the other, each with eight chains of sums,
// so that a thread reads one long stream, the next row prefetched beside this one. More tokens
// share a widened piece of weights: a tile of rows and tokens is in flight, and K is cut so that
// the tokens' pieces stay in L1. Sums stay in lanes to the end of the row, then are reduced.
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

// Elements of a row between two visits of its group, for one token: x's piece takes 8 KiB of L1.
inline constexpr std::int64_t kOneBlock = 2048;
// Rows that take turns; of one token, and of more, whose partial sums then take at most 6 KiB.
inline constexpr int kOneRows = 16;
inline constexpr int kRowBlock = 8;
inline constexpr int kMaxTokens = static_cast<int>(DotKernels::kMaxTokens);

// An address that may lie outside of any row: nothing is read there, so it is a number.
HWY_INLINE const void* behind(const void* line, std::int64_t bytes) {
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(line) +
                                       static_cast<std::uintptr_t>(bytes));
}

HWY_INLINE void prefetch(const void* line, std::int64_t from, std::int64_t bytes) {
  for (std::int64_t at = from; at < from + bytes; at += 64) __builtin_prefetch(behind(line, at));
}

// partial += line[begin, end) · x, lane by lane; the same piece of `ahead` is prefetched.
template <class T>
HWY_NOINLINE void dot_piece(const void* line, const void* ahead, const float* x, std::int64_t begin,
                            std::int64_t end, float* partial) {
  constexpr int kChains = 8;
  constexpr std::int64_t kStep = kChains * kLanes;
  const F32 d;
  hn::Vec<F32> sum[kChains];
#pragma GCC unroll 8
  for (int c = 0; c < kChains; ++c) sum[c] = hn::Zero(d);
  std::int64_t k = begin;
  for (; k + kStep <= end; k += kStep) {
    prefetch(ahead, k * static_cast<std::int64_t>(sizeof(T)), kStep * sizeof(T));
#pragma GCC unroll 8
    for (int c = 0; c < kChains; ++c) {
      const std::int64_t at = k + c * kLanes;
      sum[c] = hn::MulAdd(load<T>(d, element<T>(line, at)), hn::LoadU(d, x + at), sum[c]);
    }
  }
  for (; k + kLanes <= end; k += kLanes) {
    sum[0] = hn::MulAdd(load<T>(d, element<T>(line, k)), hn::LoadU(d, x + k), sum[0]);
  }
  if (k < end) {
    sum[1] = hn::MulAdd(load_n<T>(d, element<T>(line, k), end - k), hn::LoadU(d, x + k), sum[1]);
  }
  for (int half = kChains / 2; half > 0; half /= 2) {
    for (int c = 0; c < half; ++c) sum[c] = hn::Add(sum[c], sum[c + half]);
  }
  hn::StoreU(hn::Add(hn::LoadU(d, partial), sum[0]), d, partial);
}

template <class T>
void dot_one_token(const void* const* lines, int count, const float* x, std::int64_t k,
                   float* out) {
  const F32 d;
  for (int first = 0; first < count; first += kOneRows) {
    const int rows = std::min(kOneRows, count - first);
    alignas(64) float partial[kOneRows][kLanes] = {};
    for (std::int64_t begin = 0; begin < k; begin += kOneBlock) {
      const std::int64_t end = std::min(begin + kOneBlock, k);
      for (int i = 0; i < rows; ++i) {
        // What this thread reads next: the next row's piece, or the first row's next piece, whose
        // address is one block behind this one.
        const bool turn = i + 1 == rows && end < k;
        const void* ahead = turn ? element<T>(lines[first], kOneBlock) : lines[first + i + 1];
        dot_piece<T>(lines[first + i], ahead, x, begin, end, partial[i]);
      }
    }
    for (int i = 0; i < rows; ++i) {
      out[first + i] = hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, partial[i])));
    }
  }
}

using Partial = float[kRowBlock][kMaxTokens][kLanes];

// partial[i][t] += lines[i][begin, end) · x[t], lane by lane in the order of k. The same piece of
// ahead[i] is prefetched, unless `ahead` is null.
template <class T, int kRows, int kTokens>
HWY_NOINLINE void dot_tile(const void* const* lines, const void* const* ahead, const float* x,
                           std::int64_t ldx, std::int64_t begin, std::int64_t end,
                           float (*partial)[kMaxTokens][kLanes]) {
  const F32 d;
  hn::Vec<F32> sum[kRows][kTokens];
  const char* line[kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    line[i] = static_cast<const char*>(lines[i]);
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) sum[i][t] = hn::LoadU(d, partial[i][t]);
  }
  const auto step = [&](std::int64_t k, const auto& weights) HWY_ATTR {
    hn::Vec<F32> token[kTokens];
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) token[t] = hn::LoadU(d, x + t * ldx + k);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const auto w = weights(i, k);
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) sum[i][t] = hn::MulAdd(w, token[t], sum[i][t]);
    }
  };
  const auto whole = [&](int i, std::int64_t k)
                         HWY_ATTR { return load<T>(d, element<T>(line[i], k)); };
  std::int64_t k = begin;
  constexpr std::int64_t kPair = std::int64_t{2} * kLanes;
  for (; k + kPair <= end; k += kPair) {
    if (ahead != nullptr) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        prefetch(ahead[i], k * static_cast<std::int64_t>(sizeof(T)), kPair * sizeof(T));
      }
    }
    step(k, whole);
    step(k + kLanes, whole);
  }
  if (k + kLanes <= end) step(k, whole), k += kLanes;
  if (k < end) {
    step(k, [&](int i, std::int64_t at)
                HWY_ATTR { return load_n<T>(d, element<T>(line[i], at), end - at); });
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) hn::StoreU(sum[i][t], d, partial[i][t]);
  }
}

// All rows of a group against kTokens tokens from `token` on, kRows at a time, then one by one. A
// row's sum is the same in either loop.
template <class T, int kRows, int kTokens>
void dot_rows(const void* const* lines, int count, const void* const* ahead, const float* x,
              std::int64_t ldx, std::int64_t begin, std::int64_t end, int token, Partial& partial) {
  // Rows of partial begin at token 0; a tile's at its own first token.
  const auto at = [&](int row) {
    return reinterpret_cast<float(*)[kMaxTokens][kLanes]>(&partial[row][token]);
  };
  const auto ahead_of = [&](int row) { return ahead == nullptr ? nullptr : ahead + row; };
  int i = 0;
  for (; i + kRows <= count; i += kRows) {
    dot_tile<T, kRows, kTokens>(lines + i, ahead_of(i), x, ldx, begin, end, at(i));
  }
  for (; i < count; ++i) {
    dot_tile<T, 1, kTokens>(lines + i, ahead_of(i), x, ldx, begin, end, at(i));
  }
}

// One K block of a group of rows for two or more tokens, up to 4 of which share a pass.
template <class T>
void dot_block(const void* const* lines, int count, const void* const* ahead, const float* x,
               std::int64_t ldx, int tokens, std::int64_t begin, std::int64_t end,
               Partial& partial) {
  constexpr int kWide = kLanes == 16 ? 4 : 2;  // 32 or 16 registers for the sums
  for (int token = 0; token < tokens;) {
    const int passes = (tokens - token + 3) / 4;
    const int group = (tokens - token + passes - 1) / passes;
    const auto rows = group == 2   ? dot_rows<T, 4, 2>
                      : group == 3 ? dot_rows<T, kWide, 3>
                                   : dot_rows<T, kWide, 4>;
    rows(lines, count, token == 0 ? ahead : nullptr, x + token * ldx, ldx, begin, end, token,
         partial);
    token += group;
  }
}

template <class T>
void dots(const void* const* lines, int count, const float* x, std::int64_t ldx, int tokens,
          std::int64_t k, float* out, std::int64_t ldo) {
  if (tokens == 1) return dot_one_token<T>(lines, count, x, k, out);
  const F32 d;
  constexpr auto kElem = static_cast<std::int64_t>(sizeof(T));
  // Pieces of all tokens take at most 32 KiB.
  const std::int64_t block = 8192 / (tokens > 8 ? 16 : (tokens > 4 ? 8 : 4));
  for (int first = 0; first < count; first += kRowBlock) {
    const int rows = std::min(kRowBlock, count - first);
    alignas(64) Partial partial;
    for (int i = 0; i < rows; ++i) std::fill(partial[i][0], partial[i][tokens], 0.0F);
    for (std::int64_t begin = 0; begin < k; begin += block) {
      const std::int64_t end = std::min(begin + block, k);
      // The rows go on with their next piece, and the last piece with the next group's first.
      const void* ahead[kRowBlock];
      for (int i = 0; i < rows; ++i) {
        ahead[i] = end < k ? behind(lines[first + i], block * kElem)
                           : behind(lines[first + rows + i], -begin * kElem);
      }
      dot_block<T>(lines + first, rows, ahead, x, ldx, tokens, begin, end, partial);
    }
    for (int i = 0; i < rows; ++i) {
      for (int t = 0; t < tokens; ++t) {
        out[t * ldo + first + i] = hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, partial[i][t])));
      }
    }
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
