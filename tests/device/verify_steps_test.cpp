// SPDX-License-Identifier: Apache-2.0
// Each recipe step by step on a GPU: every step is right on the inputs that it really has, and one
// wrong element in what a step leaves is reported as that element of that step.
#include "harness/verify_steps.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "gpu.hpp"

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
    {"cuda.norm", "33x136:add_norm"},
    {"cuda.elementwise", "33x1x520:gate_mul_grad"},
    {"cuda.simt", "33x40x72:mlp:fp32:norm:bias"},
};

Options options_of(const Stepped& stepped) {
  return {.variant = stepped.variant, .config = stepped.config};
}

/// Where a fault lies.
struct Element {
  int step = -1;
  Operand operand{};
  std::int64_t row = 0;
  std::int64_t col = 0;
};

// 512 in place of an element of about 1.
Status spoil(const OperandSpec& spec, void* base, const Element& at, harness::Rig& rig) {
  const std::uint32_t bits = spec.dtype == DType::kF32    ? 0x44000000
                             : spec.dtype == DType::kBF16 ? 0x4400
                                                          : 0x6000;
  const auto offset = offset_bytes(spec.layout, spec.dtype, at.row, at.col);
  // Little-endian, as everything that has a GPU.
  return rig.upload(static_cast<char*>(base) + offset, &bits,
                    static_cast<std::size_t>(size_bytes(spec.dtype)));
}

// Changes one element of the first output of step `step`, and says which.
harness::AfterStep plant(int step, Element& planted) {
  return [step, &planted](int i, const StepCall& call, harness::Rig& rig) -> Status {
    if (i != step) return {};
    for (const OperandSpec& spec : operand_specs(call.problem)) {
      void* const base = const_cast<void*>(address(call.operands, spec.id));
      const bool written = spec.access == Access::kWrite || spec.access == Access::kReadWrite;
      if (!written || base == nullptr) continue;
      planted = {i, spec.id, spec.rows - 1, spec.cols / 2};
      return spoil(spec, base, planted, rig);
    }
    return make_error(ErrorCode::kInternal, "step %d writes nothing", i);
  };
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
  const auto all = variant_names(Backend::kCuda);
  EXPECT_EQ(seen, std::set<std::string>(all.begin(), all.end()));
}

// The steps behind the fault are right on what they were given: they are not blamed.
TEST(GpuVerifySteps, APlantedFaultIsThatElementOfThatStep) {
  int faults = 0;
  for (const Stepped& stepped : kStepped) {
    const auto c = harness::parse_case(stepped.text).value();
    const Options options = options_of(stepped);
    if (!plan(c.problem, gpu::rig().device(), options)) continue;
    for (int step = 0; step < std::min(stepped.steps, 2); ++step) {
      SCOPED_TRACE(std::string(stepped.text) + " by " + stepped.variant + ", step " +
                   std::to_string(step + 1));
      Element planted;
      const auto report = harness::verify_steps(c, gpu::rig(), options, {}, plant(step, planted));
      ASSERT_OK(report);
      ASSERT_EQ(planted.step, step);
      ++faults;
      EXPECT_FALSE(report->passed());
      EXPECT_EQ(report->first_wrong(), step) << report->text();
      for (std::size_t i = 0; i < report->steps.size(); ++i) {
        for (const harness::Comparison& output : report->steps[i].outputs) {
          const bool spoilt = static_cast<int>(i) == step && output.operand == planted.operand;
          EXPECT_EQ(output.failed, spoilt ? 1 : 0) << report->text();
          if (!spoilt) continue;
          EXPECT_EQ(output.worst.row, planted.row);
          EXPECT_EQ(output.worst.col, planted.col);
        }
      }
      const std::string where =
          "at (" + std::to_string(planted.row) + ", " + std::to_string(planted.col) + ")";
      const std::string named = "the first wrong step is " + std::to_string(step + 1) + ", " +
                                report->steps[static_cast<std::size_t>(step)].name + " by ";
      const std::string text = report->text();
      const std::size_t line = text.find(named);
      ASSERT_NE(line, std::string::npos) << text;
      EXPECT_NE(text.find(where, line), std::string::npos) << text;
    }
  }
  EXPECT_GT(faults, 0);
}

}  // namespace
}  // namespace sluice
