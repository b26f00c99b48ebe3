// SPDX-License-Identifier: Apache-2.0
// Each recipe step by step on a GPU: every step is right on the inputs that it really has, and one
// wrong element in what a step leaves is reported as that element of that step.
#include "harness/verify_steps.hpp"

#include <algorithm>
#include <set>
#include <string>

#include "gpu.hpp"
#include "tests/self/step_fault.hpp"

namespace sluice {
namespace {

struct Stepped {
  const char* variant;
  const char* text;
  const char* config = nullptr;
  int steps = 1;
};
constexpr Stepped kStepped[] = {
    {"cuda.sm90_decode", "5x264x520:mlp:add_norm:residual_norm_input", "gate_up=bn16r64k256s5", 2},
    {"cuda.sm90_decode", "5x264x520:mlp:add_norm:residual_norm_input", "norm=row", 3},
    {"cuda.sm90_decode", "40x264x520:mlp:bias:bias_down:residual", nullptr, 2},
    {"cuda.sm90", "130x136x200:mlp:add_norm:residual_norm_input:save", nullptr, 3},
    {"cuda.sm90", "130x136x200:mlp:fp16:bias_down", nullptr, 2},
    {"cuda.sm90", "130x136x200:mlp_grad:save_dg_du", nullptr, 4},
    {"cuda.sm90", "130x136x200:mlp_grad:recompute:bias:bias_down", nullptr, 8},
    {"cuda.sm80", "70x136x200:mlp:norm:interleaved3", nullptr, 3},
    {"cuda.cublaslt", "33x43x70:mlp:norm:bias:bias_down", nullptr, 3},
    {"cuda.cublaslt", "5x43x70:mlp_grad:recompute", nullptr, 5},
    {"cuda.norm", "33x136:add_norm"},
    {"cuda.elementwise", "33x1x520:gate_mul_grad"},
    {"cuda.simt", "33x40x72:mlp:fp32:norm:bias"},
};

Options options_of(const Stepped& stepped) {
  return {.variant = stepped.variant, .config = stepped.config};
}

TEST(GpuVerifySteps, EachRecipeIsRightStepByStep) {
  std::set<std::string> seen;
  for (const Stepped& stepped : kStepped) {
    const auto c = harness::parse_case(stepped.text).value();
    const Options options = options_of(stepped);
    if (!plan(c.problem, gpu::rig().device(), options)) continue;
    const auto report = harness::verify_steps(c, gpu::rig(), options);
    ASSERT_OK(report);
    EXPECT_TRUE(report->passed()) << report->text();
    EXPECT_EQ(static_cast<int>(report->steps.size()), stepped.steps) << report->text();
    for (const harness::StepReport& step : report->steps) {
      EXPECT_FALSE(step.skipped);
      EXPECT_FALSE(step.outputs.empty()) << step.name;
      for (const auto& output : step.outputs) EXPECT_GT(output.compared, 0) << step.name;
    }
    seen.insert(stepped.variant);
  }
  if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "some recipes need a Hopper GPU";
  const auto names = variant_names(Backend::kCuda);
  std::set<std::string> all(names.begin(), names.end());
  all.erase("cuda.sm100");  // Blackwell's
  EXPECT_EQ(seen, all);
}

TEST(GpuVerifySteps, APlantedFaultIsThatElementOfThatStep) {
  int faults = 0;
  for (const Stepped& stepped : kStepped) {
    const auto c = harness::parse_case(stepped.text).value();
    const Options options = options_of(stepped);
    if (!plan(c.problem, gpu::rig().device(), options)) continue;
    for (int step = 0; step < std::min(stepped.steps, 2); ++step) {
      SCOPED_TRACE(std::string(stepped.text) + " by " + stepped.variant + ", step " +
                   std::to_string(step + 1));
      test::StepFault planted;
      const auto report =
          harness::verify_steps(c, gpu::rig(), options, {}, test::plant(step, planted));
      ASSERT_OK(report);
      ASSERT_EQ(planted.step, step);
      ++faults;
      test::expect_blamed(*report, planted);
    }
  }
  EXPECT_GT(faults, 0);
}

}  // namespace
}  // namespace sluice
