// SPDX-License-Identifier: Apache-2.0
// Dot products of weight rows with a few tokens. Included once per SIMD target.
//
// One token is bound by memory: rows are read one after the other, each with eight chains of sums,
// so that a thread reads one long stream, the next row prefetched beside this one. More tokens
// share a widened piece of weights: a tile of rows and up to six tokens is in flight, and K is cut
// so that those tokens' pieces stay in L1. A group of rows stays in L2 for all tokens, while the
// next group is brought there as one long stream. Sums stay in lanes to the end of the row.
#if defined(SLUICE_CPU_DECODE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_DECODE_INL
#undef SLUICE_CPU_DECODE_INL
#else
#define SLUICE_CPU_DECODE_INL
#endif

#include <algorithm>

#include "cpu/decode_blocks-inl.hpp"
#include "cpu/decode_fixed-inl.hpp"
#include "cpu/kernels.hpp"
#include "cpu/next_rows.hpp"
#include "cpu/vector-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

// Elements of a row between two visits of its group, for one token. Whole rows are one stream of
// memory, which is fastest where x comes along: from L1, where it takes 16 KiB at most, or from L2
// beside weights that take as many bytes as x. Else x's piece takes 8 KiB of L1.
template <class T, class X>
constexpr std::int64_t one_block(std::int64_t k) {
  return sizeof(T) == sizeof(X) || k <= DotKernels::kMaxWideCols ? k : 2048;
}
// So far ahead memory is asked for then, where a row is no longer than that.
inline constexpr std::int64_t kAheadBytes = 4096;
// Rows that take turns; of one token, and of more, whose partial sums then take at most 32 KiB.
inline constexpr int kOneRows = 16;
inline constexpr int kRowBlock = 32;
inline constexpr int kMaxTokens = static_cast<int>(DotKernels::kMaxTokens);

HWY_INLINE void prefetch(const void* line, std::int64_t from, std::int64_t bytes) {
  for (std::int64_t at = from; at < from + bytes; at += 64) __builtin_prefetch(behind(line, at));
}

template <int kCount>
HWY_INLINE hn::Vec<F32> sum_of(const hn::Vec<F32> (&v)[kCount]) {
  if constexpr (kCount == 1) {
    return v[0];
  } else {
    hn::Vec<F32> half[kCount / 2];
#pragma GCC unroll 4
    for (int c = 0; c < kCount / 2; ++c) half[c] = hn::Add(v[c], v[c + kCount / 2]);
    return sum_of(half);
  }
}

// sum[c] += the c-th of kCount vectors of weights by those of x, what lies `ahead` prefetched.
template <class T, class X, int kCount, int kChains>
HWY_INLINE void add_vectors(const void* line, const void* ahead, const void* x, std::int64_t k,
                            hn::Vec<F32> (&sum)[kChains]) {
  constexpr auto kElem = static_cast<std::int64_t>(sizeof(T));
  const F32 d;
  prefetch(ahead, k * kElem, kCount * kLanes * kElem);
#pragma GCC unroll 8
  for (int c = 0; c < kCount; ++c) {
    const std::int64_t at = k + c * kLanes;
    sum[c] = hn::MulAdd(load<T>(d, element<T>(line, at)), load<X>(d, element<X>(x, at)), sum[c]);
  }
}

// partial += line[begin, end) · x, lane by lane; the same piece of `ahead` is prefetched.
template <class T, class X>
HWY_NOINLINE void dot_piece(const void* line, const void* ahead, const void* x, std::int64_t begin,
                            std::int64_t end, float* partial) {
  constexpr int kChains = 8;
  const F32 d;
  hn::Vec<F32> sum[kChains];
#pragma GCC unroll 8
  for (int c = 0; c < kChains; ++c) sum[c] = hn::Zero(d);
  std::int64_t k = begin;
  for (; k + kChains * kLanes <= end; k += kChains * kLanes) {
    add_vectors<T, X, kChains>(line, ahead, x, k, sum);
  }
  // What is left keeps to many chains: short rows are mostly such ends.
  if (k + 4 * kLanes <= end) {
    add_vectors<T, X, 4>(line, ahead, x, k, sum);
    k += 4 * kLanes;
  }
  if (k + 2 * kLanes <= end) {
    add_vectors<T, X, 2>(line, ahead, x, k, sum);
    k += 2 * kLanes;
  }
  if (k + kLanes <= end) {
    add_vectors<T, X, 1>(line, ahead, x, k, sum);
    k += kLanes;
  }
  if (k < end) {
    sum[1] = hn::MulAdd(load_n<T>(d, element<T>(line, k), end - k), load<X>(d, element<X>(x, k)),
                        sum[1]);
  }
  const auto all = sum_of(sum);
  hn::StoreU(begin > 0 ? hn::Add(hn::LoadU(d, partial), all) : all, d, partial);
}

