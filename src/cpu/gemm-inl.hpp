// SPDX-License-Identifier: Apache-2.0
// The register tile of the GEMM and the packing of its panels. Included once per SIMD target.
// Sources: Goto and van de Geijn 2008; BLIS (Van Zee and van de Geijn 2015).
#if defined(SLUICE_CPU_GEMM_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_GEMM_INL
#undef SLUICE_CPU_GEMM_INL
#else
#define SLUICE_CPU_GEMM_INL
#endif

#include <algorithm>
#include <utility>

#include "cpu/blocks-inl.hpp"
#include "cpu/kernels.hpp"
#include "cpu/next_rows.hpp"
#include "cpu/vector-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

// Two vectors of B and one broadcast of A beside 2 * kTileRows sums: 27 of AVX-512's 32 registers,
// 15 of AVX2's 16; the emulated target's vectors are the compiler's 16 SSE registers.
inline constexpr int kTileRows = kLanes == 16 ? 12 : (kLanes == 8 ? 6 : 4);
inline constexpr int kAWidth = (kTileRows + 3) / 4 * 4;
// A's element of tile row i at step p.
template <Rows kForm>
HWY_INLINE float a_element(const float* a, int i, std::int64_t p) {
  return kForm == Rows::kLines ? a[i * kAStride + p] : a[p * kAWidth + i];
}

// Rows may be null, so addresses are numbers.
template <int kRows>
HWY_INLINE void prefetch_ahead(const Ahead& ahead, std::int64_t step) {
  for (std::int64_t at = 0; at < ahead.step_bytes; at += 64) {
    for (int i = 0; i < kRows; ++i) {
      const auto line = reinterpret_cast<std::uintptr_t>(ahead.lines[i]);
      const auto offset = static_cast<std::uintptr_t>(step * ahead.step_bytes + at);
      __builtin_prefetch(reinterpret_cast<const void*>(line + offset), 0, 3);
    }
  }
}

template <int kRows, int kVecs, Rows kForm>
void tile(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, std::int64_t k,
          float* HWY_RESTRICT c, std::int64_t ldc, bool add, const Ahead* ahead) {
  const F32 d;
  hn::Vec<F32> sum[kRows][kVecs];
#pragma GCC unroll 24
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) sum[i][v] = hn::Zero(d);
  }
  for (std::int64_t begin = 0; begin < k; begin += kAheadSteps) {
    if (ahead != nullptr) prefetch_ahead<kRows>(*ahead, begin / kAheadSteps);
    const std::int64_t end = begin + kAheadSteps < k ? begin + kAheadSteps : k;
    for (std::int64_t p = begin; p < end; ++p, b += kVecs * kLanes) {
      hn::Vec<F32> bv[kVecs];
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) bv[v] = hn::LoadU(d, b + v * kLanes);
#pragma GCC unroll 24
      for (int i = 0; i < kRows; ++i) {
        const auto ai = hn::Set(d, a_element<kForm>(a, i, p));
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) sum[i][v] = hn::MulAdd(ai, bv[v], sum[i][v]);
      }
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < kRows; ++i, c += ldc) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      float* const at = c + v * kLanes;
      hn::StoreU(add ? hn::Add(hn::LoadU(d, at), sum[i][v]) : sum[i][v], d, at);
    }
  }
}

// Twelve pointers, a counter and B's pointer are all that x86 has registers for.
inline constexpr int kRowTileRows = 12;

