// SPDX-License-Identifier: Apache-2.0
// One plan run by several threads at once, each with its own operands and workspace.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "problems.hpp"

namespace sluice::test {
namespace {

TEST(Concurrency, FourCallersOfOnePlanGetTheSameBits) {
  constexpr int kCallers = 4;
  constexpr int kRounds = 20;
  for (const char* text : {"5x200x300:mlp:bf16:add_norm", "60x200x300:mlp:bf16:add_norm",
                           "30x64x96:mlp_grad:fp32:recompute"}) {
    const harness::Case c = parse(text);
    const auto expected = bits_of(c, "", 1);
    const auto made = simd_plan(c, "", 3);
    ASSERT_TRUE(made) << made.error().message;
    std::vector<std::thread> callers;
    std::atomic<int> wrong{0};
    for (int i = 0; i < kCallers; ++i) {
      callers.emplace_back([&] {
        auto rig = harness::open_rig("cpu");
        auto set = harness::OperandSet::make(c, **rig);
        for (int round = 0; round < kRounds; ++round) {
          if (!(*set)->reset_outputs() || !run_once(*made, **set)) ++wrong;
          if (output_bytes(**set) != expected) ++wrong;
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(wrong.load(), 0) << text;
  }
}

}  // namespace
}  // namespace sluice::test
