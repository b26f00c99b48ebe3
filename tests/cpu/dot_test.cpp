// SPDX-License-Identifier: Apache-2.0
// Dot products of every target on small integers, where every sum is exact, for every number of
// rows, tokens and tail; and that a row's sum does not depend on the rows beside it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "cpu/blocking.hpp"
#include "math/float_types.hpp"
#include "targets.hpp"

namespace sluice::cpu {
namespace {

struct Operands {
  Operands(DType dtype, int rows, int tokens, std::int64_t k, bool integers) {
    const auto elem = static_cast<std::size_t>(size_bytes(dtype));
    stride = round_up(k, kMaxLanes);
    std::uint64_t state = 1;
    const auto next = [&] {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      const auto v = static_cast<double>(state >> 40) * 0x1p-24 - 0.5;
      return integers ? std::floor(v * 8) : v;
    };
    for (int i = 0; i < rows; ++i) {
      // Of its very size each, for AddressSanitizer.
      auto& row = weights.emplace_back(static_cast<std::size_t>(k) * elem);
      for (std::size_t j = 0; j < static_cast<std::size_t>(k); ++j) {
        math::store(row.data() + j * elem, dtype, next());
      }
    }
    for (const auto& row : weights) lines.push_back(row.data());
    x.resize(static_cast<std::size_t>(stride * tokens));
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t j = 0; j < k; ++j) {
        x[static_cast<std::size_t>(t * stride + j)] = static_cast<float>(next());
      }
    }
  }
  std::vector<std::vector<unsigned char>> weights;
  std::vector<const void*> lines;
  std::vector<float> x;
  std::int64_t stride = 0;
};

class Dot : public testing::TestWithParam<SimdTarget> {};

TEST_P(Dot, ExactForAllRowsTokensAndTails) {
  const DotKernels& kernels = dot_kernels(GetParam());
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const auto elem = static_cast<std::size_t>(size_bytes(dtype));
    for (const int rows : {1, 2, 3, 7, 8, 9, 21}) {
      for (const int tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16}) {
        for (const std::int64_t k : {1, 3, 15, 16, 17, 40, 4096, 4097, 8199}) {
          if (k > 100 && rows != 9) continue;
          const Operands data(dtype, rows, tokens, k, true);
          const std::int64_t ldo = rows + 3;
          std::vector<float> out(static_cast<std::size_t>(ldo * tokens), -1.0F);
          kernels.dots[static_cast<std::size_t>(dtype)](data.lines.data(), rows, data.x.data(),
                                                        data.stride, tokens, k, out.data(), ldo);
          for (std::int64_t t = 0; t < tokens; ++t) {
            for (std::int64_t i = 0; i < ldo; ++i) {
              double expected = i < rows ? 0 : -1;
              for (std::int64_t j = 0; i < rows && j < k; ++j) {
                const auto at = static_cast<std::size_t>(j);
                expected +=
                    math::load(data.weights[static_cast<std::size_t>(i)].data() + at * elem,
                               dtype) *
                    static_cast<double>(data.x[static_cast<std::size_t>(t * data.stride + j)]);
              }
              ASSERT_EQ(static_cast<double>(out[static_cast<std::size_t>(t * ldo + i)]), expected)
                  << to_string(dtype) << " rows " << rows << " tokens " << tokens << " k " << k
                  << " at " << t << ", " << i;
            }
          }
        }
      }
    }
  }
}

TEST_P(Dot, BitsDoNotDependOnTheRowsBeside) {
  const DotKernels& kernels = dot_kernels(GetParam());
  constexpr int kRows = 21;
  constexpr std::int64_t kK = 5003;
  for (const int tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16}) {
    const Operands data(DType::kBF16, kRows, tokens, kK, false);
    std::vector<float> together(static_cast<std::size_t>(kRows * tokens));
    kernels.dots[0](data.lines.data(), kRows, data.x.data(), data.stride, tokens, kK,
                    together.data(), kRows);
    for (std::size_t i = 0; i < kRows; ++i) {
      std::vector<float> alone(static_cast<std::size_t>(tokens));
      kernels.dots[0](data.lines.data() + i, 1, data.x.data(), data.stride, tokens, kK,
                      alone.data(), 1);
      for (std::size_t t = 0; t < alone.size(); ++t) {
        ASSERT_EQ(together[t * kRows + i], alone[t]) << "row " << i << " token " << t;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Dot, testing::ValuesIn(test::targets()),
                         [](const auto& info_of) { return std::string(to_string(info_of.param)); });

}  // namespace
}  // namespace sluice::cpu
