// SPDX-License-Identifier: Apache-2.0
// Vectors of fp32 from and to memory of any element type. Included once per SIMD target.
//
// NOTE: Highway 1.0.3 truncates when it narrows to bf16, and its emulated fp16 conversions know
// neither infinity nor NaN; both are done here by bits. Its AVX2 Ne() is false for NaN: use
// IsNaN().
#if defined(SLUICE_CPU_VECTOR_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_VECTOR_INL
#undef SLUICE_CPU_VECTOR_INL
#else
#define SLUICE_CPU_VECTOR_INL
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "math/float_types.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
template <class D>
inline constexpr int kLanesOf = static_cast<int>(hn::MaxLanes(D()));
inline constexpr int kLanes = kLanesOf<F32>;

template <class D>
using Half = hn::Rebind<std::uint16_t, D>;

#if HWY_TARGET == HWY_EMU128
template <class D>
HWY_INLINE hn::Vec<D> widen_f16(D d, hn::Vec<Half<D>> bits) {
  const hn::RebindToUnsigned<D> du;
  const auto wide = hn::PromoteTo(du, bits);
  const auto sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(du, 0x8000U)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(wide, hn::Set(du, 0x7FFFU)));
  // Moving the exponent by a multiplication is exact and takes subnormals along.
  const auto finite = hn::BitCast(du, hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112F)));
  const auto special = hn::Or(magnitude, hn::Set(du, 0x7F800000U));
  const auto is_special = hn::Gt(magnitude, hn::Set(du, (0x7C00U << 13) - 1));
  return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(is_special, special, finite)));
}

template <class D>
HWY_INLINE hn::Vec<Half<D>> narrow_f16(D d, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(du, v);
  const auto sign = hn::And(bits, hn::Set(du, 0x80000000U));
  const auto magnitude = hn::Xor(bits, sign);
  // Below 2^-14 adding one half aligns the unit of fp32 with 2^-24: the FPU rounds.
  const auto subnormal =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5F))),
              hn::BitCast(du, hn::Set(d, 0.5F)));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1U));
  const auto rebased = hn::Sub(magnitude, hn::Set(du, 112U << 23));
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(rebased, hn::Set(du, 0xFFFU)), odd));
  const auto is_nan = hn::Gt(magnitude, hn::Set(du, 0x7F800000U));
  const auto overflow = hn::IfThenElse(is_nan, hn::Set(du, 0x7E00U), hn::Set(du, 0x7C00U));
  const auto is_small = hn::Lt(magnitude, hn::Set(du, 113U << 23));
  const auto is_large = hn::Gt(magnitude, hn::Set(du, (143U << 23) - 1));
  const auto half = hn::IfThenElse(is_large, overflow, hn::IfThenElse(is_small, subnormal, normal));
  const auto out = hn::Or(half, hn::ShiftRight<16>(sign));
  return hn::DemoteTo(Half<D>(), hn::BitCast(di, out));
}
#else
template <class D>
HWY_INLINE hn::Vec<D> widen_f16(D d, hn::Vec<Half<D>> bits) {
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
}

template <class D>
HWY_INLINE hn::Vec<Half<D>> narrow_f16(D /*d*/, hn::Vec<D> v) {
  return hn::BitCast(Half<D>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v));
}
#endif

// The same bits as math::to_bf16(float).
template <class D>
HWY_INLINE hn::Vec<Half<D>> narrow_bf16(D /*d*/, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(du, v);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(du, 1U));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFU)), odd));
  const auto quiet = hn::Or(upper, hn::Set(du, 0x40U));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
  return hn::DemoteTo(Half<D>(), hn::BitCast(di, hn::IfThenElse(is_nan, quiet, rounded)));
}

// Lanes(d) elements of type T at `p`, at any alignment, as fp32.
template <class T, class D>
HWY_INLINE hn::Vec<D> load(D d, const void* p) {
  if constexpr (std::is_same_v<T, float>) {
    return hn::LoadU(d, static_cast<const float*>(p));
  } else {
    const auto bits = hn::LoadU(Half<D>(), static_cast<const std::uint16_t*>(p));
    if constexpr (std::is_same_v<T, math::BF16>) {
      return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<D>(), bits)));
    } else {
      return widen_f16(d, bits);
    }
  }
}

// The first n < Lanes(d) elements at `p`, and zeros; touches no byte behind them.
template <class T, class D>
HWY_INLINE hn::Vec<D> load_n(D d, const void* p, std::int64_t n) {
  alignas(64) unsigned char padded[kLanes * sizeof(T)] = {};
  std::memcpy(padded, p, static_cast<std::size_t>(n) * sizeof(T));
  return load<T>(d, padded);
}

template <class T, class D>
HWY_INLINE void store(D d, hn::Vec<D> v, void* p) {
  if constexpr (std::is_same_v<T, float>) {
    hn::StoreU(v, d, static_cast<float*>(p));
  } else if constexpr (std::is_same_v<T, math::BF16>) {
    hn::StoreU(narrow_bf16(d, v), Half<D>(), static_cast<std::uint16_t*>(p));
  } else {
    hn::StoreU(narrow_f16(d, v), Half<D>(), static_cast<std::uint16_t*>(p));
  }
}

template <class T, class D>
HWY_INLINE void store_n(D d, hn::Vec<D> v, void* p, std::int64_t n) {
  alignas(64) unsigned char padded[kLanes * sizeof(T)];
  store<T>(d, v, padded);
  std::memcpy(p, padded, static_cast<std::size_t>(n) * sizeof(T));
}

// Pointer to element i of an array of T.
template <class T>
HWY_INLINE const void* element(const void* p, std::int64_t i) {
  return static_cast<const char*>(p) + i * static_cast<std::int64_t>(sizeof(T));
}
template <class T>
HWY_INLINE void* element(void* p, std::int64_t i) {
  return static_cast<char*>(p) + i * static_cast<std::int64_t>(sizeof(T));
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
