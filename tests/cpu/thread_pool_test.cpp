// SPDX-License-Identifier: Apache-2.0
// The pool: every task once, no worker twice at a time, nobody waits for anybody else's region.
#include "cpu/thread_pool.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <tuple>
#include <vector>

#include "executors.hpp"

namespace sluice::cpu {
namespace {

TEST(ThreadPool, DoesEveryTaskOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    for (const std::int64_t tasks : {0, 1, 2, 7, 64, 1000}) {
      std::vector<std::atomic<int>> done(static_cast<std::size_t>(tasks));
      parallel_for(Team{threads}, tasks,
                   [&](std::int64_t task, int) { ++done[static_cast<std::size_t>(task)]; });
      for (const auto& count : done) ASSERT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, GivesEachWorkerNumberToOneThreadAtATime) {
  constexpr int kThreads = 5;
  std::array<std::atomic<int>, kThreads> inside{};
  std::atomic<int> clashes{0};
  for (int round = 0; round < 200; ++round) {
    parallel_for(Team{kThreads}, 64, [&](std::int64_t, int worker) {
      ASSERT_GE(worker, 0);
      ASSERT_LT(worker, kThreads);
      auto& mine = inside[static_cast<std::size_t>(worker)];
      if (mine.fetch_add(1) != 0) ++clashes;
      mine.fetch_sub(1);
    });
  }
  EXPECT_EQ(clashes.load(), 0);
}

TEST(ThreadPool, UsesOtherThreads) {
  // Two tasks that each wait for the other can only end on two threads.
  std::atomic<int> arrived{0};
  parallel_for(Team{2}, 2, [&](std::int64_t, int) {
    ++arrived;
    while (arrived.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived.load(), 2);
  EXPECT_GE(ThreadPool::instance().workers(), 1);
}

TEST(ThreadPool, GrowsOnDemandAndNoFurther) {
  parallel_for(Team{7}, 100, [](std::int64_t, int) {});
  const int workers = ThreadPool::instance().workers();
  EXPECT_GE(workers, 6);
  parallel_for(Team{3}, 100, [](std::int64_t, int) {});
  EXPECT_EQ(ThreadPool::instance().workers(), workers);
}

// Plain memory written before a region is seen in it, and what it writes is seen after it.
TEST(ThreadPool, OrdersMemory) {
  std::vector<int> in(256);
  std::vector<int> out(256);
  for (int round = 0; round < 2000; ++round) {
    for (auto& v : in) v = round;
    parallel_for(Team{4}, 256, [&](std::int64_t task, int) {
      out[static_cast<std::size_t>(task)] = in[static_cast<std::size_t>(task)] + 1;
    });
    for (const int v : out) ASSERT_EQ(v, round + 1);
  }
}

// Every task once; none before the phases ahead of it are done, whose plain writes it sees.
TEST(Phases, NextTaskOfAThreadFollowsIntoTheNextPhase) {
  constexpr PhaseTasks kTasks = {1, 6, 3};
  const auto next = [&](int phase, std::int64_t task, int threads) {
    const PhaseTask found = next_task(kTasks, phase, task, threads);
    return std::tuple(found.phase, found.task, found.there);
  };
  EXPECT_EQ(next(1, 3, 2), std::tuple(1, 5, true));
  EXPECT_EQ(next(1, 4, 2), std::tuple(2, 0, true));
  EXPECT_EQ(next(1, 5, 3), std::tuple(2, 2, true));
  EXPECT_FALSE(next_task(kTasks, 1, 5, 4).there);
  EXPECT_EQ(next(2, 0, 2), std::tuple(2, 2, true));
  EXPECT_FALSE(next_task(kTasks, 2, 2, 2).there);
}

TEST(Phases, FollowEachOther) {
  for (const int threads : {1, 2, 3, 8}) {
    for (const PhaseTasks& tasks : {PhaseTasks{1, 7, 3}, PhaseTasks{0, 5, 1}, PhaseTasks{4, 0, 0},
                                    PhaseTasks{2, 0, 40}, PhaseTasks{0, 0, 0}}) {
      constexpr std::int64_t kRounds = 5;
      const std::int64_t each = tasks[0] + tasks[1] + tasks[2];
      std::vector<int> done(static_cast<std::size_t>(kRounds * each));
      std::atomic<int> wrong{0};
      parallel_phases(Team{threads}, kRounds, tasks,
                      [&](std::int64_t round, int phase, std::int64_t task, int worker) {
                        std::int64_t begin = round * each;
                        for (int p = 0; p < phase; ++p) begin += tasks[static_cast<std::size_t>(p)];
                        for (std::int64_t i = 0; i < begin; ++i) {
                          if (done[static_cast<std::size_t>(i)] != 1) ++wrong;
                        }
                        if (worker < 0 || worker >= threads) ++wrong;
                        ++done[static_cast<std::size_t>(begin + task)];
                      });
      EXPECT_EQ(wrong.load(), 0);
      for (const int count : done) ASSERT_EQ(count, 1);
    }
  }
}

// A worker that sleeps in its task holds up the next phase, but nobody who holds no task does.
TEST(Phases, WaitForTasksNotForThreads) {
  std::atomic<int> slow{0};
  parallel_phases(Team{8}, 50, PhaseTasks{2, 2, 2},
                  [&](std::int64_t, int phase, std::int64_t task, int /*worker*/) {
                    if (phase == 0 && task == 0) {
                      std::this_thread::sleep_for(std::chrono::milliseconds(1));
                      ++slow;
                    }
                  });
  EXPECT_EQ(slow.load(), 50);
}

// Who holds a task of a phase that may not begin yet prepares it, once, before it.
TEST(Phases, PrepareWhileTheyWait) {
  for (int attempt = 0; attempt < 50; ++attempt) {
    std::atomic<bool> prepared{false};
    std::atomic<bool> run{false};
    std::atomic<int> wrong{0};
    parallel_phases(
        Team{2}, 1, PhaseTasks{2, 2, 0},
        [&](std::int64_t, int phase, std::int64_t task, int /*worker*/) {
          // Ends when the other thread waits, or is not there at all.
          const bool waits = phase == 0 && task == 0;
          for (int i = 0; waits && i < 1000 && !prepared.load(); ++i) std::this_thread::yield();
          if (phase == 1) run = true;
        },
        [&](std::int64_t, int phase, std::int64_t task, const auto& over) {
          if (phase != 1 || task > 1 || prepared.exchange(true) || run.load()) ++wrong;
          // The other thread goes on now.
          for (int i = 0; i < 1000000 && !over(); ++i) std::this_thread::yield();
          if (!over()) ++wrong;
        });
    EXPECT_EQ(wrong.load(), 0);
    if (prepared.load()) return;
  }
  FAIL() << "nobody ever waited";
}

TEST(ThreadPool, NestedRegionsRunOnTheirOwnThread) {
  std::atomic<int> inner{0};
  parallel_for(Team{3}, 8, [&](std::int64_t, int) {
    const auto caller = std::this_thread::get_id();
    parallel_for(Team{3}, 5, [&](std::int64_t, int worker) {
      EXPECT_EQ(worker, 0);
      EXPECT_EQ(std::this_thread::get_id(), caller);
      ++inner;
    });
  });
  EXPECT_EQ(inner.load(), 40);
}

TEST(ThreadPool, ConcurrentCallersAllFinish) {
  constexpr int kCallers = 4;
  std::array<std::atomic<std::int64_t>, kCallers> sums{};
  std::vector<std::thread> callers;
  for (std::size_t c = 0; c < kCallers; ++c) {
    callers.emplace_back([&, c] {
      for (int round = 0; round < 300; ++round) {
        parallel_for(Team{4}, 50, [&](std::int64_t task, int) { sums[c] += task; });
      }
    });
  }
  for (auto& caller : callers) caller.join();
  for (const auto& sum : sums) EXPECT_EQ(sum.load(), 300 * (49 * 50 / 2));
}

// Whatever an executor does with its calls: every task once, worker numbers below the team's,
// phases in order; and the pool is not asked.
TEST(Executor, DoesEveryTaskOnce) {
  for (const Executor& executor : test::executors()) {
    const Team team{9, executor};
    const int workers = ThreadPool::instance().workers();
    std::vector<std::atomic<int>> done(600);
    std::atomic<int> highest{0};
    parallel_for(team, 600, [&](std::int64_t task, int worker) {
      ++done[static_cast<std::size_t>(task)];
      int seen = highest.load();
      while (worker > seen && !highest.compare_exchange_weak(seen, worker)) {
      }
    });
    for (const auto& count : done) ASSERT_EQ(count.load(), 1);
    EXPECT_LT(highest.load(), team.threads);
    EXPECT_EQ(ThreadPool::instance().workers(), workers);
  }
}

TEST(Executor, IsAskedForAsManyAsThereAreTasksAndNotForOne) {
  int asked = 0;
  const auto count_calls = [](void* user, int count, test::ExecutorBody body, void* work) {
    *static_cast<int*>(user) += count;
    test::in_turn(nullptr, count, body, work);
  };
  const Executor executor{count_calls, &asked};
  for (const auto& [threads, tasks, wanted] :
       {std::array{4, 9, 4}, {4, 3, 3}, {4, 1, 0}, {1, 9, 0}}) {
    asked = 0;
    parallel_for(Team{threads, executor}, tasks, [](std::int64_t, int) {});
    EXPECT_EQ(asked, wanted) << threads << " threads, " << tasks << " tasks";
  }
}

TEST(Executor, PhasesFollowEachOther) {
  for (const Executor& executor : test::executors()) {
    std::vector<int> values(3 * 40);
    std::atomic<int> wrong{0};
    parallel_phases(Team{4, executor}, 1, PhaseTasks{40, 40, 40},
                    [&](std::int64_t, int phase, std::int64_t task, int) {
                      const auto row = static_cast<std::size_t>(40 * phase);
                      for (std::size_t i = 0; phase > 0 && i < 40; ++i) {
                        if (values[row - 40 + i] != phase) ++wrong;
                      }
                      values[row + static_cast<std::size_t>(task)] = phase + 1;
                    });
    EXPECT_EQ(wrong.load(), 0);
    for (std::size_t i = 80; i < 120; ++i) ASSERT_EQ(values[i], 3);
  }
}

// A busy pool must not block: the second caller ends while the first region is still held open.
TEST(ThreadPool, SecondCallerDoesNotWaitForTheFirst) {
  std::atomic<bool> inside{false};
  std::atomic<bool> release{false};
  std::thread first([&] {
    parallel_for(Team{2}, 2, [&](std::int64_t, int) {
      inside = true;
      while (!release.load()) std::this_thread::yield();
    });
  });
  while (!inside.load()) std::this_thread::yield();
  std::atomic<int> done{0};
  parallel_for(Team{2}, 10, [&](std::int64_t, int) { ++done; });
  EXPECT_EQ(done.load(), 10);
  release = true;
  first.join();
}

TEST(ThreadPool, TakesMoreThreadsThanItsMaximum) {
  std::atomic<int> done{0};
  std::atomic<int> highest{0};
  parallel_for(Team{3 * ThreadPool::kMaxThreads}, 4 * ThreadPool::kMaxThreads,
               [&](std::int64_t, int worker) {
                 ++done;
                 int seen = highest.load();
                 while (worker > seen && !highest.compare_exchange_weak(seen, worker)) {
                 }
               });
  EXPECT_EQ(done.load(), 4 * ThreadPool::kMaxThreads);
  EXPECT_LT(highest.load(), ThreadPool::kMaxThreads);
}

// The child has no workers, starts its own, and does not join its parent's when it exits.
TEST(ThreadPool, ForkedChildStartsAfresh) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  // AddressSanitizer: one child of about sixty hung, none of 300 without it; gcc 12's runtime may
  // hold a lock of its own across a fork.
  GTEST_SKIP() << "the sanitizers do not support new threads in a forked child";
#endif
  constexpr unsigned kSecondsUntilHung = 60;
  parallel_for(Team{3}, 100, [](std::int64_t, int) {});
  ASSERT_GE(ThreadPool::instance().workers(), 2);
  const pid_t child = fork();
  if (child == 0) {
    alarm(kSecondsUntilHung);
    if (ThreadPool::instance().workers() != 0) _exit(1);
    std::atomic<int> arrived{0};
    parallel_for(Team{2}, 2, [&](std::int64_t, int) {  // ends only on two threads
      ++arrived;
      while (arrived.load() < 2) std::this_thread::yield();
    });
    std::exit(0);  // runs the pool's destructor
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

}  // namespace
}  // namespace sluice::cpu
