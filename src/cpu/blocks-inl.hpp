// SPDX-License-Identifier: Apache-2.0
// GGUF's blocks of 32 weights as fp32 vectors, widened in registers. Included once per SIMD target.
//
// Every weight comes out as the number that sluice::DType defines: d · q is exact in fp32, so that
// a fused q · d + m rounds once, as the two steps of the emulated target do.
#if defined(SLUICE_CPU_BLOCKS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_BLOCKS_INL
#undef SLUICE_CPU_BLOCKS_INL
#else
#define SLUICE_CPU_BLOCKS_INL
#endif

#include <cstddef>

#include "cpu/vector-inl.hpp"
#include "math/block_types.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

inline constexpr int kBlockVecs = static_cast<int>(kBlockElems) / kLanes;

// What turns a block's integers into weights: d and m of sluice::DType, in every lane.
struct BlockScale {
  hn::Vec<F32> d;
  hn::Vec<F32> m;
};

HWY_INLINE std::uint16_t bits_at(const void* p, std::size_t offset) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, static_cast<const char*>(p) + offset, sizeof(bits));
  return bits;
}

// Scales of several blocks in a row, widened together: one by one that costs more than their
// weights do.
inline constexpr int kScaleRun = 16;

template <class T, class D = F32>
struct ScaleRun {
  static constexpr bool kHasLeast = T::kDType == DType::kQ4_1;
  alignas(64) float d[kScaleRun];
  alignas(64) float m[kHasLeast ? kScaleRun : 1];

  HWY_INLINE void load(const char* blocks, int count) {
    widen(blocks, count, 0, d);
    if constexpr (kHasLeast) widen(blocks, count, sizeof(math::F16), m);
  }
  [[nodiscard]] HWY_INLINE BlockScale at(int b) const {
    return {hn::Set(F32(), d[b]), hn::Set(F32(), m[kHasLeast ? b : 0])};
  }

 private:
  // Four halves a word: left to itself GCC gathers them by twice as many vector instructions.
  static HWY_INLINE void widen(const char* blocks, int count, std::size_t offset, float* out) {
    alignas(32) std::uint64_t words[kScaleRun / 4] = {};
    const auto half = [&](int b) -> std::uint64_t {
      return bits_at(blocks + b * sizeof(T), offset);
    };
    if (HWY_LIKELY(count == kScaleRun)) {
#pragma GCC unroll 4
      for (int b = 0; b < kScaleRun; b += 4) {
        words[b / 4] = half(b) | half(b + 1) << 16 | half(b + 2) << 32 | half(b + 3) << 48;
      }
    } else {
      for (int b = 0; b < count; ++b) words[b / 4] |= half(b) << (b % 4 * 16);
    }
    const auto* const bits = reinterpret_cast<const char*>(words);
    for (int b = 0; b < kScaleRun; b += kLanesOf<D>) {
      hn::Store(cpu::HWY_NAMESPACE::load<math::F16>(D(), bits + 2 * b), D(), out + b);
    }
  }
};

template <class T>
HWY_INLINE BlockScale scale_of(const void* block) {
  const auto widened = [block](std::size_t offset) {
    return widen_f16(F32(), hn::Set(Half<F32>(), bits_at(block, offset)));
  };
  const auto d = widened(0);
  if constexpr (T::kDType == DType::kQ4_1) return {d, widened(sizeof(math::F16))};
  return {d, d};
}

// w[v] = columns [v · kLanes, (v + 1) · kLanes) of a block.
template <class T>
HWY_INLINE void load_block(const void* block, const BlockScale& scale,
                           hn::Vec<F32> (&w)[kBlockVecs]) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const auto* const q = static_cast<const std::uint8_t*>(block) + offsetof(T, q);
  if constexpr (T::kDType == DType::kQ8_0) {
    const hn::Rebind<std::int8_t, F32> narrow;
#pragma GCC unroll 8
    for (int v = 0; v < kBlockVecs; ++v) {
      const auto* const at = reinterpret_cast<const std::int8_t*>(q + v * kLanes);
      w[v] = hn::Mul(hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(narrow, at))), scale.d);
    }
  } else {
    constexpr bool kHasLeast = T::kDType == DType::kQ4_1;
    constexpr int kHalf = kBlockVecs / 2;
    const hn::Rebind<std::uint8_t, F32> narrow;
    const auto weight = [&](hn::Vec<F32> level) {  // of q, or of q - 8
      return kHasLeast ? hn::MulAdd(level, scale.d, scale.m) : hn::Mul(level, scale.d);
    };
#if HWY_TARGET == HWY_AVX3
    // The weights of all 16 nibbles, looked up by the low 4 bits of a lane.
    const auto table = weight(hn::Iota(d, kHasLeast ? 0 : -8));
    const auto bytes = hn::PromoteTo(di, hn::LoadU(narrow, q));
    w[0] = hn::TableLookupLanes(table, hn::IndicesFromVec(d, bytes));
    w[kHalf] = hn::TableLookupLanes(table, hn::IndicesFromVec(d, hn::ShiftRight<4>(bytes)));
#else
    const auto level = [&](hn::Vec<decltype(di)> nibble) {
      return hn::ConvertTo(d, kHasLeast ? nibble : hn::Sub(nibble, hn::Set(di, 8)));
    };
#pragma GCC unroll 4
    for (int v = 0; v < kHalf; ++v) {
      const auto bytes = hn::PromoteTo(di, hn::LoadU(narrow, q + v * kLanes));
      w[v] = weight(level(hn::And(bytes, hn::Set(di, 0xF))));
      w[v + kHalf] = weight(level(hn::ShiftRight<4>(bytes)));
    }
#endif
  }
}

// The block that holds column `k` of a row.
template <class T>
HWY_INLINE const void* block_at(const void* row, std::int64_t k) {
  return static_cast<const char*>(row) + k / kBlockElems * static_cast<std::int64_t>(sizeof(T));
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