template <int kRows>
void row_tile(const float* const* lines, const float* HWY_RESTRICT b, std::int64_t k,
              float* HWY_RESTRICT c, std::int64_t ldc, bool add, NextRows& next) {
  // Steps between two rounds of prefetching: what they read of the rows is kAheadLines lines.
  constexpr std::int64_t kSteps = 4;
  constexpr int kLines = kRows * static_cast<int>(kSteps * sizeof(float)) / 64;
  const F32 d;
  hn::Vec<F32> sum[kRows];
  const float* line[kRows];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) line[i] = lines[i], sum[i] = hn::Zero(d);
  for (std::int64_t p = 0; p < k;) {
    const void* const ahead = next.take(64 * kLines);
#pragma GCC unroll 4
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(behind(ahead, std::int64_t{64} * i), 0, 2);
    for (const std::int64_t end = std::min(p + kSteps, k); p < end; ++p, b += kLanes) {
      const auto bv = hn::LoadU(d, b);
#pragma GCC unroll 12
      for (int i = 0; i < kRows; ++i) sum[i] = hn::MulAdd(hn::Set(d, line[i][p]), bv, sum[i]);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i, c += ldc) {
    hn::StoreU(add ? hn::Add(hn::LoadU(d, c), sum[i]) : sum[i], d, c);
  }
}

// By two vectors, indexed by rows.
template <Rows kForm>
constexpr GemmKernels::Tiles tiles() {
  return tiles_by_rows<kTileRows>([](auto rows) { return tile<rows, 2, kForm>; });
}

template <class T>
void widen_lines(const void* const* lines, int count, std::int64_t k, float* out) {
  const F32 d;
  for (int i = 0; i < count; ++i, out += kAStride) {
    std::int64_t p = 0;
    if (lines[i] == nullptr) {
      for (; p < k; p += kLanes) hn::StoreU(hn::Zero(d), d, out + p);
      continue;
    }
    for (; p + kLanes <= k; p += kLanes) {
      hn::StoreU(load<T>(d, element<T>(lines[i], p)), d, out + p);
    }
    if (p < k) hn::StoreU(load_n<T>(d, element<T>(lines[i], p), k - p), d, out + p);
  }
}

// The same from blocks: k is a multiple of theirs.
template <class T>
void widen_block_lines(const void* const* lines, int count, std::int64_t k, float* out) {
  const F32 d;
  for (int i = 0; i < count; ++i, out += kAStride) {
    if (lines[i] == nullptr) {
      std::fill(out, out + k, 0.0F);
      continue;
    }
    for (std::int64_t p = 0; p < k; p += kBlockElems) {
      const void* const block = block_at<T>(lines[i], p);
      hn::Vec<F32> w[kBlockVecs];
      load_block<T>(block, scale_of<T>(block), w);
#pragma GCC unroll 8
      for (int v = 0; v < kBlockVecs; ++v) hn::StoreU(w[v], d, out + p + v * kLanes);
    }
  }
}

// Stores each group of 4 lanes of v, `stride` floats apart.
template <class D>
HWY_INLINE void store_blocks(D d, hn::Vec<D> v, float* out, std::int64_t stride) {
  if constexpr (kLanesOf<D> == 4) {
    hn::StoreU(v, d, out);
  } else {
    const hn::Half<D> dh;
    store_blocks(dh, hn::LowerHalf(dh, v), out, stride);
    store_blocks(dh, hn::UpperHalf(dh, v), out + kLanesOf<D> / 8 * stride, stride);
  }
}

// out[k * width + i] = line i's element k, for 4 lines of kLanes elements: a 4 x 4 transposition in
// every 128-bit block, then one 16-byte store a column.
HWY_INLINE void store_transposed(const hn::Vec<F32> (&line)[4], int width, float* out) {
  const F32 d;
  const hn::Repartition<double, F32> pairs;
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, line[0], line[1]));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, line[2], line[3]));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, line[0], line[1]));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, line[2], line[3]));
  const std::int64_t block = std::int64_t{4} * width;
  store_blocks(d, hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), out, block);
  store_blocks(d, hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), out + width, block);
  store_blocks(d, hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), out + 2 * width,
               block);
  store_blocks(d, hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), out + 3 * width,
               block);
}

