// SPDX-License-Identifier: Apache-2.0
// A forked child has none of the pool's threads. It must not wait for them, and gets the same bits.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "problems.hpp"

namespace sluice::test {
namespace {

constexpr unsigned kSecondsUntilHung = 60;

// Forks; the child runs the case on 3 threads twice. True if it got the expected bits in time.
bool child_agrees(const harness::Case& c, const std::vector<std::vector<char>>& expected) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kSecondsUntilHung);
    const bool same = bits_of(c, "", 3) == expected && bits_of(c, "", 3) == expected;
    _exit(same ? 0 : 1);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class Fork : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "the sanitizers do not support new threads in a forked child";
#endif
  }
};

TEST_F(Fork, ChildRunsAfterTheParentStartedThePool) {
  const harness::Case c = parse("60x100x150:mlp:bf16");
  const auto expected = bits_of(c, "", 3);
  EXPECT_TRUE(child_agrees(c, expected));
  EXPECT_EQ(bits_of(c, "", 3), expected);  // the parent's pool is as it was
}

TEST_F(Fork, ChildRunsThoughTheForkFellIntoARegion) {
  const harness::Case c = parse("60x100x150:mlp:bf16");
  const auto expected = bits_of(c, "", 3);
  const auto made = simd_plan(c, "", 3);
  auto rig = harness::open_rig("cpu");
  auto set = harness::OperandSet::make(c, **rig);
  auto memory = harness::make_workspace(*made, **rig);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop.load()) {
      static_cast<void>(run(*made, (*set)->operands(), memory->workspace, nullptr));
    }
  });
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(child_agrees(c, expected));
  stop = true;
  busy.join();
}

}  // namespace
}  // namespace sluice::test
