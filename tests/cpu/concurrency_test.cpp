// SPDX-License-Identifier: Apache-2.0
// One plan run by several threads at once, each with its own operands and workspace.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
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

double best_seconds(const Plan& plan, harness::OperandSet& set, const Workspace& workspace) {
  constexpr int kRuns = 20;
  double best = 1e9;
  for (int i = 0; i < kRuns; ++i) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(run(plan, set.operands(), workspace, nullptr));
    const auto stop = std::chrono::steady_clock::now();
    best = std::min(best, std::chrono::duration<double>(stop - start).count());
  }
  return best;
}

// Four times as many threads as cores: they wait for each other's tasks, politely. Best of many, so
// that what else runs on the machine does not count.
TEST(Concurrency, OversubscriptionCostsLessThanTwice) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizers change what switching threads costs";
#endif
  const int cores = cpu_device().threads;
  if (cores > 64)
    GTEST_SKIP() << "four times the cores are more threads than the shapes have tasks";
  for (const char* text : {"1x576x1536:mlp:bf16", "64x576x1536:mlp:bf16"}) {
    const harness::Case c = parse(text);
    auto rig = harness::open_rig("cpu");
    auto set = harness::OperandSet::make(c, **rig);
    const auto fitting = simd_plan(c, "", cores);
    const auto many = simd_plan(c, "", 4 * cores);
    ASSERT_TRUE(fitting && many);
    auto memory = harness::make_workspace(*many, **rig);
    double ratio = 1e9;
    for (int attempt = 0; attempt < 5 && ratio > 2; ++attempt) {
      const double alone = best_seconds(*fitting, **set, memory->workspace);
      ratio = std::min(ratio, best_seconds(*many, **set, memory->workspace) / alone);
    }
    EXPECT_LE(ratio, 2.0) << text;
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