template <class T>
void pack_lines(const void* const* lines, int count, std::int64_t k, int width, float* out) {
  const F32 d;
  for (int i = 0; i < width; i += 4) {
    const void* line[4];
    for (int j = 0; j < 4; ++j) line[j] = i + j < count ? lines[i + j] : nullptr;
    const bool full =
        line[0] != nullptr && line[1] != nullptr && line[2] != nullptr && line[3] != nullptr;
    std::int64_t p = 0;
    if (full) {
      for (; p + kLanes <= k; p += kLanes) {
        hn::Vec<F32> v[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          v[j] = load<T>(d, element<T>(line[j], p));
          __builtin_prefetch(element<T>(line[j], p + k));  // the same piece of the next K block
        }
        store_transposed(v, width, out + p * width + i);
      }
    }
    for (; p < k; p += kLanes) {
      const std::int64_t n = k - p;
      hn::Vec<F32> v[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        v[j] = line[j] == nullptr ? hn::Zero(d)
               : n < kLanes       ? load_n<T>(d, element<T>(line[j], p), n)
                                  : load<T>(d, element<T>(line[j], p));
      }
      store_transposed(v, width, out + p * width + i);
    }
  }
}

// The same of weights in blocks, which k is whole ones of.
template <class T>
void pack_block_lines(const void* const* lines, int count, std::int64_t k, int width, float* out) {
  const F32 d;
  for (int i = 0; i < width; i += 4) {
    for (std::int64_t p = 0; p < k; p += kBlockElems) {
      hn::Vec<F32> line[4][kBlockVecs];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        if (i + j < count && lines[i + j] != nullptr) {
          const void* const block = block_at<T>(lines[i + j], p);
          load_block<T>(block, scale_of<T>(block), line[j]);
        } else {
          for (auto& v : line[j]) v = hn::Zero(d);
        }
      }
#pragma GCC unroll 8
      for (int v = 0; v < kBlockVecs; ++v) {
        const hn::Vec<F32> four[4] = {line[0][v], line[1][v], line[2][v], line[3][v]};
        store_transposed(four, width, out + (p + v * kLanes) * width + i);
      }
    }
  }
}

// Vectors of D divide `width`, so that none reaches into the next panel.
template <class T, class D>
HWY_INLINE void pack_row_by(D d, const void* row, std::int64_t n, int width,
                            std::int64_t panel_stride, float* out) {
  constexpr int kStep = kLanesOf<D>;
  for (std::int64_t j = 0; j < n; out += panel_stride) {
    for (int i = 0; i < width; i += kStep, j += kStep) {
      const std::int64_t left = n - j;
      const auto v = left >= kStep ? load<T>(d, element<T>(row, j))
                     : left > 0    ? load_n<T>(d, element<T>(row, j), left)
                                   : hn::Zero(d);
      hn::StoreU(v, d, out + i);
    }
  }
}

template <class T>
void pack_row(const void* row, std::int64_t n, int width, std::int64_t panel_stride, float* out) {
  if (width % kLanes == 0) return pack_row_by<T>(F32(), row, n, width, panel_stride, out);
  pack_row_by<T>(hn::CappedTag<float, 4>(), row, n, width, panel_stride, out);
}

inline const GemmKernels& gemm_table() {
  static constexpr GemmKernels kTable = {
      .lanes = kLanes,
      .tile_rows = kTileRows,
      .a_width = kAWidth,
      .tile = {tiles<Rows::kLines>(), tiles<Rows::kSteps>()},
      .narrow_tile = tile<2 * kTileRows, 1, Rows::kLines>,
      .row_tile = kLanes == 16 ? row_tile<kRowTileRows> : nullptr,
      .widen_lines = {widen_lines<math::BF16>, widen_lines<math::F16>, widen_lines<float>, nullptr,
                      widen_block_lines<math::Q8_0>, widen_block_lines<math::Q4_0>,
                      widen_block_lines<math::Q4_1>},
      .pack_lines = {pack_lines<math::BF16>, pack_lines<math::F16>, pack_lines<float>, nullptr,
                     pack_block_lines<math::Q8_0>, pack_block_lines<math::Q4_0>,
                     pack_block_lines<math::Q4_1>},
      .pack_row = {pack_row<math::BF16>, pack_row<math::F16>, pack_row<float>},
  };
  return kTable;
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
