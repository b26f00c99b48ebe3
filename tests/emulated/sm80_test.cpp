// SPDX-License-Identifier: Apache-2.0
// cuda.sm80's tiles against the fp64 oracle without a GPU: the kernels' sources, planned for an
// A100 and run by the emulator.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "emulated_rig.hpp"
#include "emulator.hpp"
#include "harness/verify.hpp"
#include "host_cuda/fake_devices.hpp"

namespace sluice {
namespace {

// Verifies the case with each of these tilings of the step.
void expect_right(const std::string& text, const std::string& step,
                  const std::vector<std::string>& tilings) {
  SCOPED_TRACE(text);
  emulator::EmulatedRig rig(gpu::a100());
  const harness::Case c = harness::parse_case(text).value();
  Options options;
  options.variant = "cuda.sm80";
  harness::Verification verification(c, rig, {.repeat = false});
  for (const std::string& tiling : tilings) {
    std::string config = step;
    config += "=" + tiling;
    options.config = config.c_str();
    const auto report = verification.run(options);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report->passed()) << report->text();
    EXPECT_EQ(emulator::take_conflicts(), 0) << config << " reads shared memory in more cycles";
  }
}

const std::vector<std::string> kEveryTiling = {"128x256", "128x128", "64x128"};
const std::vector<std::string> kSmall = {"64x128"};

// Odd tails in every direction, more than one tile, fewer stages of k than the ring has and more.
TEST(Sm80, GateUp) {
  expect_right("130x264x72:gate_up:bias", "gate_up", kEveryTiling);
  expect_right("70x72x136:gate_up:bias:save", "gate_up", kEveryTiling);
  expect_right("1x8x8:gate_up:save:fp16", "gate_up", kSmall);
  expect_right("70x40x136:gate_up:save:fp16:gelu_erf:concat+up_first:pad=8", "gate_up", kSmall);
  expect_right("130x72x264:mlp:save:clamped_swiglu", "gate_up", kSmall);
}

TEST(Sm80, Linear) { expect_right("70x136x264:down:bias_down:residual", "down", kEveryTiling); }

TEST(Sm80, HiddenGradients) {
  expect_right("130x264x72:gate_up_grad", "gate_up_grad", kEveryTiling);
  expect_right("70x40x136:gate_up_grad:fp16:in_place:clamped_swiglu", "gate_up_grad", kSmall);
  expect_right("70x40x136:gate_up_grad:minimal:gelu_tanh:pad=8", "gate_up_grad", kSmall);
  expect_right("1x8x8:gate_up_grad", "gate_up_grad", kSmall);
}

TEST(Sm80, WholeBackwardPass) {
  for (const char* step : {"gate_up_grad", "input_grad", "weight_grad"}) {
    expect_right("70x136x264:mlp_grad", step, kEveryTiling);
  }
  expect_right("1x8x8:mlp_grad:recompute", "gate_up", kSmall);
  expect_right("130x72x136:mlp_grad:fp16:recompute:interleaved8", "input_grad", kSmall);
  expect_right("130x72x120:mlp_grad:fp16:recompute:interleaved3", "input_grad", kSmall);
  expect_right("130x136x72:mlp_grad:accumulate:concat+up_first:pad=8", "weight_grad", kSmall);
  expect_right("33x136x72:mlp_grad:bf16/bf16/bf16/fp32:accumulate:save_dg_du:in_place",
               "weight_grad", kSmall);
  expect_right("33x136x72:mlp_grad:bf16/bf16/bf16/fp32:recompute:interleaved1", "weight_grad",
               kSmall);
}

}  // namespace
}  // namespace sluice
