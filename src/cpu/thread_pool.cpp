// SPDX-License-Identifier: Apache-2.0
#include "cpu/thread_pool.hpp"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>

#include "cpu/float_mode.hpp"

namespace sluice::cpu {
namespace {

constexpr std::uint64_t kOpen = std::uint64_t{1} << 31;
constexpr std::uint64_t kJoinedMask = 0xFFFF;
constexpr int kLimitShift = 16;
constexpr int kEpochShift = 32;

// 10 to 40 microseconds on today's cores: longer than the gap between two regions of one run(),
// short enough not to rob other processes of a core.
constexpr int kSpins = 512;
// Then so many times the core is offered to others: some 50 microseconds where nobody wants it, and
// no time lost where somebody does, as with more threads than cores.
constexpr int kYields = 128;

// Calls ready() until it is true: spinning, then yielding. False where that took too long.
template <class Ready>
bool spin_until(const Ready& ready) noexcept {
  for (int i = 0; i < kSpins; ++i) {
    if (ready()) return true;
    _mm_pause();
  }
  for (int i = 0; i < kYields; ++i) {
    if (ready()) return true;
    sched_yield();
  }
  return false;
}

// Spins, then sleeps, until `value` is no longer `old`.
void wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t old) noexcept {
  if (spin_until([&] { return value.load(std::memory_order_acquire) != old; })) return;
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

void await_count(const std::atomic<std::uint32_t>& count, std::uint32_t target) noexcept {
  const auto reached = [&] { return has_reached(count, target); };
  if (spin_until(reached)) return;
  for (std::uint32_t now = count.load(std::memory_order_acquire); !reached();
       now = count.load(std::memory_order_acquire)) {
    count.wait(now, std::memory_order_acquire);
  }
}

ThreadPool& ThreadPool::instance() noexcept {
  static ThreadPool pool;
  return pool;
}

ThreadPool::ThreadPool() noexcept {
  // A forked child has none of the threads and maybe a half-open region: it starts afresh.
  static_cast<void>(
      pthread_atfork(nullptr, nullptr, [] { ThreadPool::instance().forget_workers(); }));
}

ThreadPool::~ThreadPool() {
  closing_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  const int count = started_.load(std::memory_order_relaxed);
  for (int i = 0; i < count; ++i) pthread_join(threads_[static_cast<std::size_t>(i)], nullptr);
}

void ThreadPool::forget_workers() noexcept {
  started_.store(0, std::memory_order_relaxed);
  ticket_.store(0, std::memory_order_relaxed);
  finished_.store(0, std::memory_order_relaxed);
  busy_.store(false, std::memory_order_relaxed);
}

void* ThreadPool::start(void* pool) noexcept {
  auto* self = static_cast<ThreadPool*>(pool);
  self->work(self->epoch_.load(std::memory_order_acquire));
  return nullptr;
}

void ThreadPool::grow(int workers) noexcept {
  int count = started_.load(std::memory_order_relaxed);
  while (count < workers) {
    pthread_t& thread = threads_[static_cast<std::size_t>(count)];
    if (pthread_create(&thread, nullptr, &ThreadPool::start, this) != 0) break;
    started_.store(++count, std::memory_order_relaxed);
  }
}

std::uint32_t ThreadPool::await_epoch(std::uint32_t seen) noexcept {
  wait_while(epoch_, seen);
  return epoch_.load(std::memory_order_acquire);
}

void ThreadPool::work(std::uint32_t seen) noexcept {
  join_region(seen);  // the one that this thread was started for
  while (!closing_.load(std::memory_order_relaxed)) {
    const std::uint32_t epoch = await_epoch(seen);
    if (epoch == seen) continue;
    seen = epoch;
    join_region(epoch);
  }
}

void ThreadPool::join_region(std::uint32_t epoch) noexcept {
  std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
  do {
    const std::uint64_t limit = (ticket >> kLimitShift) & 0x7FFF;
    if ((ticket >> kEpochShift) != epoch || (ticket & kOpen) == 0 ||
        (ticket & kJoinedMask) >= limit) {
      return;
    }
  } while (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                          std::memory_order_acquire));
  (*body_)(static_cast<int>(ticket & kJoinedMask) + 1);
  finished_.fetch_add(1, std::memory_order_release);
  finished_.notify_one();
}

void ThreadPool::region(int threads, RegionBody body) noexcept {
  const int others = std::min(threads, kMaxThreads) - 1;
  if (others <= 0 || closing_.load(std::memory_order_relaxed) ||
      busy_.exchange(true, std::memory_order_acquire)) {
    return body(0);
  }
  body_ = &body;
  finished_.store(0, std::memory_order_relaxed);
  const std::uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  ticket_.store(std::uint64_t{epoch} << kEpochShift | kOpen |
                    static_cast<std::uint64_t>(others) << kLimitShift,
                std::memory_order_release);
  epoch_.store(epoch, std::memory_order_release);
  epoch_.notify_all();
  grow(others);
  body(0);
  const std::uint64_t last = ticket_.fetch_and(~kOpen, std::memory_order_acq_rel);
  const auto joined = static_cast<std::uint32_t>(last & kJoinedMask);
  for (std::uint32_t done = finished_.load(std::memory_order_acquire); done != joined;
       done = finished_.load(std::memory_order_acquire)) {
    wait_while(finished_, done);
  }
  busy_.store(false, std::memory_order_release);
}

void region(const Team& team, int participants, RegionBody body) noexcept {
  const Executor& executor = team.executor;
  if (executor.parallel_for == nullptr) return ThreadPool::instance().region(participants, body);
  const auto take_part = [](void* work, int participant) {
    const DefaultFloatMode mode;  // the pool's threads were started in it, the caller's may not be
    (*static_cast<const RegionBody*>(work))(participant);
  };
  executor.parallel_for(executor.user, participants, take_part, &body);
  body(0);  // takes what the executor left out: as a rule nothing
}

}  // namespace sluice::cpu
