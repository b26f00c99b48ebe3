// SPDX-License-Identifier: Apache-2.0
// Dot products of a few tokens in bf16 with AVX-512 BF16: weights in bf16, or in blocks whose
// integers bf16 holds exactly.
#include <algorithm>
#include <cstdint>

#include "cpu/bf16_kernels.hpp"
#include "cpu/next_rows.hpp"

// After everything that may be inlined from the standard library.
#include "cpu/bf16_blocks-inl.hpp"
#include "cpu/bf16_pairs-inl.hpp"

HWY_PUSH_ATTRIBUTES(SLUICE_AVX512_BF16)
namespace sluice::cpu {
namespace {

constexpr std::int64_t kElemBytes = 2;
constexpr int kMaxTokens = static_cast<int>(DotKernels::kMaxPairTokens);

// The first n < kPairLanes elements, and zeros; touches no byte behind them.
inline __m512i load_n(const void* p, std::int64_t n) {
  return _mm512_maskz_loadu_epi16((__mmask32{1} << n) - 1, p);
}

// Rows whose sums are reduced together, with those of two tokens: 16 vectors become one. Of one
// token there are twice as many rows.
constexpr int kRowBlock = 8;
constexpr int kMostRows = 2 * kRowBlock;
// Sums of a group of rows by lanes, to which further pieces of K are added: [token][row].
using Sums = float (*)[kLanes];

// Lane i of the result is the sum of v[i]'s lanes, each summed in the same order.
inline __m512 reduce(const float (*v)[kLanes]) {
  __m512 four[4];
  for (std::int64_t i = 0; i < 4; ++i) {
    __m512d two[2];
    for (std::int64_t j = 0; j < 2; ++j) {
      const __m512 a = _mm512_loadu_ps(v[4 * i + 2 * j]);
      const __m512 b = _mm512_loadu_ps(v[4 * i + 2 * j + 1]);
      two[j] = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
    }
    four[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(two[0], two[1])),
                            _mm512_castpd_ps(_mm512_unpackhi_pd(two[0], two[1])));
  }
  // Now every 128-bit block of four[i] has a part of v[4 i] to v[4 i + 3].
  constexpr int kEven = 0x88;
  constexpr int kOdd = 0xDD;
  __m512 half[2];
  for (std::int64_t i = 0; i < 2; ++i) {
    half[i] = _mm512_add_ps(_mm512_shuffle_f32x4(four[2 * i], four[2 * i + 1], kEven),
                            _mm512_shuffle_f32x4(four[2 * i], four[2 * i + 1], kOdd));
  }
  return _mm512_add_ps(_mm512_shuffle_f32x4(half[0], half[1], kEven),
                       _mm512_shuffle_f32x4(half[0], half[1], kOdd));
}

// A piece [begin, end) of K of a group of rows, and of the tokens x[t * ldx + k].
struct Piece {
  const void* const* lines;
  const void* const* ahead;  // rows whose same piece is prefetched
  const void* const* far;    // null, or rows for L2: the next group's, while this one is read there
  const std::uint16_t* x;
  std::int64_t ldx;
  std::int64_t begin;
  std::int64_t end;
  // Passes over the same rows share the prefetching evenly: that of this one begins here, and goes
  // on by so many bytes at a step.
  std::int64_t ahead_begin;
  std::int64_t ahead_step;
};

// partial[t * kRowBlock + row + i] = (begin > 0 ? that : 0) + lines[row + i] · x[t] over the piece,
// lane by lane.
template <int kRows, int kTokens>
void dot_tile(const Piece& p, int row, Sums partial) {
  const void* line[kRows];
  const void* ahead[kRows];
  __m512 sum[kRows][kTokens];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
    line[i] = p.lines[row + i];
    ahead[i] = behind(p.ahead[row + i], p.ahead_begin * kElemBytes);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      sum[i][t] =
          p.begin > 0 ? _mm512_loadu_ps(partial[t * kRowBlock + row + i]) : _mm512_setzero_ps();
    }
  }
  std::int64_t ahead_bytes = 0;
  for (std::int64_t k = p.begin; k < p.end; k += kPairLanes) {
    __m512i w[kRows];
    if (k + kPairLanes <= p.end) {
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        __builtin_prefetch(behind(ahead[i], ahead_bytes));
        w[i] = load(behind(line[i], k * kElemBytes));
      }
      ahead_bytes += p.ahead_step;
    } else {
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) w[i] = load_n(behind(line[i], k * kElemBytes), p.end - k);
    }
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const __m512i token = load(p.x + t * p.ldx + k);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) sum[i][t] = add_pairs(sum[i][t], w[i], token);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) _mm512_storeu_ps(partial[t * kRowBlock + row + i], sum[i][t]);
  }
}

