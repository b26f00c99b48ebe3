// SPDX-License-Identifier: Apache-2.0
// bf16 and fp16, exhaustively: every bit pattern widens to its IEEE value, comes back, and every
// midpoint between neighbours rounds to even, from double and from float.
#include "math/float_types.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace sluice::math {
namespace {

// What differs between the two formats, and nothing of the code under test.
struct Bf16Format {
  using Type = BF16;
  static constexpr DType kDType = DType::kBF16;
  static constexpr int kMantissaBits = 7;
  static constexpr int kBias = 127;
  static constexpr std::uint16_t kInfinity = 0x7F80;
  static Type narrow(double v) { return to_bf16(v); }
  static Type narrow(float v) { return to_bf16(v); }
};
struct Fp16Format {
  using Type = F16;
  static constexpr DType kDType = DType::kF16;
  static constexpr int kMantissaBits = 10;
  static constexpr int kBias = 15;
  static constexpr std::uint16_t kInfinity = 0x7C00;
  static Type narrow(double v) { return to_f16(v); }
  static Type narrow(float v) { return to_f16(v); }
};

template <class Format>
class FloatTypes : public testing::Test {
 protected:
  // The value of a finite, non-negative pattern by IEEE 754's definition.
  static double value_of(std::uint16_t bits) {
    const int exponent = bits >> Format::kMantissaBits;
    const int mantissa = bits & ((1 << Format::kMantissaBits) - 1);
    const int unit = 1 - Format::kBias - Format::kMantissaBits;
    if (exponent == 0) return std::ldexp(mantissa, unit);
    return std::ldexp(mantissa + (1 << Format::kMantissaBits), exponent - 1 + unit);
  }
  static std::uint16_t bits_of(double v) { return Format::narrow(v).bits; }
};

using Formats = testing::Types<Bf16Format, Fp16Format>;
TYPED_TEST_SUITE(FloatTypes, Formats);

TYPED_TEST(FloatTypes, EveryPatternWidensToItsValueAndComesBack) {
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const auto magnitude = static_cast<std::uint16_t>(bits & 0x7FFF);
    const float wide = widen(typename TypeParam::Type{bits});
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000) != 0) << i;
    if (magnitude > TypeParam::kInfinity) {
      ASSERT_TRUE(std::isnan(wide)) << i;
      ASSERT_GT(TypeParam::narrow(wide).bits & 0x7FFF, TypeParam::kInfinity) << i;
      ASSERT_GT(this->bits_of(static_cast<double>(wide)) & 0x7FFF, TypeParam::kInfinity) << i;
      continue;
    }
    if (magnitude == TypeParam::kInfinity) {
      ASSERT_TRUE(std::isinf(wide)) << i;
    } else {
      ASSERT_EQ(std::fabs(static_cast<double>(wide)), this->value_of(magnitude)) << i;
    }
    ASSERT_EQ(TypeParam::narrow(wide).bits, bits) << i;
    ASSERT_EQ(this->bits_of(static_cast<double>(wide)), bits) << i;
  }
}

// Between neighbours a < b: the midpoint goes to the even one, anything nearer goes to the nearer.
// The last "neighbour" is the number that infinity stands for in rounding.
TYPED_TEST(FloatTypes, EveryMidpointRoundsToEven) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr float kFloatInf = std::numeric_limits<float>::infinity();
  for (std::uint16_t low = 0; low < TypeParam::kInfinity; ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    const double middle = (this->value_of(low) + this->value_of(high)) / 2;
    const std::uint16_t even = low % 2 == 0 ? low : high;
    for (const double sign : {1.0, -1.0}) {
      const auto with_sign = [&](std::uint16_t bits) {
        return static_cast<std::uint16_t>(bits | (sign < 0 ? 0x8000 : 0));
      };
      ASSERT_EQ(this->bits_of(sign * middle), with_sign(even)) << low;
      ASSERT_EQ(this->bits_of(sign * std::nextafter(middle, 0.0)), with_sign(low)) << low;
      ASSERT_EQ(this->bits_of(sign * std::nextafter(middle, kInf)), with_sign(high)) << low;
      const auto single = static_cast<float>(middle);
      ASSERT_EQ(static_cast<double>(single), middle) << low;
      const auto s = static_cast<float>(sign);
      ASSERT_EQ(TypeParam::narrow(s * single).bits, with_sign(even)) << low;
      ASSERT_EQ(TypeParam::narrow(s * std::nextafter(single, 0.0F)).bits, with_sign(low)) << low;
      ASSERT_EQ(TypeParam::narrow(s * std::nextafter(single, kFloatInf)).bits, with_sign(high))
          << low;
    }
  }
}

TYPED_TEST(FloatTypes, ExtremesGoToInfinityAndZero) {
  constexpr double kMax = std::numeric_limits<double>::max();
  constexpr double kMin = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(this->bits_of(kMax), TypeParam::kInfinity);
  EXPECT_EQ(this->bits_of(-kMax), TypeParam::kInfinity | 0x8000);
  EXPECT_EQ(this->bits_of(kMin), 0);
  EXPECT_EQ(this->bits_of(-kMin), 0x8000);
  EXPECT_EQ(this->bits_of(-0.0), 0x8000);
}

// A value that rounds up to a midpoint in fp32 would round up again: once is right.
TYPED_TEST(FloatTypes, DoublesAreRoundedOnce) {
  const double one_step = 1 + epsilon(TypeParam::kDType);
  const double just_below_middle = 1 + epsilon(TypeParam::kDType) / 2 * (1 - 0x1p-40);
  ASSERT_EQ(static_cast<double>(static_cast<float>(just_below_middle)),
            1 + epsilon(TypeParam::kDType) / 2);
  EXPECT_EQ(rounded(just_below_middle, TypeParam::kDType), 1.0);
  EXPECT_EQ(rounded(one_step, TypeParam::kDType), one_step);
  const double just_above = one_step + epsilon(TypeParam::kDType) / 2 * (1 + 0x1p-40);
  EXPECT_EQ(rounded(just_above, TypeParam::kDType), one_step + epsilon(TypeParam::kDType));
}

TEST(LoadStore, EveryTypeAtEveryAlignment) {
  std::array<unsigned char, 32> bytes{};
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64}) {
    for (std::size_t at = 0; at < 8; ++at) {
      bytes.fill(0xAA);
      store(bytes.data() + at, dtype, -1.5);
      EXPECT_EQ(load(bytes.data() + at, dtype), -1.5);
      const auto end = at + static_cast<std::size_t>(size_bytes(dtype));
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (i < at || i >= end) {
          EXPECT_EQ(bytes[i], 0xAA) << to_string(dtype) << at << " " << i;
        }
      }
    }
    EXPECT_EQ(rounded(1 + epsilon(dtype), dtype), 1 + epsilon(dtype));
    EXPECT_EQ(rounded(1 + epsilon(dtype) / 2, dtype), 1.0);
  }
}

}  // namespace
}  // namespace sluice::math
