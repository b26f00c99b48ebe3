// SPDX-License-Identifier: Apache-2.0
// What Hopper's kernels leave to others once run() sees the pointers: one weight as gate and up.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "emulated_rig.hpp"
#include "harness/data.hpp"
#include "harness/verify.hpp"
#include "host_cuda/fake_devices.hpp"

namespace sluice {
namespace {

// The outputs of a case whose w_up is its w_gate.
harness::OutputBits bits_of(const std::string& text, const Device& device, const Options& options) {
  emulator::EmulatedRig rig(device);
  const harness::Case c = harness::parse_case(text).value();
  auto set = std::move(harness::OperandSet::make(c, rig).value());
  const Plan made = plan(c.problem, rig.device(), options).value();
  auto workspace = std::move(harness::make_workspace(made, rig).value());
  Operands operands = set->operands();
  operands.w_up = operands.w_gate;
  const Status status = run(made, operands, workspace.workspace, nullptr);
  EXPECT_TRUE(status) << status.error().message;
  EXPECT_TRUE(set->check_canaries());
  EXPECT_TRUE(harness::check_workspace(workspace, rig));
  return harness::output_bits(*set).value();
}

TEST(OutOfReach, HopperGivesTheBitsOfAmpere) {
  for (const auto& [text, hopper] : {std::pair{"5x136x264:gate_up:bias", "cuda.sm90_decode"},
                                     {"5x136x264:gate_up:norm", "cuda.sm90_decode"},
                                     {"8x136x264:gate_up:add_norm:bias", "cuda.sm90_decode"},
                                     {"70x136x264:gate_up:norm", "cuda.sm90"},
                                     {"70x136x264:gate_up:bias:save", "cuda.sm90"}}) {
    SCOPED_TRACE(text);
    Options by_tiles;
    by_tiles.config = "gate_up=64x128";
    Options on_hopper;
    on_hopper.variant = hopper;
    EXPECT_TRUE(bits_of(text, gpu::h200(), on_hopper) == bits_of(text, gpu::a100(), by_tiles));
  }
}

}  // namespace
}  // namespace sluice
