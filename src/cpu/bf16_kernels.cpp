// SPDX-License-Identifier: Apache-2.0
// Products of bf16 by bf16 with AVX-512 BF16, in intrinsics: Highway 1.0.3 has no such target.
//
// vdpbf16ps adds two products to each fp32 lane: first the odd element's, then the even one's, each
// by a fused multiply-add that rounds to nearest even. It takes subnormal elements as zeros,
// flushes subnormal sums to zero and ignores MXCSR (Intel SDM, VDPBF16PS; the order was tried on
// Zen 5).
#include "cpu/bf16_kernels.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "cpu/next_rows.hpp"
#include "cpu/simd_targets.hpp"
#include "hwy/base.h"

// GCC bug 105593: undefined vectors inside of intrinsics.
#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif

// Everything that may be inlined from the standard library is declared above, without the target.
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
namespace sluice::cpu {
namespace {

constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kPairLanes = 2 * kLanes;  // elements of a vector
constexpr std::int64_t kElemBytes = 2;
constexpr int kTileRows = 12;  // with two vectors, of AVX-512's GEMM
constexpr int kMaxTokens = static_cast<int>(DotKernels::kMaxPairTokens);

inline __m512 add_pairs(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

inline __m512i load(const void* p) { return _mm512_loadu_si512(p); }

// The first n < kPairLanes elements, and zeros; touches no byte behind them.
inline __m512i load_n(const void* p, std::int64_t n) {
  return _mm512_maskz_loadu_epi16((__mmask32{1} << n) - 1, p);
}

template <int kRows>
inline void prefetch_ahead(const Ahead& ahead, std::int64_t step) {
  for (std::int64_t at = 0; at < ahead.step_bytes; at += 64) {
    for (int i = 0; i < kRows; ++i) {
      __builtin_prefetch(behind(ahead.lines[i], step * ahead.step_bytes + at), 0, 3);
    }
  }
}

template <int kRows, int kVecs, Rows kForm>
void tile(const float* a, const float* b, std::int64_t k, float* c, std::int64_t ldc, bool add,
          const Ahead* ahead) {
  __m512 sum[kRows][kVecs];
#pragma GCC unroll 24
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) sum[i][v] = _mm512_setzero_ps();
  }
  for (std::int64_t begin = 0; begin < k; begin += kAheadSteps) {
    if (ahead != nullptr) prefetch_ahead<kRows>(*ahead, begin / kAheadSteps);
    const std::int64_t end = begin + kAheadSteps < k ? begin + kAheadSteps : k;
    for (std::int64_t p = begin; p < end; ++p, b += kVecs * kLanes) {
      __m512i bv[kVecs];
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) bv[v] = load(b + v * kLanes);
#pragma GCC unroll 24
      for (int i = 0; i < kRows; ++i) {
        const __m512i ai = _mm512_castps_si512(
            _mm512_set1_ps(kForm == Rows::kLines ? a[i * kAStride + p] : a[p * kTileRows + i]));
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) sum[i][v] = add_pairs(sum[i][v], ai, bv[v]);
      }
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < kRows; ++i, c += ldc) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      float* const at = c + v * kLanes;
      _mm512_storeu_ps(at, add ? _mm512_add_ps(_mm512_loadu_ps(at), sum[i][v]) : sum[i][v]);
    }
  }
}

// By two vectors, indexed by rows.
template <Rows kForm>
constexpr GemmKernels::Tiles tiles() {
  return tiles_by_rows<kTileRows>([](auto rows) { return tile<rows, 2, kForm>; });
}

void pack_row_pairs(const void* even, const void* odd, std::int64_t n, int width,
                    std::int64_t panel_stride, float* out) {
  for (std::int64_t j = 0; j < n; out += panel_stride) {
    for (std::int64_t i = 0; i < width; i += kLanes, j += std::min<std::int64_t>(width, kLanes)) {
      const auto first = [](std::int64_t count) {
        return static_cast<__mmask16>(
            (1U << static_cast<unsigned>(std::clamp<std::int64_t>(count, 0, kLanes))) - 1);
      };
      const __mmask16 store = first(width - i);
      const __mmask16 mask = store & first(n - j);
      const __m512i low =
          _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, behind(even, j * kElemBytes)));
      const __m512i high =
          odd == nullptr
              ? _mm512_setzero_si512()
              : _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, behind(odd, j * kElemBytes)));
      _mm512_mask_storeu_epi32(out + i, store, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }
}

