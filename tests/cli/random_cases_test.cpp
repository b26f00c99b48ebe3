// SPDX-License-Identifier: Apache-2.0
// The list of random shapes: what it promises of every entry, and entries that must never change.
#include "harness/random_cases.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "harness/bench.hpp"
#include "harness/case.hpp"

namespace sluice::harness {
namespace {

constexpr std::size_t kMany = 4000;

std::vector<Case> draw(std::size_t count, const TokenRange& tokens = {}) {
  std::vector<Case> out;
  for (std::size_t i = 0; i < count; ++i) {
    const auto c = parse_case(random_case(1, i, tokens));
    EXPECT_TRUE(c) << random_case(1, i, tokens);
    if (c) out.push_back(*c);
  }
  return out;
}

// Numbers of a draw that others have reported must mean the same shapes for ever, on any platform.
TEST(RandomCases, NeverChange) {
  EXPECT_EQ(random_case(1, 0), "18x1712x9048:sigmoid:interleaved1+up_first");
  EXPECT_EQ(random_case(1, 1), "12x13208x8808:gelu_tanh:separate");
  EXPECT_EQ(random_case(7, 123456, {1, 64}), "3x10264x2560:silu:separate");
  EXPECT_NE(random_case(1, 0), random_case(2, 0));
  EXPECT_NE(random_case(0, 0), random_case(0, 1));
}

TEST(RandomCases, KeepTheirBounds) {
  std::size_t wide = 0;
  for (const Case& c : draw(kMany)) {
    const Problem& p = c.problem;
    EXPECT_EQ(p.op, Op::kMlp);
    EXPECT_TRUE(p.m >= 1 && p.m <= 16384) << p.m;
    EXPECT_TRUE(p.d >= 1024 && p.d <= 16384 && p.d % 8 == 0) << p.d;
    EXPECT_TRUE(p.h >= 512 && p.h <= 65536 && p.h % 8 == 0) << p.h;
    EXPECT_TRUE(c.placement != Placement::kInterleaved || p.h % c.block_rows == 0);
    wide += p.d % 128 == 0 && p.h % 128 == 0 ? 1 : 0;
  }
  // One in four by draw, and one in 16 of the others' D, of whose H at least as many.
  EXPECT_NEAR(static_cast<double>(wide) / kMany, 0.25, 0.03);
  std::set<std::int64_t> tokens;
  for (const Case& c : draw(200, {3, 6})) tokens.insert(c.problem.m);
  EXPECT_EQ(tokens, (std::set<std::int64_t>{3, 4, 5, 6}));
  for (const Case& c : draw(20, {5, 5})) EXPECT_EQ(c.problem.m, 5);
  for (const Case& c : draw(200, {kMostRandomTokens - 1, kMostRandomTokens})) {
    EXPECT_GE(c.problem.m, kMostRandomTokens - 1);
    EXPECT_LE(c.problem.m, kMostRandomTokens);
  }
}

// Every octave of M and D is as likely as another. Shares of p in n draws stray by
// sqrt(p (1 - p) / n); four of that here.
TEST(RandomCases, AreLogUniform) {
  std::map<int, int> m, d;
  for (const Case& c : draw(kMany)) {
    ++m[std::min(13, static_cast<int>(std::log2(c.problem.m)))];
    ++d[std::min(13, static_cast<int>(std::log2(c.problem.d)))];
  }
  const auto expect = [](const std::map<int, int>& octaves, std::size_t count) {
    ASSERT_EQ(octaves.size(), count);
    const double p = 1.0 / static_cast<double>(count);
    for (const auto& [octave, n] : octaves) {
      EXPECT_NEAR(static_cast<double>(n) / kMany, p, 4 * std::sqrt(p * (1 - p) / kMany)) << octave;
    }
  };
  expect(m, 14);
  expect(d, 4);
}

TEST(RandomCases, HoldEveryGateAndPlacement) {
  std::set<std::string> gates, layouts;
  std::size_t separate = 0;
  for (const Case& c : draw(1000)) {
    gates.insert(gate_text(c.problem.gate));
    layouts.insert(layout_text(c));
    separate += c.placement == Placement::kSeparate ? 1 : 0;
  }
  EXPECT_THAT(gates, testing::ElementsAre("clamped_swiglu", "gelu_erf", "gelu_tanh", "identity",
                                          "relu", "sigmoid", "silu"));
  EXPECT_THAT(layouts, testing::ElementsAre("concat", "concat+up_first", "interleaved1",
                                            "interleaved1+up_first", "interleaved128",
                                            "interleaved128+up_first", "interleaved8",
                                            "interleaved8+up_first", "separate"));
  EXPECT_NEAR(static_cast<double>(separate) / 1000, 1 / 3.0, 4 * std::sqrt(2 / 9.0 / 1000));
}

// Half of the widths are a model's ratio, over a tensor-parallel size, to a multiple of 8.
TEST(RandomCases, HoldModelsAndOddWidths) {
  std::size_t llama = 0;
  for (const Case& c : draw(kMany)) {
    const double ratio = static_cast<double>(c.problem.h) / static_cast<double>(c.problem.d);
    llama += std::abs(ratio - 3.5) < 64.5 / static_cast<double>(c.problem.d) ? 1 : 0;
  }
  // One in 2 · 10 · 4 by draw; of odd ones few come so near.
  EXPECT_GT(llama, kMany / 80 / 2);
  EXPECT_LT(llama, kMany / 80 * 4);
}

}  // namespace
}  // namespace sluice::harness
