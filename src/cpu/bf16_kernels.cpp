// SPDX-License-Identifier: Apache-2.0
// Products of bf16 by bf16 with AVX-512 BF16: tiles of the GEMM and their packing.
#include "cpu/bf16_kernels.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "cpu/next_rows.hpp"

// After everything that may be inlined from the standard library.
#include "cpu/bf16_blocks-inl.hpp"
#include "cpu/bf16_pairs-inl.hpp"

HWY_PUSH_ATTRIBUTES(SLUICE_AVX512_BF16)
namespace sluice::cpu {
namespace {

constexpr std::int64_t kElemBytes = 2;
constexpr int kTileRows = 12;  // with two vectors, of AVX-512's GEMM

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

// Steps of k of a block of weights, and where in a row of a strip their scales begin.
constexpr std::int64_t kBlockSteps = kBlockElems / 2;
constexpr std::int64_t kScalesAt = kBlockK;
static_assert(kScalesAt + kBlockK / kBlockSteps <= kAStride);
static_assert(kAheadSteps % kBlockSteps == 0);

// The tile of weights in blocks: C gets the sum over each block by itself, times its scale. It
// stays in L1 meanwhile, as the sums take all registers: 24 loads and stores beside 384 products.
template <int kRows, int kVecs>
void scaled_tile(const float* a, const float* b, std::int64_t k, float* c, std::int64_t ldc,
                 bool add, const Ahead* ahead) {
  for (std::int64_t begin = 0; begin < k; begin += kBlockSteps) {
    if (ahead != nullptr && begin % kAheadSteps == 0) {
      prefetch_ahead<kRows>(*ahead, begin / kAheadSteps);
    }
    __m512 sum[kRows][kVecs];
#pragma GCC unroll 24
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) sum[i][v] = _mm512_setzero_ps();
    }
    for (std::int64_t p = begin; p < begin + kBlockSteps; ++p, b += kVecs * kLanes) {
      __m512i bv[kVecs];
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) bv[v] = load(b + v * kLanes);
#pragma GCC unroll 24
      for (int i = 0; i < kRows; ++i) {
        const __m512i ai = _mm512_castps_si512(_mm512_set1_ps(a[i * kAStride + p]));
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) sum[i][v] = add_pairs(sum[i][v], ai, bv[v]);
      }
    }
    const float* const scales = a + kScalesAt + begin / kBlockSteps;
    const bool first = !add && begin == 0;
#pragma GCC unroll 24
    for (int i = 0; i < kRows; ++i) {
      const __m512 scale = _mm512_set1_ps(scales[i * kAStride]);
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        float* const at = c + i * ldc + v * kLanes;
        _mm512_storeu_ps(at, first ? _mm512_mul_ps(sum[i][v], scale)
                                   : _mm512_fmadd_ps(sum[i][v], scale, _mm512_loadu_ps(at)));
      }
    }
  }
}

// GemmKernels::widen_block_pairs.
template <class Steps>
void widen_block_pairs(const void* const* lines, int count, std::int64_t k, float* out) {
  constexpr auto kBlocks = static_cast<int>(Steps::kCols / kBlockElems);
  // A scale is in 16 / kBlocks lanes.
  constexpr auto kOneEach = static_cast<__mmask16>(kBlocks == 4 ? 0x1111 : 0x0101);
  static_assert(kBlocks == 4 || kBlocks == 2);
  const Steps steps;
  for (int i = 0; i < count; ++i, out += kAStride) {
    if (lines[i] == nullptr) {
      std::fill(out, out + kAStride, 0.0F);
      continue;
    }
    for (std::int64_t col = 0; col < k; col += Steps::kCols) {
      const auto* const at =
          static_cast<const char*>(behind(lines[i], bytes_of(Steps::kDType, col)));
      __m512i w[Steps::kVecs];
      __m512 scale;
      if (col + Steps::kCols <= k) {
        steps.load_step(at, w, scale);
      } else {
        steps.load_last(at, static_cast<int>((k - col) / kBlockElems), w, scale);
      }
      Steps::in_order(w);
      for (std::int64_t v = 0; v < Steps::kVecs; ++v) {
        _mm512_storeu_si512(out + (col / 2 + v * kLanes), w[v]);
      }
      _mm512_mask_storeu_ps(out + kScalesAt + col / kBlockElems, (__mmask16{1} << kBlocks) - 1,
                            _mm512_maskz_compress_ps(kOneEach, scale));
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

}  // namespace
}  // namespace sluice::cpu
HWY_POP_ATTRIBUTES

// By any CPU: a plan may be made for another that has them.
namespace sluice::cpu {

GemmKernels with_pairs(GemmKernels kernels) noexcept {
  kernels.pair_tile[static_cast<std::size_t>(Rows::kLines)] = tiles<Rows::kLines>();
  kernels.pair_tile[static_cast<std::size_t>(Rows::kSteps)] = tiles<Rows::kSteps>();
  kernels.narrow_pair_tile = tile<2 * kTileRows, 1, Rows::kLines>;
  kernels.pack_row_pairs = pack_row_pairs;
  kernels.scaled_tile = scaled_tile<kTileRows, 2>;
  kernels.narrow_scaled_tile = scaled_tile<2 * kTileRows, 1>;
  kernels.widen_block_pairs[static_cast<std::size_t>(DType::kQ8_0)] = widen_block_pairs<Q8_0Steps>;
  kernels.widen_block_pairs[static_cast<std::size_t>(DType::kQ4_0)] = widen_block_pairs<Q4_0Steps>;
  return kernels;
}

}  // namespace sluice::cpu
