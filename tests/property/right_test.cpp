// SPDX-License-Identifier: Apache-2.0
// Every variant and config is right on random cases: within the computed bound on normal data,
// special values where they belong, and exact on integers through the identity gate.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>

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
  EXPECT_TRUE(rc::check([] { expect_right(random_case(GetParam())); }));
}

TEST_P(EveryOp, IsExactOnIntegers) {
  EXPECT_TRUE(rc::check([] {
    const Case c = random_case(GetParam(), {.fill = Fill::kIntegers});
    RC_PRE(harness::exact_integers(c.problem));
    expect_right(c);
  }));
}

TEST_P(EveryOp, PutsSpecialValuesWhereTheyBelong) {
  EXPECT_TRUE(rc::check([] {
    expect_right(random_case(GetParam(), {.max_operations = 1e5, .fill = Fill::kSpecial}));
  }));
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryOp,
                         testing::Values(Op::kGateUp, Op::kDown, Op::kMlp, Op::kGateMul,
                                         Op::kGateMulGrad, Op::kGateUpGrad, Op::kMlpGrad),
                         [](const testing::TestParamInfo<Op>& param) {
                           return std::string(to_string(param.param));
                         });

}  // namespace
}  // namespace sluice::property
