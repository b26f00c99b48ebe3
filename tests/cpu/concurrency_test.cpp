// SPDX-License-Identifier: Apache-2.0
// One plan run by several threads at once, each with its own operands and workspace.
#include <gtest/gtest.h>

#include <atomic>
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

// Four times as many threads as cores wait for each other's tasks, politely: every run ends, with
// the same bits. What it costs is in docs/kernels/cpu.md.
TEST(Concurrency, OversubscriptionEndsWithTheSameBits) {
  constexpr int kRounds = 20;
  const int threads = 4 * cpu_device().threads;
  for (const char* text :
       {"1x576x1536:mlp:bf16", "64x576x1536:mlp:bf16", "30x64x96:mlp_grad:fp32:recompute"}) {
    const harness::Case c = parse(text);
    const auto expected = bits_of(c, "", 1);
    for (int round = 0; round < kRounds; ++round) EXPECT_EQ(bits_of(c, "", threads), expected);
  }
}

// Callers that come and go: the pool outlives each, and a thread's exit takes nothing with it.
TEST(Concurrency, CallersMayExit) {
  const harness::Case c = parse("20x200x300:mlp:bf16");
  const auto expected = bits_of(c, "", 1);
  for (int i = 0; i < 20; ++i) {
    std::thread([&] { EXPECT_EQ(bits_of(c, "", 3), expected); }).join();
  }
}

}  // namespace
}  // namespace sluice::test