// Added up in halves. The sums of a row stay in registers only where no loop is left around them.
template <int kCount>
HWY_INLINE __m512 sum_of(const __m512 (&v)[kCount]) {
  if constexpr (kCount == 1) {
    return v[0];
  } else {
    __m512 half[kCount / 2];
#pragma GCC unroll 4
    for (int c = 0; c < kCount / 2; ++c) half[c] = _mm512_add_ps(v[c], v[c + kCount / 2]);
    return sum_of(half);
  }
}

// A row, and what is prefetched beside it; `far` only where kFar.
struct Line {
  const void* at;
  const void* ahead;
  const void* far;
};

template <bool kFar>
HWY_INLINE void prefetch(const Line& line, std::int64_t k) {
  __builtin_prefetch(behind(line.ahead, k * kElemBytes));
  if constexpr (kFar) __builtin_prefetch(behind(line.far, k * kElemBytes));
}

// sum[t][c] += the c-th of kCount vectors from k on by token t.
template <bool kFar, int kCount, int kTokens, int kChains>
HWY_INLINE void add_vectors(const Piece& p, const Line& line, std::int64_t k,
                            __m512 (&sum)[kTokens][kChains]) {
#pragma GCC unroll 8
  for (int c = 0; c < kCount; ++c) {
    const std::int64_t at = k + c * kPairLanes;
    prefetch<kFar>(line, at);
    const __m512i w = load(behind(line.at, at * kElemBytes));
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      sum[t][c] = add_pairs(sum[t][c], w, load(p.x + t * p.ldx + at));
    }
  }
}

// The same for one row, so that a thread reads one long stream of memory. The k of a step are
// spread over chains of sums, up to sixteen with those of the tokens. What is left of a row keeps
// to that, and every line is prefetched: short rows are mostly such ends.
template <int kTokens, bool kFar>
void dot_row(const Piece& p, int row, Sums partial) {
  constexpr int kChains = kTokens <= 2 ? 8 : (kTokens <= 4 ? 4 : 2);
  const Line line{p.lines[row], p.ahead[row], kFar ? p.far[row] : nullptr};
  __m512 sum[kTokens][kChains];
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
    for (int c = 0; c < kChains; ++c) sum[t][c] = _mm512_setzero_ps();
  }
  std::int64_t k = p.begin;
  for (; k + kChains * kPairLanes <= p.end; k += kChains * kPairLanes) {
    add_vectors<kFar, kChains>(p, line, k, sum);
  }
  if constexpr (kChains > 4) {
    if (k + 4 * kPairLanes <= p.end) {
      add_vectors<kFar, 4>(p, line, k, sum);
      k += 4 * kPairLanes;
    }
  }
  if (k + 2 * kPairLanes <= p.end) {
    add_vectors<kFar, 2>(p, line, k, sum);
    k += 2 * kPairLanes;
  }
  for (; k < p.end; k += kPairLanes) {
    const std::int64_t left = p.end - k;
    const void* const at = behind(line.at, k * kElemBytes);
    prefetch<kFar>(line, k);
    const __m512i w = left >= kPairLanes ? load(at) : load_n(at, left);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      sum[t][0] = add_pairs(sum[t][0], w, load(p.x + t * p.ldx + k));
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
    const __m512 all = sum_of(sum[t]);
    float* const to = partial[t * kRowBlock + row];
    _mm512_storeu_ps(to, p.begin > 0 ? _mm512_add_ps(_mm512_loadu_ps(to), all) : all);
  }
}

// sum[t] += scale times a step's weights by token t.
template <class Steps, int kTokens>
HWY_INLINE void add_step(const __m512i (&w)[Steps::kVecs], __m512 scale, const std::uint16_t* x,
                         std::int64_t ldx, __m512 (&sum)[kTokens]) {
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
    __m512 step = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int v = 0; v < Steps::kVecs; ++v) {
      step = add_pairs(step, w[v], load(x + t * ldx + v * kPairLanes));
    }
    sum[t] = _mm512_fmadd_ps(step, scale, sum[t]);
  }
}

