// SPDX-License-Identifier: Apache-2.0
// Every CPU variant and config, forced by name, over the shared case lists: right within the
// computed bound, no stray write, the same bits for another thread count.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "harness/test_cases.hpp"

namespace sluice::harness {
namespace {

// Sanitizers make a run ten times slower: every seventh case then, a stride that no list repeats
// by.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kStride = 7;
#else
constexpr std::size_t kStride = 1;
#endif

class EveryVariant : public testing::TestWithParam<Op> {};

TEST_P(EveryVariant, ComputesTheOperator) {
  const auto rig = open_rig("cpu");
  ASSERT_TRUE(rig) << rig.error().message;
  std::map<std::string, std::int64_t> runs;
  const std::vector<Case> cases = operator_cases(GetParam());
  for (std::size_t i = 0; i < cases.size(); i += kStride) {
    const Case& c = cases[i];
    for_each_forced(c, **rig, [&](const ForcedRun& forced) {
      SCOPED_TRACE(repro_line(c, forced.variant, forced.config));
      ASSERT_TRUE(forced.report) << forced.report.error().message;
      EXPECT_EQ(forced.report->variant, forced.variant);
      EXPECT_EQ(forced.report->config, forced.config);
      EXPECT_EQ(forced.report->source, ChoiceSource::kForced);
      // Special values may make every element NaN, which shows nothing and is right.
      EXPECT_TRUE(c.fill == Fill::kSpecial ? forced.report->right() : forced.report->passed())
          << forced.report->text();
      ++runs[forced.variant];
    });
  }
  // A variant that takes no case at all would pass unseen.
  const bool backward_step =
      GetParam() == Op::kInputGrad || GetParam() == Op::kWeightGrad || GetParam() == Op::kColumnSum;
  for (const std::string& name : variant_names(Backend::kCpu)) {
    const bool has_operator = name != "cpu.simd" || !backward_step;
    EXPECT_EQ(runs[name] > 0, has_operator) << name << ", " << to_string(GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryVariant,
                         testing::Values(Op::kGateUp, Op::kDown, Op::kMlp, Op::kGateMul,
                                         Op::kGateMulGrad, Op::kGateUpGrad, Op::kMlpGrad, Op::kNorm,
                                         Op::kInputGrad, Op::kWeightGrad, Op::kColumnSum),
                         [](const testing::TestParamInfo<Op>& param) {
                           return std::string(to_string(param.param));
                         });

}  // namespace
}  // namespace sluice::harness
