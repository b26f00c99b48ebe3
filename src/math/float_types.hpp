// SPDX-License-Identifier: Apache-2.0
// bf16 and fp16 as bits, with exact widening and round-to-nearest-even narrowing, for host code of
// every backend and the oracle. Source: IEEE 754-2019; bfloat16 is the upper half of binary32.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "sluice/types.hpp"

namespace sluice::math {

struct BF16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

[[nodiscard]] constexpr float widen(BF16 v) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(v.bits) << 16);
}

[[nodiscard]] constexpr float widen(F16 v) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(v.bits & 0x8000U) << 16;
  const std::uint32_t exponent = (v.bits >> 10) & 0x1FU;
  const std::uint32_t mantissa = v.bits & 0x3FFU;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;  // subnormal: exact in fp32
  return sign != 0 ? -magnitude : magnitude;
}

// Rounds a double once to a binary format of `kMantissa` stored mantissa bits and minimum normal
// exponent `kMinExponent`; the caller packs it. Rounding through fp32 first would round twice.
namespace detail {
[[nodiscard]] inline double round_to(double v, int mantissa_bits, int min_exponent) noexcept {
  if (!std::isfinite(v) || v == 0) return v;
  int exponent = 0;
  static_cast<void>(std::frexp(v, &exponent));  // |v| in [2^(exponent-1), 2^exponent)
  const int unit = std::max(exponent - 1, min_exponent) - mantissa_bits;
  return std::ldexp(std::nearbyint(std::ldexp(v, -unit)), unit);
}
}  // namespace detail

[[nodiscard]] inline BF16 to_bf16(float v) noexcept {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {  // NaN: keep it quiet and non-zero
    return {static_cast<std::uint16_t>((bits >> 16) | 0x40U)};
  }
  bits += 0x7FFFU + ((bits >> 16) & 1U);
  return {static_cast<std::uint16_t>(bits >> 16)};
}

[[nodiscard]] inline BF16 to_bf16(double v) noexcept {
  return to_bf16(static_cast<float>(detail::round_to(v, 7, -126)));
}

[[nodiscard]] inline F16 to_f16(double v) noexcept {
  const auto sign = static_cast<std::uint16_t>(std::signbit(v) ? 0x8000U : 0U);
  if (std::isnan(v)) return {static_cast<std::uint16_t>(sign | 0x7E00U)};
  const double r = std::fabs(detail::round_to(v, 10, -14));
  if (r >= 65536.0) return {static_cast<std::uint16_t>(sign | 0x7C00U)};
  if (r < 0x1p-14) {  // subnormal or zero: a multiple of 2^-24
    return {static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(r * 0x1p24))};
  }
  int exponent = 0;
  const double fraction = std::frexp(r, &exponent);  // in [0.5, 1)
  const auto mantissa = static_cast<std::uint32_t>((fraction * 2 - 1) * 1024);
  return {static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(exponent + 14) << 10 |
                                     mantissa)};
}
[[nodiscard]] inline F16 to_f16(float v) noexcept { return to_f16(static_cast<double>(v)); }

/// The element at `pointer` of a floating-point type, exactly. Any alignment.
[[nodiscard]] inline double load(const void* pointer, DType dtype) noexcept {
  const auto read = [pointer](auto value) {
    std::memcpy(&value, pointer, sizeof(value));
    return value;
  };
  switch (dtype) {
    case DType::kBF16:
      return static_cast<double>(widen(read(BF16{})));
    case DType::kF16:
      return static_cast<double>(widen(read(F16{})));
    case DType::kF32:
      return static_cast<double>(read(float{}));
    case DType::kF64:
      return read(double{});
    default:  // block types: block_types.hpp
      break;
  }
  return 0;
}

/// Rounds `value` once, to nearest even, to a floating-point type and writes it. Any alignment.
inline void store(void* pointer, DType dtype, double value) noexcept {
  const auto write = [pointer](auto v) { std::memcpy(pointer, &v, sizeof(v)); };
  switch (dtype) {
    case DType::kBF16:
      write(to_bf16(value));
      break;
    case DType::kF16:
      write(to_f16(value));
      break;
    case DType::kF32:
      write(static_cast<float>(value));
      break;
    case DType::kF64:
      write(value);
      break;
    default:  // blocks are not stored element by element
      break;
  }
}

/// `value` as it would come back from a store to `dtype`.
[[nodiscard]] inline double rounded(double value, DType dtype) noexcept {
  alignas(8) unsigned char element[8];
  store(element, dtype, value);
  return load(element, dtype);
}

}  // namespace sluice::math