// The same of weights in blocks, for any number of tokens of a pass.
template <class Steps, int kTokens>
void dot_block_row(const Steps& steps, const Piece& p, int row, Sums partial) {
  constexpr std::int64_t kStepBytes = bytes_of(Steps::kDType, Steps::kCols);
  const auto* at = static_cast<const char*>(behind(p.lines[row], bytes_of(Steps::kDType, p.begin)));
  const void* ahead = behind(p.ahead[row], bytes_of(Steps::kDType, p.begin));
  const std::uint16_t* x = p.x + p.begin;
  __m512 sum[kTokens];
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) sum[t] = _mm512_setzero_ps();
  __m512i w[Steps::kVecs];
  __m512 scale;
  std::int64_t k = p.begin;
  for (; k + Steps::kCols <= p.end; k += Steps::kCols) {
    // Steps are a little longer than a line: either may be the one that no other step asks for.
    __builtin_prefetch(ahead);
    __builtin_prefetch(behind(ahead, 64));
    steps.load_step(at, w, scale);
    add_step<Steps>(w, scale, x, p.ldx, sum);
    at += kStepBytes;
    ahead = behind(ahead, kStepBytes);
    x += Steps::kCols;
  }
  if (k < p.end) {
    steps.load_last(at, static_cast<int>((p.end - k) / kBlockElems), w, scale);
    add_step<Steps>(w, scale, x, p.ldx, sum);
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
    float* const to = partial[t * kRowBlock + row];
    _mm512_storeu_ps(to, p.begin > 0 ? _mm512_add_ps(_mm512_loadu_ps(to), sum[t]) : sum[t]);
  }
}

// One piece for a group of rows; a row's sum does not depend on the others.
template <int kTokens>
void dot_rows(const Piece& p, int rows, Sums partial) {
  // Of 32 registers up to 24 for the sums; sixteen keep both multipliers busy on Zen 5.
  constexpr int kRows = kTokens <= 6 ? 4 : 3;
  int i = 0;
  for (; i + kRows <= rows; i += kRows) dot_tile<kRows, kTokens>(p, i, partial);
  for (; i + 2 <= rows; i += 2) dot_tile<2, kTokens>(p, i, partial);
  for (; i < rows; ++i) dot_tile<1, kTokens>(p, i, partial);
}

template <int kTokens>
void stream_rows(const Piece& p, int rows, Sums partial) {
  if (p.far == nullptr) {
    for (int i = 0; i < rows; ++i) dot_row<kTokens, false>(p, i, partial);
  } else {
    for (int i = 0; i < rows; ++i) dot_row<kTokens, true>(p, i, partial);
  }
}

template <class Steps, int kTokens>
void block_rows(const Piece& p, int rows, Sums partial) {
  const Steps steps;
  for (int i = 0; i < rows; ++i) dot_block_row<Steps, kTokens>(steps, p, i, partial);
}

using DotRows = void (*)(const Piece&, int rows, Sums partial);
constexpr int kPassTokens = 8;

// How `dots` reads weights of one type: rows by tokens of a pass.
struct Bf16Weights {
  static constexpr DType kDType = DType::kBF16;
  static constexpr std::int64_t kUnit = kPairLanes;  // of columns: pieces are whole ones
  // Up to so many tokens a thread waits for memory, not for sums: rows are read one by one.
  static constexpr int kStreamTokens = 4;
  // So far ahead of its use memory is asked for then, where a row is no longer than that.
  static constexpr std::int64_t kAheadBytes = 4096;
  // Whether the next group of rows is brought into L2 where rows take turns.
  static constexpr bool kFar = true;
  static constexpr DotRows kStreamRows[kPassTokens] = {stream_rows<1>, stream_rows<2>,
                                                       stream_rows<3>, stream_rows<4>};
  static constexpr DotRows kTileRows[kPassTokens] = {
      nullptr, nullptr, nullptr, dot_rows<4>, dot_rows<5>, dot_rows<6>, dot_rows<7>, dot_rows<8>};
};

// Unpacking a weight costs more than multiplying it, so one row meets all tokens of a pass.
template <class Steps>
struct BlockWeights {
  static constexpr DType kDType = Steps::kDType;
  static constexpr std::int64_t kUnit = DotKernels::kPairElems;
  static constexpr int kStreamTokens = kMaxTokens;
  static constexpr std::int64_t kAheadBytes = 8192;
  static constexpr bool kFar = false;
  static constexpr DotRows kStreamRows[kPassTokens] = {
      block_rows<Steps, 1>, block_rows<Steps, 2>, block_rows<Steps, 3>, block_rows<Steps, 4>,
      block_rows<Steps, 5>, block_rows<Steps, 6>, block_rows<Steps, 7>, block_rows<Steps, 8>};
  static constexpr DotRows kTileRows[kPassTokens] = {};
};

// What is prefetched beside the piece [begin, end) of K of a group of rows: the piece that follows
// it for the thread. Rows side by side go on with their own next piece, after the last one with the
// next group's first.
template <class Weights>
void lines_ahead(const void* const* lines, int rows, bool stream, std::int64_t begin,
                 std::int64_t end, std::int64_t k, const void** ahead) {
  const auto bytes = [](std::int64_t cols) { return bytes_of(Weights::kDType, cols); };
  if (stream) {
    return stream_ahead(lines, rows, bytes(begin), bytes(end), bytes(k), Weights::kAheadBytes,
                        ahead);
  }
  for (int i = 0; i < rows; ++i) {
    ahead[i] =
        end < k ? behind(lines[i], bytes(end - begin)) : behind(lines[rows + i], -bytes(begin));
  }
}

