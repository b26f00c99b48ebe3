// SPDX-License-Identifier: Apache-2.0
// The kernels of a GPU other than Hopper, but all_reduce and CUTLASS's, forced, against the fp64
// oracle, without a GPU: planned for one that a file describes and run by the emulator.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>

#include "emulated_rig.hpp"
#include "harness/device_file.hpp"
#include "harness/test_cases.hpp"

namespace sluice {
namespace {

Device described(const std::string& name) {
  return harness::read_device(std::string(SLUICE_DEVICES "/") + name + ".json").value();
}

// The recipe of each run.
using Ran = std::multiset<std::string>;

Ran expect_right(const harness::Case& c, harness::Rig& rig) {
  Ran ran;
  harness::for_each_forced(c, rig,
                           [&](const harness::ForcedRun& run) {
                             if (!run.report) {
                               ADD_FAILURE()
                                   << harness::format_case(c) << ", " << run.variant << " "
                                   << run.config << ": " << run.report.error().message;
                               return;
                             }
                             EXPECT_TRUE(run.report->right()) << run.report->text();
                             ran.insert(run.variant);
                           },
                           {.repeat = false});
  return ran;
}

// The recipe that an A100 has for common cases.
const char* recipe_of(Op op) {
  if (op == Op::kGateMul || op == Op::kGateMulGrad) return "cuda.elementwise";
  if (op == Op::kNorm) return "cuda.norm";
  return op == Op::kColumnSum ? "cuda.simt" : "cuda.sm80";
}

// One in 19 of the cases that every variant of a CPU is put through; all of them where
// SLUICE_EVERY_CASE is set, which takes minutes.
class Emulated : public testing::TestWithParam<Op> {};

TEST_P(Emulated, AnA100IsRight) {
  emulator::EmulatedRig rig(described("a100"));
  const std::size_t step = std::getenv("SLUICE_EVERY_CASE") == nullptr ? 19 : 1;
  const auto cases = harness::operator_cases(GetParam());
  Ran ran;
  for (std::size_t i = static_cast<std::size_t>(GetParam()) % step; i < cases.size(); i += step) {
    ran.merge(expect_right(cases[i], rig));
  }
  EXPECT_TRUE(ran.contains(recipe_of(GetParam()))) << recipe_of(GetParam()) << " ran nothing";
  EXPECT_TRUE(ran.contains("cuda.simt"));
}

INSTANTIATE_TEST_SUITE_P(, Emulated,
                         testing::Values(Op::kGateUp, Op::kDown, Op::kMlp, Op::kGateMul,
                                         Op::kGateMulGrad, Op::kGateUpGrad, Op::kMlpGrad, Op::kNorm,
                                         Op::kInputGrad, Op::kWeightGrad, Op::kColumnSum),
                         [](const auto& op) { return to_string(op.param); });

// Row 4's squares are more than fp32 holds.
TEST(EmulatedA100, ANormOfVastNumbersIsRight) {
  emulator::EmulatedRig rig(described("a100"));
  for (const char* text : {"20x64:norm:fill=special", "20x64:q8_0:norm:fill=special"}) {
    EXPECT_GE(expect_right(harness::parse_case(text).value(), rig).size(), 2U);
  }
}

// Rows of tiles are its choice from 8193 columns on.
TEST(EmulatedB200, TheGateIsRight) {
  emulator::EmulatedRig rig(described("b200"));
  for (const char* text : {"3x1x11009:gate_mul", "2x1x16384:gate_mul:fp16:concat",
                           "3x1x14337:gate_mul_grad:in_place", "2x1x8200:gate_mul_grad:fp32"}) {
    EXPECT_GE(expect_right(harness::parse_case(text).value(), rig).size(), 4U);
  }
}

// So few SMs that each has several blocks of rows, and k goes round in the rings.
TEST(EmulatedTwoSms, DecodeIsRight) {
  Device device = described("a100");
  device.sm_count = 2;
  emulator::EmulatedRig rig(device);
  for (const char* text :
       {"3x1608x104:gate_up:bias", "14x72x1608:down:residual", "24x1608x136:gate_up:interleaved3",
        "32x136x1608:down:bias_down:fp16", "48x1608x136:gate_up:fp16", "64x264x1608:down",
        "49x1608x72:gate_up:concat+up_first"}) {
    EXPECT_GE(expect_right(harness::parse_case(text).value(), rig).size(), 4U);
  }
}

// 99 KiB of shared memory a block.
TEST(EmulatedRtx4090, IsRight) {
  emulator::EmulatedRig rig(described("rtx4090"));
  for (const char* text : {"70x136x264:mlp_grad:recompute", "33x136x264:mlp:norm"}) {
    EXPECT_GE(expect_right(harness::parse_case(text).value(), rig).size(), 4U);
  }
}

}  // namespace
}  // namespace sluice
