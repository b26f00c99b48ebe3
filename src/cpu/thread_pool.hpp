// SPDX-License-Identifier: Apache-2.0
// The threads of the CPU engine: the caller's, where the plan has an executor, else a process-wide
// pool. Work is a region: a function that every participant calls once and that takes tasks from a
// shared counter until none is left. Whoever takes part, the work gets done, so a region never
// waits for a thread that has not started on it.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include "sluice/plan.hpp"

namespace sluice::cpu {

/// A function of a participant's number; refers to, never owns, a callable.
class RegionBody {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, RegionBody>) explicit RegionBody(
      const F& f) noexcept
      : object_(&f),
        call_([](const void* object, int worker) { (*static_cast<const F*>(object))(worker); }) {}
  void operator()(int worker) const { call_(object_, worker); }

 private:
  const void* object_;
  void (*call_)(const void*, int);
};

/// Threads that wait between regions: first spinning for some microseconds, then in the kernel.
class ThreadPool {
 public:
  /// Highest number of participants of one region, the caller included.
  static constexpr int kMaxThreads = 512;

  /// The pool of this process. Threads start when a region first asks for them, end when the
  /// library is unloaded, and start again in a forked child.
  static ThreadPool& instance() noexcept;

  /// Calls body(0) on this thread and body(1), body(2), ... on up to threads - 1 others, each
  /// number at most once; returns when every call that began has ended. Calls other than body(0)
  /// may be missing: where threads cannot be created, where another region is under way (a
  /// concurrent or nested caller works alone and never waits) or where workers come too late.
  /// Everything before the call happens before each body, and each body before the return.
  /// Thread-safe.
  void region(int threads, RegionBody body) noexcept;

  /// Threads that exist now, for tests.
  [[nodiscard]] int workers() const noexcept { return started_.load(std::memory_order_relaxed); }

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

 private:
  ThreadPool() noexcept;
  ~ThreadPool();

  void grow(int workers) noexcept;
  void work(std::uint32_t seen) noexcept;
  [[nodiscard]] std::uint32_t await_epoch(std::uint32_t seen) noexcept;
  void join_region(std::uint32_t epoch) noexcept;
  void forget_workers() noexcept;
  static void* start(void* pool) noexcept;

  std::atomic<bool> busy_{false};  // held by the caller of the region under way
  std::atomic<bool> closing_{false};
  std::atomic<int> started_{0};          // workers in threads_; written while busy_ is held
  std::atomic<std::uint32_t> epoch_{0};  // number of the last region; workers wait for it to move
  // epoch (32 bits) | open (1) | limit (15) | joined (16). A worker joins by adding one while the
  // epoch is its own, the region is open and joined < limit; the caller closes it by clearing open.
  std::atomic<std::uint64_t> ticket_{0};
  std::atomic<std::uint32_t> finished_{0};  // joined workers that are done with the region
  const RegionBody* body_ = nullptr;        // read only after joining
  std::array<pthread_t, kMaxThreads> threads_{};
};

/// Who may take part in a call's regions.
struct Team {
  int threads = 1;      ///< at most so many
  Executor executor{};  ///< whose; the pool's where it is empty
};

/// A region of up to `participants` of the team's threads, with the promises of ThreadPool::region;
/// whose threads they are, they compute in the default float mode.
void region(const Team& team, int participants, RegionBody body) noexcept;

/// Calls body(task, worker) for every task in [0, tasks), each once, on up to team.threads threads.
/// worker < team.threads, and no two bodies with the same worker run at once.
template <class Body>
void parallel_for(const Team& team, std::int64_t tasks, const Body& body) noexcept {
  std::atomic<std::int64_t> next{0};
  const auto share = [&](int worker) {
    for (std::int64_t task = next.fetch_add(1, std::memory_order_relaxed); task < tasks;
         task = next.fetch_add(1, std::memory_order_relaxed)) {
      body(task, worker);
    }
  };
  const auto limit = static_cast<int>(std::min<std::int64_t>(tasks, team.threads));
  if (limit <= 1) return share(0);
  region(team, limit, RegionBody(share));
}

/// Whether `count`, which only grows, has reached `target`. Differences stay below 2^31, so the
/// count may wrap.
[[nodiscard]] inline bool has_reached(const std::atomic<std::uint32_t>& count,
                                      std::uint32_t target) noexcept {
  return static_cast<std::int32_t>(count.load(std::memory_order_acquire) - target) >= 0;
}

/// Waits until has_reached(count, target): spinning, then offering the core to other threads, then
/// in the kernel.
void await_count(const std::atomic<std::uint32_t>& count, std::uint32_t target) noexcept;

/// Numbers of tasks of the phases of one round, in order.
using PhaseTasks = std::array<std::int64_t, 3>;

/// One task of a round; `there` is false where the round has no such task.
struct PhaseTask {
  int phase;
  std::int64_t task;
  bool there;
};

/// The task of phase 1 or 2 that a thread probably takes after this one, as threads take turns:
/// phase 2 follows phase 1 without a gap.
[[nodiscard]] inline PhaseTask next_task(const PhaseTasks& tasks, int phase, std::int64_t task,
                                         int threads) noexcept {
  std::int64_t next = task + threads;
  if (phase == 1 && next >= tasks[1]) phase = 2, next -= tasks[1];
  return {phase, next, next < tasks[static_cast<std::size_t>(phase)]};
}

/// One region for `rounds` times three phases: calls body(round, phase, task, worker) for every
/// task of every phase, each once, on up to team.threads threads. No task of a phase begins before
/// all tasks of the phases before it have ended, and it sees what they wrote. Nobody waits for a
/// thread that has taken no task: a late or missing worker holds up nothing. Who has to wait first
/// calls prepare(round, phase, task, over), which may do whatever does not depend on the phases
/// before, until over() says that they have ended.
template <class Body, class Prepare>
void parallel_phases(const Team& team, std::int64_t rounds, const PhaseTasks& tasks,
                     const Body& body, const Prepare& prepare) noexcept {
  const std::int64_t each = tasks[0] + tasks[1] + tasks[2];
  std::atomic<std::int64_t> next{0};
  std::atomic<std::uint32_t> done{0};
  const auto share = [&](int worker) {
    for (std::int64_t number = next.fetch_add(1, std::memory_order_relaxed); number < rounds * each;
         number = next.fetch_add(1, std::memory_order_relaxed)) {
      const std::int64_t round = number / each;
      std::int64_t task = number % each;
      int phase = 0;
      while (task >= tasks[static_cast<std::size_t>(phase)]) {
        task -= tasks[static_cast<std::size_t>(phase++)];
      }
      const std::int64_t begin = number - task;  // the phase's first task
      if (!has_reached(done, static_cast<std::uint32_t>(begin))) {
        const auto target = static_cast<std::uint32_t>(begin);
        prepare(round, phase, task, [&] { return has_reached(done, target); });
        await_count(done, target);
      }
      body(round, phase, task, worker);
      const std::int64_t end = begin + tasks[static_cast<std::size_t>(phase)];
      if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(end)) {
        done.notify_all();
      }
    }
  };
  const std::int64_t widest = std::max({tasks[0], tasks[1], tasks[2]});
  const auto limit = static_cast<int>(std::min<std::int64_t>(widest, team.threads));
  if (limit <= 1) return share(0);
  region(team, limit, RegionBody(share));
}

template <class Body>
void parallel_phases(const Team& team, std::int64_t rounds, const PhaseTasks& tasks,
                     const Body& body) noexcept {
  parallel_phases(team, rounds, tasks, body, [](std::int64_t, int, std::int64_t, const auto&) {});
}

}  // namespace sluice::cpu
