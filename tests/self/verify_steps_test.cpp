// SPDX-License-Identifier: Apache-2.0
// verify_steps() on the CPU: every step is right on the inputs that it really has, and a fault is
// the element and the step where it was planted.
#include "harness/verify_steps.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/lower.hpp"
#include "tests/self/step_fault.hpp"

namespace sluice::harness {
namespace {

using sluice::detail::Role;

Rig& rig() {
  static const std::unique_ptr<Rig> opened = std::move(open_rig("cpu").value());
  return *opened;
}

struct Stepped {
  const char* text;
  const char* variant;
  std::vector<Role> roles;  // in place of the plan's one step, each by its kernel
};
const std::vector<Stepped> kStepped = {
    {"13x64x96", "cpu.simd", {}},
    {"13x64x96:norm:fp32", "cpu.simd", {}},
    {"13x64x96:mlp_grad:bias", "cpu.simd", {}},
    {"13x1x200:gate_mul_grad", "cpu.reference", {}},
    {"13x64x96:fp16:bias:bias_down:residual", "cpu.simd", {Role::kGateUp, Role::kDown}},
    {"13x64x96:add_norm:residual_norm_input",
     "cpu.reference",
     {Role::kNorm, Role::kGateUp, Role::kDown}},
    {"13x64x96:fp64:norm", "cpu.reference", {Role::kNorm, Role::kGateUp, Role::kDown}},
    {"13x64x96:mlp_grad:save_dg_du",
     "cpu.reference",
     {Role::kGateUpGrad, Role::kInputGrad, Role::kWeightGrad, Role::kWeightGradDown}},
    {"13x64x96:mlp_grad:recompute:bias:bias_down",
     "cpu.reference",
     {Role::kGateUp, Role::kGateUpGrad, Role::kInputGrad, Role::kWeightGrad, Role::kWeightGradDown,
      Role::kColumnSumGate, Role::kColumnSumUp, Role::kColumnSumDown}},
};

// The recipes of the CPU make one step of everything, so that plans of several are put together
// here.
Plan plan_of(const Stepped& stepped, const Case& c) {
  Plan plan = sluice::plan(c.problem, rig().device(), {.variant = stepped.variant}).value();
  if (stepped.roles.empty()) return plan;
  const PlannedStep whole = plan.steps.front();
  plan.step_count = 0;
  for (const Role role : stepped.roles) {
    plan.steps[static_cast<std::size_t>(plan.step_count++)] = {whole.kernel, whole.config, role};
  }
  constexpr std::size_t kRoom = 1 << 18;  // a part needs less in any of these cases
  plan.scratch = {.n = 0, .r = kRoom, .h = 2 * kRoom, .dg_du = 3 * kRoom, .kernel = 4 * kRoom};
  plan.workspace_bytes = kWorkspaceHeaderBytes + 5 * kRoom;
  return plan;
}

TEST(VerifySteps, EachStepIsRightOnItsInputs) {
  for (const Stepped& stepped : kStepped) {
    const Case c = parse_case(stepped.text).value();
    const Plan plan = plan_of(stepped, c);
    const auto report = verify_steps(c, rig(), plan);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report->passed()) << report->text();
    EXPECT_EQ(report->first_wrong(), -1);
    EXPECT_EQ(report->text().find("wrong"), std::string::npos) << report->text();
    ASSERT_EQ(static_cast<int>(report->steps.size()), plan.step_count);
    for (const StepReport& step : report->steps) {
      EXPECT_EQ(step.kernel, stepped.variant);
      EXPECT_FALSE(step.skipped);
      EXPECT_FALSE(step.outputs.empty()) << step.name;
      for (const Comparison& output : step.outputs) EXPECT_GT(output.compared, 0) << step.name;
    }
  }
}

TEST(VerifySteps, APlantedFaultIsThatElementOfThatStep) {
  for (const Stepped& stepped : kStepped) {
    const Case c = parse_case(stepped.text).value();
    const Plan plan = plan_of(stepped, c);
    for (int step = 0; step < plan.step_count; ++step) {
      SCOPED_TRACE(std::string(stepped.text) + " by " + stepped.variant + ", step " +
                   std::to_string(step + 1));
      test::StepFault planted;
      const auto report = verify_steps(c, rig(), plan, {}, test::plant(step, planted));
      ASSERT_TRUE(report) << report.error().message;
      ASSERT_EQ(planted.step, step);
      test::expect_blamed(*report, planted);
    }
  }
}

TEST(VerifySteps, ThePlanIsThatOfTheOptions) {
  const Case c = parse_case("13x64x96").value();
  const auto forced = verify_steps(c, rig(), {.variant = "cpu.reference"});
  ASSERT_TRUE(forced);
  EXPECT_EQ(forced->variant, "cpu.reference");
  EXPECT_EQ(forced->config, "mlp=fp64");
  const auto unknown = verify_steps(c, rig(), {.variant = "cpu.magic"});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kInvalidArgument);
}

TEST(VerifySteps, NoTokensHaveNoSteps) {
  const auto report = verify_steps(parse_case("0x8x16").value(), rig());
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->passed());
  EXPECT_TRUE(report->steps.empty());
}

}  // namespace
}  // namespace sluice::harness
