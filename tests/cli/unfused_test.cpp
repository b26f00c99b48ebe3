// SPDX-License-Identifier: Apache-2.0
// The unfused path must compute the same MLP, or the comparison with it means nothing.
#include "harness/unfused.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/bench.hpp"
#include "harness/case.hpp"
#include "harness/data.hpp"
#include "harness/rig.hpp"
#include "harness/verify.hpp"

namespace sluice::harness {
namespace {

using ::testing::HasSubstr;

class Unfused : public ::testing::TestWithParam<const char*> {};

// Integers with the identity gate are exact on every path; fp64 leaves rounding of g and u below
// the oracle's bound, and silu tells gate from up.
TEST_P(Unfused, MatchesTheOracle) {
  const auto rig = open_rig("cpu");
  ASSERT_TRUE(rig);
  const auto c = parse_case(GetParam());
  ASSERT_TRUE(c) << c.error().message;
  auto set = OperandSet::make(*c, **rig);
  ASSERT_TRUE(set) << set.error().message;
  auto path = UnfusedMlp::make(c->problem, signed_pair_offset(*c), **rig, 2);
  ASSERT_TRUE(path) << path.error().message;
  const Status status = (*path)->bind((*set)->operands())(nullptr);
  ASSERT_TRUE(status) << status.error().message;
  const auto outputs = compare_outputs(**set);
  ASSERT_TRUE(outputs);
  ASSERT_FALSE(outputs->empty());
  for (const Comparison& output : *outputs) EXPECT_TRUE(output.passed()) << to_string(output);
  const Status canaries = (*set)->check_canaries();
  EXPECT_TRUE(canaries) << canaries.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Unfused,
    ::testing::Values("5x32x48:identity:fill=integers", "5x33x47:identity:fill=integers:concat",
                      "5x33x47:identity:fill=integers:concat+up_first:fp16",
                      "7x16x24:identity:fill=integers:interleaved1:fp32",
                      "7x16x24:identity:fill=integers:interleaved8:gate_up",
                      "7x16x24:identity:fill=integers:interleaved8+up_first", "3x20x28:fp64:silu",
                      "3x20x28:fp64:silu:concat", "3x20x28:fp64:silu:concat+up_first",
                      "3x20x28:fp64:gelu_tanh:interleaved1+up_first",
                      "3x20x28:fp64:clamped_swiglu:interleaved4:residual:bias_down",
                      "3x20x28:fp64:silu:bias:bias_down:residual:pad=3",
                      "3x20x28:fp64:silu:concat:bias", "3x20x28:fp64:silu:interleaved1:bias",
                      "3x20x28:fp64:silu:gate_up:pad=5", "3x21x27:fp64:silu:align=8",
                      "3x20x27:fp64:silu:interleaved1", "3x20x27:fp64:silu:interleaved40",
                      "3x20x28:fp64:silu:broadcast"));

TEST(UnfusedPath, CountsItsBuffers) {
  const auto rig = open_rig("cpu");
  ASSERT_TRUE(rig);
  for (const char* text : {"5x32x48:fp32", "5x32x48:fp32:concat"}) {
    const auto c = parse_case(text);
    ASSERT_TRUE(c);
    const auto path = UnfusedMlp::make(c->problem, signed_pair_offset(*c), **rig, 1);
    ASSERT_TRUE(path);
    EXPECT_GE((*path)->extra_bytes(), 3 * 5 * 48 * 4) << text;
  }
}

TEST(UnfusedPath, RefusesWhatOtherOperatorsCannotMake) {
  const auto rig = open_rig("cpu");
  ASSERT_TRUE(rig);
  const struct {
    const char* text;
    const char* reason;
  } refusals[] = {{"4x16x24:norm", "no operator is a norm alone"},
                  {"4x16x24:save", "does not save g and u"},
                  {"4x16x24:down", "down is not made of other operators"},
                  {"4x16x24:interleaved8:bias", "blocks of 8 rows"},
                  {"4x16x25:interleaved8", "blocks of 8 rows"}};
  for (const auto& refusal : refusals) {
    const auto c = parse_case(refusal.text);
    ASSERT_TRUE(c) << refusal.text;
    const auto path = UnfusedMlp::make(c->problem, signed_pair_offset(*c), **rig, 1);
    ASSERT_FALSE(path) << refusal.text;
    EXPECT_EQ(path.error().code, ErrorCode::kUnsupported) << refusal.text;
    EXPECT_THAT(path.error().message, HasSubstr(refusal.reason));
  }
}

}  // namespace
}  // namespace sluice::harness
