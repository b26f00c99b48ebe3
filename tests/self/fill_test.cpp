// SPDX-License-Identifier: Apache-2.0
// Fills: seeded, independent of layout, of the stated scales, and exact where they promise it.
#include "harness/fill.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "harness/case.hpp"
#include "harness/data.hpp"
#include "harness/rig.hpp"

namespace sluice::harness {
namespace {

Case parsed(const char* text) {
  const auto c = parse_case(text);
  EXPECT_TRUE(c) << text << ": " << (c ? "" : c.error().message);
  return c ? *c : Case{};
}

struct Moments {
  double mean = 0;
  double deviation = 0;
  double count = 0;
};

Moments moments(const HostMatrix& m) {
  Moments out;
  double squares = 0;
  for (std::int64_t r = 0; r < m.spec.rows; ++r) {
    for (std::int64_t c = 0; c < m.spec.cols; ++c) {
      const double v = m.at(r, c);
      out.mean += v;
      squares += v * v;
      out.count += 1;
    }
  }
  out.mean /= out.count;
  out.deviation = std::sqrt(squares / out.count - out.mean * out.mean);
  return out;
}

TEST(FillValue, DependsOnSeedOperandRowAndColumnAlone) {
  const Problem p{.m = 4, .d = 8, .h = 8};
  const FillParams a = fill_params(p, Operand::kX, Fill::kNormal, 1);
  EXPECT_EQ(fill_value(a, 2, 3), fill_value(fill_params(p, Operand::kX, Fill::kNormal, 1), 2, 3));
  std::set<float> values;
  for (std::int64_t r = 0; r < 4; ++r) {
    for (std::int64_t c = 0; c < 8; ++c) values.insert(fill_value(a, r, c));
  }
  values.insert(fill_value(fill_params(p, Operand::kX, Fill::kNormal, 2), 0, 0));
  values.insert(fill_value(fill_params(p, Operand::kDy, Fill::kNormal, 1), 0, 0));
  EXPECT_EQ(values.size(), 34U);
}

// Known bits: a GPU, or another compiler, must make the same.
TEST(FillValue, HasTheSameBitsEverywhere) {
  const FillParams params{.key = 42};
  EXPECT_EQ(detail::mix(1), 0x5692161D100B05E5ULL);
  EXPECT_EQ(fill_value(params, 0, 0), detail::standard_normal(42, 0, 0));
  const float scaled = fill_value(params, 5, 7) * 65536.0F;
  EXPECT_EQ(scaled, std::nearbyint(scaled));  // a multiple of 2^-16, so exact in fp32
  EXPECT_LT(std::fabs(scaled), 6 * 65536.0F);
}

// Means and deviations within six standard errors of what is documented.
TEST(FillMatrix, HasTheDocumentedScales) {
  const auto rig = open_rig("cpu");
  ASSERT_TRUE(rig);
  const Case c = parsed("200x128x160:fp32:mlp_grad");
  const auto set = OperandSet::make(c, **rig);
  ASSERT_TRUE(set);
  const std::vector<std::pair<Operand, double>> scales = {{Operand::kX, 1.0},
                                                          {Operand::kDy, 1.0},
                                                          {Operand::kWGate, 1.0 / std::sqrt(128.0)},
                                                          {Operand::kWUp, 2.0 / std::sqrt(128.0)},
                                                          {Operand::kWDown, 1.0 / std::sqrt(160.0)},
                                                          {Operand::kG, 1.0},
                                                          {Operand::kU, 2.0}};
  for (const auto& [id, scale] : scales) {
    const auto matrix = (*set)->host_matrix(id);
    ASSERT_TRUE(matrix);
    const Moments m = moments(*matrix);
    const double standard_error = scale / std::sqrt(m.count);
    EXPECT_LT(std::fabs(m.mean), 6 * standard_error) << matrix->spec.name;
    EXPECT_LT(std::fabs(m.deviation - scale), 6 * standard_error) << matrix->spec.name;
  }
}

TEST(FillMatrix, DoesNotDependOnTheLayout) {
  const auto rig = open_rig("cpu");
  ASSERT_TRUE(rig);
  const auto plain = OperandSet::make(parsed("5x24x40:gate_up"), **rig);
  ASSERT_TRUE(plain);
  for (const char* text : {"5x24x40:gate_up:concat+up_first", "5x24x40:gate_up:interleaved8:pad=4",
                           "5x24x40:gate_up:align=32"}) {
    const auto other = OperandSet::make(parsed(text), **rig);
    ASSERT_TRUE(other);
    for (const Operand id : {Operand::kX, Operand::kWGate, Operand::kWUp}) {
      const auto a = (*plain)->host_matrix(id);
      const auto b = (*other)->host_matrix(id);
      ASSERT_TRUE(a && b);
      for (std::int64_t r = 0; r < a->spec.rows; ++r) {
        for (std::int64_t col = 0; col < a->spec.cols; ++col) {
          ASSERT_EQ(a->at(r, col), b->at(r, col)) << text;
        }
      }
    }
  }
}

TEST(FillMatrix, ThreadsMakeTheSameBits) {
  const Case c = parsed("2100x1024x8:fp32:gate_up");
  const OperandSpec spec = operand_specs(c.problem)[static_cast<std::size_t>(Operand::kX)];
  const FillParams params = fill_params(c.problem, Operand::kX, Fill::kNormal, 3);
  std::vector<float> data(static_cast<std::size_t>(spec.rows * spec.cols));
  fill_matrix(spec, params, data.data());
  for (std::int64_t r = 0; r < spec.rows; r += 13) {
    for (std::int64_t col = 0; col < spec.cols; ++col) {
      ASSERT_EQ(data[static_cast<std::size_t>(r * spec.cols + col)], fill_value(params, r, col));
    }
  }
}

TEST(FillSpecial, PlacesEveryKind) {
  const auto rig = open_rig("cpu");
  ASSERT_TRUE(rig);
  for (const char* type : {"bf16", "fp16", "fp32"}) {
    const Case c =
        parsed((std::string("64x1x64:gate_mul:clamped_swiglu:fill=special:") + type).c_str());
    const auto set = OperandSet::make(c, **rig);
    ASSERT_TRUE(set);
    const auto g = (*set)->host_matrix(Operand::kG);
    ASSERT_TRUE(g);
    int nan = 0, infinite = 0, subnormal = 0, minus_zero = 0, limit = 0, plain = 0;
    const double least_normal = c.problem.x_dtype == DType::kF16 ? 0x1p-14 : 0x1p-126;
    for (std::int64_t r = 0; r < 64; ++r) {
      for (std::int64_t col = 0; col < 64; ++col) {
        const double v = g->at(r, col);
        nan += std::isnan(v) ? 1 : 0;
        infinite += std::isinf(v) ? 1 : 0;
        subnormal += v != 0 && std::fabs(v) < least_normal ? 1 : 0;
        minus_zero += v == 0 && std::signbit(v) ? 1 : 0;
        limit += std::fabs(v) == 7.0 ? 1 : 0;
        plain += std::fabs(v) < 6 ? 1 : 0;
      }
    }
    EXPECT_GT(nan, 0);
    EXPECT_GT(infinite, 0);
    EXPECT_GT(subnormal, 0);
    EXPECT_GT(minus_zero, 0);
    EXPECT_GT(limit, 0);
    EXPECT_GT(plain, 64 * 64 / 2);
  }
}

TEST(ExactIntegers, NeedsTheIdentityGateAndNoNorm) {
  EXPECT_TRUE(exact_integers(parsed("4x8x8:identity").problem));
  EXPECT_FALSE(exact_integers(parsed("4x8x8").problem));
  EXPECT_FALSE(exact_integers(parsed("4x8x8:identity(up_offset=0.5)").problem));
  EXPECT_FALSE(exact_integers(parsed("4x8x8:identity:norm").problem));
  EXPECT_TRUE(exact_integers(parsed("4x8x8:mlp_grad:identity").problem));
  // 2^20 tokens of bf16 weight gradients cannot be exact.
  EXPECT_FALSE(exact_integers(parsed("1048576x8x8:mlp_grad:identity:bf16/bf16/bf16/bf16").problem));
}

// The derivation's promise, checked on the data: no row of x has more non-zeros than g may add up.
TEST(ExactIntegers, KeepPartialSumsWithinTheType) {
  const auto rig = open_rig("cpu");
  ASSERT_TRUE(rig);
  for (const char* text :
       {"9x500x700:gate_up:identity:fill=integers", "9x500x700:gate_up:identity:fill=integers:fp16",
        "9x500x700:mlp:identity:fill=integers"}) {
    const Case c = parsed(text);
    const auto set = OperandSet::make(c, **rig);
    ASSERT_TRUE(set);
    const auto x = (*set)->host_matrix(Operand::kX);
    ASSERT_TRUE(x);
    const double most = 2.0 / epsilon(c.problem.x_dtype);
    for (std::int64_t r = 0; r < x->spec.rows; ++r) {
      double sum = 1;  // the bias
      for (std::int64_t col = 0; col < x->spec.cols; ++col) sum += std::fabs(x->at(r, col));
      EXPECT_GT(sum, 1.0);
      EXPECT_LE(sum * sum, most) << text;
    }
  }
}

}  // namespace
}  // namespace sluice::harness
