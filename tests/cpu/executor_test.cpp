// SPDX-License-Identifier: Apache-2.0
// Plans on the caller's threads: the bits of the library's own, whatever those threads are like.
#include <gtest/gtest.h>
#include <immintrin.h>

#include <atomic>
#include <thread>
#include <vector>

#include "executors.hpp"
#include "problems.hpp"

namespace sluice::test {
namespace {

constexpr int kThreads = 3;

Plan plan_on(const harness::Case& c, const Executor& executor) {
  const auto made = plan(c.problem, cpu_device(),
                         {.variant = "cpu.simd", .threads = kThreads, .executor = executor});
  EXPECT_TRUE(made) << made.error().message;
  return *made;
}

// Output bits of one run of the case.
std::vector<std::vector<char>> bits_on(const harness::Case& c, const Executor& executor) {
  auto rig = harness::open_rig("cpu");
  auto set = harness::OperandSet::make(c, **rig);
  const Status ran = run_once(plan_on(c, executor), **set);
  EXPECT_TRUE(ran) << ran.error().message;
  return output_bytes(**set);
}

TEST(Executors, ChangeNoBit) {
  for (const std::string& text : full_cases()) {
    const harness::Case c = parse(text);
    const auto expected = bits_of(c, "", 1);
    for (const Executor& executor : executors()) EXPECT_EQ(bits_on(c, executor), expected) << text;
  }
}

// at_once() on threads that flush denormals; counts those that no longer do after a call.
void flushing(void* user, int count, ExecutorBody body, void* work) {
  struct Call {
    ExecutorBody body;
    void* work;
    std::atomic<int>* changed;
  } call{body, work, static_cast<std::atomic<int>*>(user)};
  const auto in_mode = [](void* given, int i) {
    constexpr unsigned kFlushDenormals = 0x8040;
    const Call& wanted = *static_cast<const Call*>(given);
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | kFlushDenormals);
    wanted.body(wanted.work, i);
    if ((_mm_getcsr() & kFlushDenormals) != kFlushDenormals) ++*wanted.changed;
    _mm_setcsr(before);
  };
  at_once(nullptr, count, in_mode, &call);
}

TEST(Executors, ThreadsComputeInTheDefaultFloatModeAndKeepTheirOwn) {
  std::atomic<int> changed{0};
  // Special values hold subnormals; enough rows for several tasks.
  const harness::Case c = parse("3000x80x60:gate_mul:fp32:relu:fill=special");
  EXPECT_EQ(bits_on(c, {flushing, &changed}), bits_of(c, "", 1));
  EXPECT_EQ(changed.load(), 0);
}

TEST(Executors, ServeSeveralCallersOfOnePlanAtOnce) {
  constexpr int kRounds = 10;
  const harness::Case c = parse("60x200x300:mlp:bf16:add_norm");
  const auto expected = bits_of(c, "", 1);
  const Plan made = plan_on(c, {at_once});
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      auto rig = harness::open_rig("cpu");
      auto set = harness::OperandSet::make(c, **rig);
      for (int round = 0; round < kRounds; ++round) {
        if (!(*set)->reset_outputs() || !run_once(made, **set)) ++wrong;
        if (output_bytes(**set) != expected) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace sluice::test
