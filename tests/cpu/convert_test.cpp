// SPDX-License-Identifier: Apache-2.0
// Widening and narrowing on every target against src/math: all 2^16 values, every tie between
// neighbours and its own neighbours, every length of tail.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/kernels.hpp"
#include "math/float_types.hpp"
#include "targets.hpp"

namespace sluice::cpu {
namespace {

constexpr int kCodes = 1 << 16;

std::size_t index(DType dtype) { return static_cast<std::size_t>(dtype); }

std::vector<std::uint16_t> all_codes() {
  std::vector<std::uint16_t> codes(kCodes);
  for (int i = 0; i < kCodes; ++i)
    codes[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(i);
  return codes;
}

float exact(DType dtype, std::uint16_t code) {
  return dtype == DType::kBF16 ? math::widen(math::BF16{code}) : math::widen(math::F16{code});
}

std::uint16_t nearest(DType dtype, float v) {
  return dtype == DType::kBF16 ? math::to_bf16(v).bits : math::to_f16(v).bits;
}

bool same(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

TEST(Convert, WidensEveryCode) {
  const auto codes = all_codes();
  std::vector<float> out(kCodes);
  for (const SimdTarget target : test::targets()) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      row_kernels(target).widen[index(dtype)](codes.data(), kCodes, out.data());
      for (std::size_t i = 0; i < codes.size(); ++i) {
        ASSERT_TRUE(same(out[i], exact(dtype, codes[i])))
            << to_string(target) << ' ' << to_string(dtype) << " code " << i << ": " << out[i];
      }
    }
  }
}

// Every value of the type, the midpoint to the next, and the fp32 numbers beside both; and NaNs,
// infinities and fp32 values beyond and below the type's range.
std::vector<float> rounding_cases(DType dtype) {
  std::vector<float> cases;
  const float infinity = std::numeric_limits<float>::infinity();
  const auto with_neighbours = [&](float v) {
    cases.insert(cases.end(), {v, std::nextafter(v, infinity), std::nextafter(v, -infinity)});
  };
  for (int i = 0; i < kCodes; ++i) {
    const auto code = static_cast<std::uint16_t>(i);
    const float v = exact(dtype, code);
    with_neighbours(v);
    const float next = exact(dtype, static_cast<std::uint16_t>(code + 1));
    if (std::isfinite(v) && std::isfinite(next)) {
      with_neighbours(static_cast<float>((static_cast<double>(v) + static_cast<double>(next)) / 2));
    }
  }
  const float largest = exact(dtype, dtype == DType::kBF16 ? 0x7F7F : 0x7BFF);
  const float half_unit = largest * static_cast<float>(epsilon(dtype)) / 4;
  for (const float v :
       {largest + half_unit, 2 * largest, infinity, std::numeric_limits<float>::max(),
        std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min(),
        std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::signaling_NaN(),
        std::bit_cast<float>(0x7F800001U), std::bit_cast<float>(0x7FFFFFFFU)}) {
    with_neighbours(v);
    with_neighbours(-v);
  }
  return cases;
}

TEST(Convert, NarrowsToNearestEven) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const std::vector<float> cases = rounding_cases(dtype);
    std::vector<std::uint16_t> out(cases.size());
    for (const SimdTarget target : test::targets()) {
      row_kernels(target).narrow[index(dtype)](cases.data(),
                                               static_cast<std::int64_t>(cases.size()), out.data());
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const bool nan = std::isnan(cases[i]);
        // bf16 keeps a NaN's bits as src/math does; fp16 NaNs are only the same in being NaN.
        const bool right = nan && dtype == DType::kF16 ? std::isnan(exact(dtype, out[i]))
                                                       : out[i] == nearest(dtype, cases[i]);
        ASSERT_TRUE(right) << to_string(target) << ' ' << to_string(dtype) << " of "
                           << std::hexfloat << cases[i] << ": " << out[i] << ", wanted "
                           << nearest(dtype, cases[i]);
      }
    }
  }
}

TEST(Convert, TouchesNothingBeyondTheLastElement) {
  constexpr unsigned char kGuard = 0xA5;
  for (const SimdTarget target : test::targets()) {
    const RowKernels& k = row_kernels(target);
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      const auto elem = static_cast<std::size_t>(size_bytes(dtype));
      for (std::size_t n = 0; n <= 3 * kMaxLanes; ++n) {
        // Sources end where the buffer ends: AddressSanitizer sees a read behind it.
        const std::vector<float> values(n, 1.5F);
        std::vector<unsigned char> narrow(n * elem + 64, kGuard);
        k.narrow[index(dtype)](values.data(), static_cast<std::int64_t>(n), narrow.data() + 1);
        const std::vector<unsigned char> stored(
            narrow.begin() + 1, narrow.begin() + 1 + static_cast<std::ptrdiff_t>(n * elem));
        for (std::size_t i = n * elem + 1; i < narrow.size(); ++i) ASSERT_EQ(narrow[i], kGuard);
        ASSERT_EQ(narrow[0], kGuard);
        std::vector<float> wide(n + 16, -7.0F);
        k.widen[index(dtype)](stored.data(), static_cast<std::int64_t>(n), wide.data());
        for (std::size_t i = 0; i < wide.size(); ++i) ASSERT_EQ(wide[i], i < n ? 1.5F : -7.0F);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::cpu
