// SPDX-License-Identifier: Apache-2.0
// Every variant and config is right on random cases: within the computed bound on normal data,
// special values where they belong, and exact on integers through the identity gate.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>

#include "harness/case.hpp"
#include "harness/test_cases.hpp"
#include "random_case.hpp"

namespace sluice::property {
namespace {

using harness::Case;
using harness::Fill;
using harness::ForcedRun;

void expect_right(const Case& c) {
  const std::int64_t runs = harness::for_each_forced(c, cpu(), [](const ForcedRun& forced) {
    if (!forced.report) RC_FAIL(std::string(forced.report.error().text()));
    RC_ASSERT(forced.report->variant == forced.variant);
    RC_ASSERT(forced.report->config == forced.config);
    if (!forced.report->right()) RC_FAIL(forced.report->text());
  });
  RC_ASSERT(runs > 0);  // the reference takes every case
}

class EveryOp : public testing::TestWithParam<Op> {};

TEST_P(EveryOp, IsWithinItsBound) {
  EXPECT_TRUE(rc::check([] { expect_right(random_case(GetParam(), {.blocks = true})); }));
}

TEST_P(EveryOp, IsExactOnIntegers) {
  if (GetParam() > Op::kMlpGrad) GTEST_SKIP() << "its sums have as many terms as there are";
  EXPECT_TRUE(rc::check([] {
    const Case c = random_case(GetParam(), {.blocks = true, .fill = Fill::kIntegers});
    RC_PRE(harness::exact_integers(c.problem));
    expect_right(c);
  }));
}

TEST_P(EveryOp, PutsSpecialValuesWhereTheyBelong) {
  EXPECT_TRUE(rc::check([] {
    expect_right(
        random_case(GetParam(), {.max_operations = 1e5, .blocks = true, .fill = Fill::kSpecial}));
  }));
}

// Cases that random runs have found.
class Found : public testing::TestWithParam<const char*> {};

TEST_P(Found, StaysRight) {
  auto c = harness::parse_case(GetParam());
  ASSERT_TRUE(c) << c.error().message;
  harness::for_each_forced(*c, cpu(), [](const ForcedRun& forced) {
    ASSERT_TRUE(forced.report) << forced.report.error().text();
    EXPECT_TRUE(forced.report->right()) << forced.report->text();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Found,
    testing::Values(
        // u leaves the range in fp32 and comes back through the clamp, with either sign.
        "6x8x53:gate_up:bf16/bf16/bf16/bf16:sigmoid(alpha=-0.5,limit=0.125):interleaved32:"
        "norm(eps=0.375):save:broadcast:minimal:pad=1:align=16:fill=special:seed=66721783",
        // An infinity for an expected 0 whose bound reaches beyond fp16.
        "1x10x31:gate_up_grad:fp16/fp16/fp32/fp16:sigmoid:concat:broadcast:minimal:pad=1:"
        "fill=special:seed=2646487",
        // One token 163 times: its roundings add up, they do not cancel.
        "163x1x23:mlp_grad:fp16:sigmoid(alpha=-0.25,up_offset=-0.125,gate_multiplier=-0.5):bias:"
        "recompute:broadcast:pad=1:seed=35356"));

INSTANTIATE_TEST_SUITE_P(Ops, EveryOp,
                         testing::Values(Op::kGateUp, Op::kDown, Op::kMlp, Op::kGateMul,
                                         Op::kGateMulGrad, Op::kGateUpGrad, Op::kMlpGrad, Op::kNorm,
                                         Op::kInputGrad, Op::kWeightGrad, Op::kColumnSum),
                         [](const testing::TestParamInfo<Op>& param) {
                           return std::string(to_string(param.param));
                         });

}  // namespace
}  // namespace sluice::property