// Rows whose sums are reduced together, with those of two tokens: 16 vectors become one.
constexpr int kRowBlock = 8;
// Sums of a group of rows by lanes, to which further pieces of K are added.
using Partial = float[kMaxTokens][kRowBlock][kLanes];

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
  const std::uint16_t* x;
  std::int64_t ldx;
  std::int64_t begin;
  std::int64_t end;
  // Passes over the same rows share the prefetching evenly: that of this one begins here, and goes
  // on by so many bytes at a step.
  std::int64_t ahead_begin;
  std::int64_t ahead_step;
};

// partial[t][row + i] = (begin > 0 ? that : 0) + lines[row + i] · x[t] over the piece, lane by
// lane.
template <int kRows, int kTokens>
void dot_tile(const Piece& p, int row, float (*partial)[kRowBlock][kLanes]) {
  const void* line[kRows];
  const void* ahead[kRows];
  __m512 sum[kRows][kTokens];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
    line[i] = p.lines[row + i];
    ahead[i] = behind(p.ahead[row + i], p.ahead_begin * kElemBytes);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      sum[i][t] = p.begin > 0 ? _mm512_loadu_ps(partial[t][row + i]) : _mm512_setzero_ps();
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
    for (int t = 0; t < kTokens; ++t) _mm512_storeu_ps(partial[t][row + i], sum[i][t]);
  }
}

// The same for one row, so that a thread reads one long stream of memory. The k of a step are
// spread over chains of sums, up to sixteen with those of the tokens.
template <int kTokens>
void dot_row(const Piece& p, int row, float (*partial)[kRowBlock][kLanes]) {
  constexpr int kChains = kTokens <= 2 ? 8 : (kTokens <= 4 ? 4 : 2);
  constexpr std::int64_t kStep = kChains * kPairLanes;
  const void* const line = p.lines[row];
  const void* const ahead = p.ahead[row];
  __m512 sum[kTokens][kChains];
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
    for (int c = 0; c < kChains; ++c) sum[t][c] = _mm512_setzero_ps();
  }
  std::int64_t k = p.begin;
  for (; k + kStep <= p.end; k += kStep) {
#pragma GCC unroll 8
    for (int c = 0; c < kChains; ++c) {
      const std::int64_t at = k + c * kPairLanes;
      __builtin_prefetch(behind(ahead, at * kElemBytes));
      const __m512i w = load(behind(line, at * kElemBytes));
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        sum[t][c] = add_pairs(sum[t][c], w, load(p.x + t * p.ldx + at));
      }
    }
  }
  for (; k < p.end; k += kPairLanes) {
    const std::int64_t left = p.end - k;
    const void* const at = behind(line, k * kElemBytes);
    const __m512i w = left >= kPairLanes ? load(at) : load_n(at, left);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      sum[t][0] = add_pairs(sum[t][0], w, load(p.x + t * p.ldx + k));
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 3
    for (int half = kChains / 2; half > 0; half /= 2) {
#pragma GCC unroll 4
      for (int c = 0; c < half; ++c) sum[t][c] = _mm512_add_ps(sum[t][c], sum[t][c + half]);
    }
    float* const to = partial[t][row];
    _mm512_storeu_ps(to, p.begin > 0 ? _mm512_add_ps(_mm512_loadu_ps(to), sum[t][0]) : sum[t][0]);
  }
}

// Up to so many tokens a thread waits for memory, not for sums: rows are read one by one.
constexpr int kStreamTokens = 4;
// So far ahead of its use memory is asked for then, where a row is no longer than that.
constexpr std::int64_t kAheadBytes = 4096;

// One piece for up to kRowBlock rows; a row's sum does not depend on the others.
template <int kTokens>
void dot_rows(const Piece& p, int rows, float (*partial)[kRowBlock][kLanes]) {
  // Of 32 registers up to 24 for the sums; sixteen keep both multipliers busy on Zen 5.
  constexpr int kRows = kTokens <= 6 ? 4 : 3;
  int i = 0;
  for (; i + kRows <= rows; i += kRows) dot_tile<kRows, kTokens>(p, i, partial);
  for (; i + 2 <= rows; i += 2) dot_tile<2, kTokens>(p, i, partial);
  for (; i < rows; ++i) dot_tile<1, kTokens>(p, i, partial);
}

template <int kTokens>
void stream_rows(const Piece& p, int rows, float (*partial)[kRowBlock][kLanes]) {
  for (int i = 0; i < rows; ++i) dot_row<kTokens>(p, i, partial);
}