// sums[i] = the sum of the lanes of v[i], each summed in the same order: a 4 x 4 transposition of
// every 128-bit block, added up on the way, then blocks are added.
HWY_INLINE void sum_lanes(const float* const (&v)[4], float* sums) {
  const F32 d;
  const hn::Repartition<double, F32> pairs;
  const auto half = [&](const float* a, const float* b) HWY_ATTR {
    const auto va = hn::LoadU(d, a);
    const auto vb = hn::LoadU(d, b);
    return hn::BitCast(pairs,
                       hn::Add(hn::InterleaveLower(d, va, vb), hn::InterleaveUpper(d, va, vb)));
  };
  const auto low = half(v[0], v[1]);
  const auto high = half(v[2], v[3]);
  const auto blocks = hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, low, high)),
                              hn::BitCast(d, hn::InterleaveUpper(pairs, low, high)));
  const auto add_halves = [&](auto&& self, auto tag, auto all) HWY_ATTR -> void {
    if constexpr (kLanesOf<decltype(tag)> == 4) {
      hn::StoreU(all, tag, sums);
    } else {
      const hn::Half<decltype(tag)> dh;
      self(self, dh, hn::Add(hn::LowerHalf(dh, all), hn::UpperHalf(dh, all)));
    }
  };
  add_halves(add_halves, d, blocks);
}

template <class T, class X>
void dot_one_token(const void* const* lines, int count, const void* x, std::int64_t k, float* out) {
  constexpr auto kElem = static_cast<std::int64_t>(sizeof(T));
  alignas(64) float partial[kOneRows][kLanes] = {};
  const void* ahead[kOneRows];
  const std::int64_t block = one_block<T, X>(k);
  for (int first = 0; first < count; first += kOneRows) {
    const int rows = std::min(kOneRows, count - first);
    for (std::int64_t begin = 0; begin < k; begin += block) {
      const std::int64_t end = std::min(begin + block, k);
      stream_ahead(lines + first, rows, begin * kElem, end * kElem, k * kElem, kAheadBytes, ahead);
      for (int i = 0; i < rows; ++i) {
        dot_piece<T, X>(lines[first + i], ahead[i], x, begin, end, partial[i]);
      }
    }
    alignas(64) float sums[kOneRows];
    for (int i = 0; i < rows; i += 4) {
      sum_lanes({partial[i], partial[i + 1], partial[i + 2], partial[i + 3]}, sums + i);
    }
    std::copy_n(sums, rows, out + first);
  }
}

using Partial = float[kRowBlock][kMaxTokens][kLanes];

// A piece [begin, end) of K of a group of rows, and of tokens x[t * ldx + k].
struct Piece {
  const void* const* lines;
  const float* x;
  std::int64_t ldx;
  std::int64_t begin;
  std::int64_t end;
};

// partial[row + i][token + t] += lines[row + i][begin, end) · x[token + t], lane by lane in the
// order of k; `ahead` is brought into L2, kAhead lines a step of two vectors.
template <class T, int kRows, int kTokens, int kAhead>
HWY_NOINLINE void dot_tile(const Piece& p, int row, int token, const void* ahead,
                           Partial& partial) {
  const F32 d;
  hn::Vec<F32> sum[kRows][kTokens];
  const char* line[kRows];
  const float* const x = p.x + token * p.ldx;
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    line[i] = static_cast<const char*>(p.lines[row + i]);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) sum[i][t] = hn::LoadU(d, partial[row + i][token + t]);
  }
  const auto step = [&](std::int64_t k, const auto& weights) HWY_ATTR {
    hn::Vec<F32> w[kRows];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) w[i] = weights(i, k);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const auto xt = hn::LoadU(d, x + t * p.ldx + k);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) sum[i][t] = hn::MulAdd(w[i], xt, sum[i][t]);
    }
  };
  const auto whole = [&](int i, std::int64_t k)
                         HWY_ATTR { return load<T>(d, element<T>(line[i], k)); };
  std::int64_t k = p.begin;
  constexpr std::int64_t kPair = std::int64_t{2} * kLanes;
  for (; k + kPair <= p.end; k += kPair) {
#pragma GCC unroll 8
    for (int i = 0; i < kAhead; ++i) __builtin_prefetch(behind(ahead, std::int64_t{64} * i), 0, 2);
    ahead = behind(ahead, std::int64_t{64} * kAhead);
    step(k, whole);
    step(k + kLanes, whole);
  }
  if (k + kLanes <= p.end) step(k, whole), k += kLanes;
  if (k < p.end) {
    step(k, [&](int i, std::int64_t at)
                HWY_ATTR { return load_n<T>(d, element<T>(line[i], at), p.end - at); });
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) hn::StoreU(sum[i][t], d, partial[row + i][token + t]);
  }
}

