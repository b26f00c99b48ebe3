// SPDX-License-Identifier: Apache-2.0
// GGUF's blocks of 32 weights as they lie in memory, and their elements. Types and formulas are
// those of sluice::DType.
#pragma once

#include <cstdint>
#include <cstring>

#include "math/float_types.hpp"
#include "sluice/types.hpp"

namespace sluice::math {

struct Q8_0 {
  static constexpr DType kDType = DType::kQ8_0;
  F16 d;
  std::int8_t q[kBlockElems];
};
struct Q4_0 {
  static constexpr DType kDType = DType::kQ4_0;
  F16 d;
  std::uint8_t q[kBlockElems / 2];
};
struct Q4_1 {
  static constexpr DType kDType = DType::kQ4_1;
  F16 d;
  F16 m;
  std::uint8_t q[kBlockElems / 2];
};
static_assert(sizeof(Q8_0) == size_bytes(DType::kQ8_0) && alignof(Q8_0) == 2);
static_assert(sizeof(Q4_0) == size_bytes(DType::kQ4_0) && alignof(Q4_0) == 2);
static_assert(sizeof(Q4_1) == size_bytes(DType::kQ4_1) && alignof(Q4_1) == 2);

/// Nibble j of 32: the low halves of the bytes come before the high ones.
[[nodiscard]] constexpr int nibble(const std::uint8_t (&q)[kBlockElems / 2], int j) noexcept {
  return j < kBlockElems / 2 ? q[j] & 0xF : q[j - kBlockElems / 2] >> 4;
}

[[nodiscard]] constexpr float element_of(const Q8_0& b, int j) noexcept {
  return widen(b.d) * static_cast<float>(b.q[j]);
}
[[nodiscard]] constexpr float element_of(const Q4_0& b, int j) noexcept {
  return widen(b.d) * static_cast<float>(nibble(b.q, j) - 8);
}
// The product is exact (11 and 4 bits), so fused or not, one rounding is left.
[[nodiscard]] constexpr float element_of(const Q4_1& b, int j) noexcept {
  return widen(b.d) * static_cast<float>(nibble(b.q, j)) + widen(b.m);
}

/// Column `col` of a row, exactly. `pointer` is its element, or the block that holds it: what
/// offset_bytes() leads to. Any alignment.
[[nodiscard]] inline double load(const void* pointer, DType dtype, std::int64_t col) noexcept {
  const auto element = [&](auto block) {
    std::memcpy(&block, pointer, sizeof(block));
    return static_cast<double>(element_of(block, static_cast<int>(col % kBlockElems)));
  };
  switch (dtype) {
    case DType::kQ8_0:
      return element(Q8_0{});
    case DType::kQ4_0:
      return element(Q4_0{});
    case DType::kQ4_1:
      return element(Q4_1{});
    default:
      return load(pointer, dtype);
  }
}

/// Whether the largest magnitude of a block of tokens dwarfs the others, given their sum. Fixed
/// point would then round them to its unit, so such a block stays as it is (docs/numerics.md).
template <class Real>
[[nodiscard]] constexpr bool dwarfs_others(Real largest, Real others) noexcept {
  return largest > 2 * others;
}

}  // namespace sluice::math
