// SPDX-License-Identifier: Apache-2.0
// The kernels of a GPU other than Hopper, but all_reduce and CUTLASS's, forced, against the fp64
// oracle, without a GPU: planned for one that a file describes and run by the emulator.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

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
    EXPECT_TRUE(expect_right(harness::parse_case(text).value(), rig).contains("cuda.simt"));
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

// The decode kernel by every tiling: right, and these tilings were among them.
void expect_decode(const Device& device, const std::string& text,
                   const std::vector<std::string>& tilings) {
  SCOPED_TRACE(text);
  emulator::EmulatedRig rig(device);
  std::string ran;
  harness::for_each_forced(harness::parse_case(text).value(), rig,
                           [&](const harness::ForcedRun& run) {
                             ASSERT_TRUE(run.report) << run.report.error().message;
                             EXPECT_TRUE(run.report->right()) << run.report->text();
                             ran += std::string(run.config) + " ";
                           },
                           {.repeat = false});
  for (const std::string& tiling : tilings) {
    EXPECT_NE(ran.find(tiling), std::string::npos) << tiling << " is none of " << ran;
  }
}

Device with_sms(const std::string& name, int count) {
  Device device = described(name);
  device.sm_count = count;
  return device;
}

// Two SMs have several blocks of rows each, and k goes round in the rings.
TEST(EmulatedDecode, BlocksAndLaps) {
  const Device a100 = with_sms("a100", 2);
  expect_decode(a100, "3x1608x104:gate_up:bias", {"t8r64s8 ", "t8r32s7 "});
  expect_decode(a100, "14x72x1608:down:residual", {"t16r64s7 ", "t16r32s6 "});
  expect_decode(a100, "24x1608x136:gate_up:interleaved3", {"t32r64s3 ", "t32r128s3 "});
  expect_decode(a100, "32x136x1608:down:bias_down:fp16", {"t32r64s3 ", "t32r128s3 "});
  expect_decode(a100, "48x1608x136:gate_up:fp16", {"t64r64s2 ", "t64r128s3 "});
  expect_decode(a100, "49x1608x72:gate_up:concat+up_first", {"t64r64s2 ", "t64r128s3 "});
}

// CTAs that share rows divide k.
TEST(EmulatedDecode, SharedRows) {
  const Device a100 = with_sms("a100", 4);
  for (const char* tokens : {"3", "14", "30", "64"}) {
    expect_decode(a100, std::string(tokens) + "x24x2056:down:residual", {"x2 ", "x4 "});
  }
  expect_decode(a100, "64x2056x16:gate_up", {"t64r64s2x4 ", "t64r128s3x2 "});
}

// With 99 KiB a ring has one stage.
TEST(EmulatedDecode, RingsOfOneStage) {
  const Device rtx4090 = with_sms("rtx4090", 2);
  expect_decode(rtx4090, "30x136x1608:down", {"t32r64s1 "});
  expect_decode(rtx4090, "64x264x1608:down", {"t64r64s1 ", "t64r128s1 "});
  expect_decode(rtx4090, "48x1608x136:gate_up", {"t64r64s1 ", "t64r128s1 "});
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