// All rows of a group against kTokens tokens from `token` on, kRows at a time, then one by one. A
// row's sum is the same in either loop. A pass prefetches its share of `passes`.
template <class T, int kRows, int kTokens>
void dot_rows(const Piece& p, int count, int token, int passes, NextRows& next, Partial& partial) {
  constexpr std::int64_t kPairBytes =
      std::int64_t{2} * kLanes * static_cast<std::int64_t>(sizeof(T));
  constexpr int kMost = static_cast<int>((kRows * kPairBytes + 63) / 64);
  const std::int64_t steps = (p.end - p.begin) / (std::int64_t{2} * kLanes);
  const int lines = (kMost + passes - 1) / passes;
  int i = 0;
  for (; i + kRows <= count; i += kRows) {
    const void* const ahead = next.take(steps * lines * 64);
    switch (lines) {
      case 1:
        dot_tile<T, kRows, kTokens, 1>(p, i, token, ahead, partial);
        break;
      case 2:
        dot_tile<T, kRows, kTokens, 2>(p, i, token, ahead, partial);
        break;
      case 3:
        dot_tile<T, kRows, kTokens, 3>(p, i, token, ahead, partial);
        break;
      case 4:
        dot_tile<T, kRows, kTokens, 4>(p, i, token, ahead, partial);
        break;
      default:
        dot_tile<T, kRows, kTokens, kMost>(p, i, token, ahead, partial);
        break;
    }
  }
  for (; i < count; ++i) {
    dot_tile<T, 1, kTokens, 1>(p, i, token, next.take(steps * 64), partial);
  }
}

// Of L1 for the pieces of a pass's tokens, whose next pass finds the rows of a group in L2.
// Of L2 for a group of rows, beside the next group on its way.
inline constexpr std::int64_t kGroupBytes = std::int64_t{256} << 10;
inline constexpr std::int64_t kTokensBytes = 24576;

template <class T>
void dots(const void* const* lines, int count, const float* x, std::int64_t ldx, int tokens,
          std::int64_t k, float* out, std::int64_t ldo) {
  if (tokens == 1) return dot_one_token<T, float>(lines, count, x, k, out);
  constexpr auto kElem = static_cast<std::int64_t>(sizeof(T));
  constexpr int kPassTokens = kLanes == 16 ? 6 : 4;
  constexpr int kWide = kLanes == 16 ? 4 : 2;  // 32 or 16 registers for the sums
  const int passes = (tokens + kPassTokens - 1) / kPassTokens;
  const int most = (tokens + passes - 1) / passes;  // tokens of a pass
  const std::int64_t block =
      kTokensBytes / static_cast<std::int64_t>(sizeof(float)) / most / kMaxLanes * kMaxLanes;
  const auto group =
      static_cast<int>(std::clamp<std::int64_t>(kGroupBytes / (k * kElem) / 8 * 8, 8, kRowBlock));
  // Rows and tokens of no use stay zero.
  alignas(64) Partial partial;
  for (int first = 0; first < count; first += group) {
    const int rows = std::min(group, count - first);
    for (int i = 0; i < group; ++i) std::fill(partial[i][0], partial[i][tokens], 0.0F);
    NextRows next(lines + first + rows, group, k * kElem);
    for (std::int64_t begin = 0; begin < k; begin += block) {
      const Piece piece{lines + first, x, ldx, begin, std::min(begin + block, k)};
      for (int pass = 0, token = 0; pass < passes; ++pass) {
        const int some = (tokens - token) / (passes - pass);
        const auto rows_of = some == 1   ? dot_rows<T, 4, 1>
                             : some == 2 ? dot_rows<T, 4, 2>
                             : some == 3 ? dot_rows<T, kWide, 3>
                             : some == 4 ? dot_rows<T, kWide, 4>
                             : some == 5 ? dot_rows<T, kWide, 5>
                                         : dot_rows<T, kWide, 6>;
        rows_of(piece, rows, token, passes, next, partial);
        token += some;
      }
    }
    for (int t = 0; t < tokens; ++t) {
      alignas(64) float sums[kRowBlock];
      for (int i = 0; i < rows; i += 4) {
        sum_lanes({partial[i][t], partial[i + 1][t], partial[i + 2][t], partial[i + 3][t]},
                  sums + i);
      }
      std::copy_n(sums, rows, out + t * ldo + first);
    }
  }
}

// Integers are faster where a target multiplies their vectors at all.
constexpr DotKernels with_fixed(DotKernels kernels) {
#if HWY_TARGET != HWY_EMU128
  kernels.fixed_dots[static_cast<std::size_t>(DType::kQ8_0)] = fixed_dots_of_blocks<math::Q8_0>;
  kernels.fixed_dots[static_cast<std::size_t>(DType::kQ4_0)] = fixed_dots_of_blocks<math::Q4_0>;
  kernels.max_fixed_tokens = 1;
  kernels.to_fixed = to_fixed;
#endif
  return kernels;
}

inline const DotKernels& dot_table() {
  static constexpr DotKernels kTable = with_fixed({
      .max_tokens = kLanes == 16 ? 16 : 12,
      .dots = {dots<math::BF16>, dots<math::F16>, dots<float>, nullptr, dots_of_blocks<math::Q8_0>,
               dots_of_blocks<math::Q4_0>, dots_of_blocks<math::Q4_1>},
      .own_dots = {dot_one_token<math::BF16, math::BF16>, dot_one_token<math::F16, math::F16>},
  });
  static_assert(kTable.max_tokens <= DotKernels::kMaxTokens);
  return kTable;
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