using DotRows = void (*)(const Piece&, int rows, float (*partial)[kRowBlock][kLanes]);
constexpr int kPassTokens = 8;
constexpr DotRows kStreamRows[kStreamTokens] = {stream_rows<1>, stream_rows<2>, stream_rows<3>,
                                                stream_rows<4>};
constexpr DotRows kDotRows[kPassTokens] = {nullptr,     nullptr,     nullptr,     dot_rows<4>,
                                           dot_rows<5>, dot_rows<6>, dot_rows<7>, dot_rows<8>};

// What is prefetched beside the piece [begin, end) of K of a group of rows: the piece that follows
// it for the thread. A stream's is the next row's, or that of a row kAheadBytes on; else the rows
// go on with their own next piece. After the last piece comes the next group's first.
void lines_ahead(const void* const* lines, int rows, bool stream, std::int64_t begin,
                 std::int64_t end, std::int64_t k, const void** ahead) {
  const std::int64_t piece_bytes = (end - begin) * kElemBytes;
  if (stream && end - begin == k) {
    const auto distance = static_cast<int>(
        std::clamp<std::int64_t>(kAheadBytes / piece_bytes, 1, DotKernels::kAheadLines));
    std::copy_n(lines + distance, rows, ahead);
    return;
  }
  for (int i = 0; i < rows; ++i) {
    if (stream && i + 1 < rows) {
      ahead[i] = lines[i + 1];
    } else if (end < k) {
      ahead[i] = behind(lines[stream ? 0 : i], piece_bytes);
    } else {
      ahead[i] = behind(lines[stream ? rows : rows + i], -begin * kElemBytes);
    }
  }
}

// Of L1 for the pieces of all tokens.
constexpr std::int64_t kTokensBytes = 32768;

void dots(const void* const* lines, int count, const std::uint16_t* x, std::int64_t ldx, int tokens,
          std::int64_t k, float* out, std::int64_t ldo) {
  const std::int64_t block = kTokensBytes / kElemBytes / tokens / kPairLanes * kPairLanes;
  const int passes = (tokens + kPassTokens - 1) / kPassTokens;
  const bool stream = tokens <= kStreamTokens;
  // Sums of what no row or token is stay zero.
  alignas(64) Partial partial = {};
  for (int first = 0; first < count; first += kRowBlock) {
    const int rows = std::min(kRowBlock, count - first);
    for (std::int64_t begin = 0; begin < k; begin += block) {
      const std::int64_t end = std::min(begin + block, k);
      const void* ahead[kRowBlock];
      lines_ahead(lines + first, rows, stream, begin, end, k, ahead);
      for (int pass = 0, t = 0; pass < passes; ++pass) {
        const int some = (tokens - t) / (passes - pass);
        const Piece piece{.lines = lines + first,
                          .ahead = ahead,
                          .x = x + t * ldx,
                          .ldx = ldx,
                          .begin = begin,
                          .end = end,
                          .ahead_begin = begin + pass * (end - begin) / passes,
                          .ahead_step = kPairLanes * kElemBytes / passes};
        (stream ? kStreamRows : kDotRows)[some - 1](piece, rows, partial + t);
        t += some;
      }
    }
    const auto mask = static_cast<__mmask8>((1U << static_cast<unsigned>(rows)) - 1);
    for (int t = 0; t < tokens; t += 2) {
      const __m512 sums = reduce(partial[t]);
      float* const to = out + t * ldo + first;
      _mm256_mask_storeu_ps(to, mask, _mm512_castps512_ps256(sums));
      if (t + 1 < tokens) _mm256_mask_storeu_ps(to + ldo, mask, _mm512_extractf32x8_ps(sums, 1));
    }
  }
}

}  // namespace

GemmKernels with_pairs(GemmKernels kernels) noexcept {
  kernels.pair_tile[static_cast<std::size_t>(Rows::kLines)] = tiles<Rows::kLines>();
  kernels.pair_tile[static_cast<std::size_t>(Rows::kSteps)] = tiles<Rows::kSteps>();
  kernels.narrow_pair_tile = tile<2 * kTileRows, 1, Rows::kLines>;
  kernels.pack_row_pairs = pack_row_pairs;
  return kernels;
}

DotKernels with_pairs(DotKernels kernels) noexcept {
  kernels.pair_dots = dots;
  return kernels;
}

}  // namespace sluice::cpu
HWY_POP_ATTRIBUTES