// Of L1 for the pieces of all tokens.
constexpr std::int64_t kTokensBytes = 32768;
// The same where rows would be one stream but have to take turns, as more tokens than fit L1 are as
// long as rows. Memory is then asked for the next group of rows, as one stream, and pieces of this
// one come from L2, of which two groups take half.
constexpr std::int64_t kTurnTokensBytes = 8192;
constexpr std::int64_t kGroupBytes = std::int64_t{256} << 10;

// Rows that take turns.
int group_rows(int tokens, bool far, std::int64_t row_bytes) {
  if (tokens == 1) return kMostRows;
  if (!far) return kRowBlock;
  return static_cast<int>(std::clamp<std::int64_t>(kGroupBytes / row_bytes, 1, kRowBlock));
}

template <class Weights>
void dots(const void* const* lines, int count, const std::uint16_t* x, std::int64_t ldx, int tokens,
          std::int64_t k, float* out, std::int64_t ldo) {
  const auto columns = [&](std::int64_t bytes) {
    return bytes / kElemBytes / tokens / Weights::kUnit * Weights::kUnit;
  };
  const int passes = (tokens + kPassTokens - 1) / kPassTokens;
  const bool stream = tokens <= Weights::kStreamTokens;
  const std::int64_t row_bytes = bytes_of(Weights::kDType, k);
  const bool far = Weights::kFar && stream && tokens > 1 && columns(kTokensBytes) < k;
  const std::int64_t block = columns(far ? kTurnTokensBytes : kTokensBytes);
  // Sums of what no row or token is stay finite, and are not stored.
  alignas(64) float partial[kMaxTokens * kRowBlock][kLanes] = {};
  const int group = group_rows(tokens, far, row_bytes);
  for (int first = 0; first < count; first += group) {
    const int rows = std::min(group, count - first);
    NextRows next(lines + first + rows, group, row_bytes);
    for (std::int64_t begin = 0; begin < k; begin += block) {
      const std::int64_t end = std::min(begin + block, k);
      const void* ahead[kMostRows];
      const void* next_group[kMostRows];
      lines_ahead<Weights>(lines + first, rows, stream, begin, end, k, ahead);
      if (far) next.beside(rows, begin * kElemBytes, end * kElemBytes, next_group);
      for (int pass = 0, t = 0; pass < passes; ++pass) {
        const int some = (tokens - t) / (passes - pass);
        const Piece piece{.lines = lines + first,
                          .ahead = ahead,
                          .far = far ? next_group : nullptr,
                          .x = x + t * ldx,
                          .ldx = ldx,
                          .begin = begin,
                          .end = end,
                          .ahead_begin = begin + pass * (end - begin) / passes,
                          .ahead_step = kPairLanes * kElemBytes / passes};
        (stream ? Weights::kStreamRows : Weights::kTileRows)[some - 1](
            piece, rows, partial + std::int64_t{t} * kRowBlock);
        t += some;
      }
    }
    const auto mask = static_cast<__mmask16>((1U << static_cast<unsigned>(rows)) - 1);
    if (tokens == 1) _mm512_mask_storeu_ps(out + first, mask, reduce(partial));
    for (int t = 0; tokens > 1 && t < tokens; t += 2) {
      const __m512 sums = reduce(partial + std::int64_t{t} * kRowBlock);
      float* const to = out + t * ldo + first;
      _mm512_mask_storeu_ps(to, mask, sums);
      if (t + 1 == tokens) break;
      _mm512_mask_storeu_ps(to + ldo, mask, _mm512_shuffle_f32x4(sums, sums, 0xEE));
    }
  }
}

}  // namespace
}  // namespace sluice::cpu
HWY_POP_ATTRIBUTES

// By any CPU: a plan may be made for another that has them.
namespace sluice::cpu {

DotKernels with_pairs(DotKernels kernels) noexcept {
  kernels.pair_dots[static_cast<std::size_t>(DType::kBF16)] = dots<Bf16Weights>;
  kernels.pair_dots[static_cast<std::size_t>(DType::kQ8_0)] = dots<BlockWeights<Q8_0Steps>>;
  kernels.pair_dots[static_cast<std::size_t>(DType::kQ4_0)] = dots<BlockWeights<Q4_0Steps>>;
  return kernels;
}

}  // namespace sluice::cpu
