// SPDX-License-Identifier: Apache-2.0
// Quantising: within half a step of every value, integers exactly, special values in the scales.
#include "harness/quantise.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "harness/case.hpp"
#include "harness/data.hpp"
#include "harness/rig.hpp"
#include "math/block_types.hpp"

namespace sluice::harness {
namespace {

constexpr DType kBlockTypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1};
using Values = std::array<float, kBlockElems>;
using Bytes = std::array<unsigned char, 34>;

Values ramp(float from, float step) {
  Values out{};
  for (std::size_t j = 0; j < out.size(); ++j) {
    out[j] = from + step * static_cast<float>((j * 13) % 32);
  }
  return out;
}

TEST(Quantise, IsWithinAStepOfEveryValue) {
  for (const DType dtype : kBlockTypes) {
    for (const Values& values : {ramp(-1.6F, 0.1F), ramp(-0.2F, 0.03F), ramp(2, 0.01F)}) {
      Bytes block{};
      quantise_block(dtype, values, block.data());
      const auto [least, most] = std::minmax_element(values.begin(), values.end());
      const float size = std::max(std::fabs(*least), std::fabs(*most));
      // q4_0 cuts the positive end where the extreme is negative: a whole step there.
      const float step = dtype == DType::kQ8_0   ? size / 127 / 2
                         : dtype == DType::kQ4_0 ? size / 8
                                                 : (*most - *least) / 15 / 2;
      for (std::size_t j = 0; j < values.size(); ++j) {
        const double got = math::load(block.data(), dtype, static_cast<std::int64_t>(j));
        // The scale's (and the minimum's) rounding to fp16, carried to the value.
        EXPECT_NEAR(got, values[j], step + size * 0x1p-10F) << to_string(dtype) << " " << j;
      }
    }
  }
}

TEST(Quantise, ZerosStayZeros) {
  for (const DType dtype : kBlockTypes) {
    Bytes block{};
    quantise_block(dtype, Values{}, block.data());
    for (std::int64_t j = 0; j < kBlockElems; ++j) EXPECT_EQ(math::load(block.data(), dtype, j), 0);
  }
}

TEST(Quantise, HoldsUnitsExactlyAtEveryScale) {
  Values values{};
  for (std::size_t j = 0; j < values.size(); ++j) values[j] = static_cast<float>(j % 3) - 1;
  for (const DType dtype : kBlockTypes) {
    for (const int shift : {0, 1, 2}) {
      Bytes block{};
      encode_units(dtype, values, shift, block.data());
      for (std::size_t j = 0; j < values.size(); ++j) {
        EXPECT_EQ(math::load(block.data(), dtype, static_cast<std::int64_t>(j)), values[j]);
      }
    }
  }
}

// The fill's integers are those of another type; its normals near those; its special values there.
TEST(Quantise, FillsWhatOtherTypesHold) {
  const auto rig = open_rig("cpu");
  ASSERT_TRUE(rig);
  for (const char* type : {"q8_0", "q4_0", "q4_1"}) {
    const auto set_of = [&](const std::string& tokens) {
      auto set = OperandSet::make(parse_case("3x96x160:" + tokens).value(), **rig);
      EXPECT_TRUE(set);
      return std::move(*set);
    };
    const std::string name = type;
    const auto integers = set_of(name + ":identity:fill=integers");
    const auto plain_integers = set_of("identity:fill=integers");
    const auto normal = set_of("fp32/" + name + "/fp32:bias");
    const auto plain = set_of("fp32:bias");
    const auto special = set_of(name + ":fill=special");
    double error = 0;
    double size = 0;
    int not_finite = 0;
    for (const Operand id : {Operand::kWGate, Operand::kWUp, Operand::kWDown}) {
      const auto a = integers->host_matrix(id).value();
      const auto b = plain_integers->host_matrix(id).value();
      const auto c = normal->host_matrix(id).value();
      const auto d = plain->host_matrix(id).value();
      const auto e = special->host_matrix(id).value();
      for (std::int64_t row = 0; row < a.spec.rows; ++row) {
        for (std::int64_t col = 0; col < a.spec.cols; ++col) {
          ASSERT_EQ(a.at(row, col), b.at(row, col)) << name << " " << row << ", " << col;
          error += std::fabs(c.at(row, col) - d.at(row, col));
          size += std::fabs(d.at(row, col));
          not_finite += std::isfinite(e.at(row, col)) ? 0 : 1;
        }
      }
    }
    // Half a step is 1/30 of the range of 32 normals (4 sigma) for nibbles, 1/254 of it for q8_0;
    // the mean magnitude is 0.8 sigma.
    EXPECT_LT(error / size, name == "q8_0" ? 0.02 : 0.2);
    EXPECT_GT(error, 0);
    EXPECT_GT(not_finite, 0) << name;
    const auto bias = normal->host_matrix(Operand::kBUp).value();
    EXPECT_EQ(bias.spec.dtype, DType::kF32);
    EXPECT_EQ(bias.at(0, 7), plain->host_matrix(Operand::kBUp).value().at(0, 7));
  }
}

}  // namespace
}  // namespace sluice::harness
