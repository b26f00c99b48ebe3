// SPDX-License-Identifier: Apache-2.0
// Executors as callers may have them, from one that does everything at once to one that does
// nothing.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdlib>
#include <vector>

#include "sluice/plan.hpp"

namespace sluice::test {

/// What sluice::Executor promises a body.
inline constexpr std::size_t kExecutorStackBytes = std::size_t{128} << 10;

using ExecutorBody = void (*)(void* work, int i);

/// Every call at once, each but the first on a thread of its own, with a stack as small as may be.
inline void at_once(void* /*user*/, int count, ExecutorBody body, void* work) {
  struct Call {
    ExecutorBody body;
    void* work;
    int i;
  };
  std::vector<Call> calls;
  for (int i = 0; i < count; ++i) calls.push_back({body, work, i});
  pthread_attr_t small;
  pthread_attr_init(&small);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // theirs are larger
  if (pthread_attr_setstacksize(&small, kExecutorStackBytes) != 0) std::abort();
#endif
  const auto start = [](void* given) -> void* {
    const Call& call = *static_cast<const Call*>(given);
    call.body(call.work, call.i);
    return nullptr;
  };
  std::vector<pthread_t> threads(calls.size());
  for (std::size_t i = 1; i < calls.size(); ++i) {
    if (pthread_create(&threads[i], &small, start, &calls[i]) != 0) std::abort();
  }
  start(calls.data());
  for (std::size_t i = 1; i < calls.size(); ++i) pthread_join(threads[i], nullptr);
  pthread_attr_destroy(&small);
}

/// One call after another on the caller's thread, as inside a parallel region of a framework.
inline void in_turn(void* /*user*/, int count, ExecutorBody body, void* work) {
  for (int i = 0; i < count; ++i) body(work, i);
}

inline void backwards(void* /*user*/, int count, ExecutorBody body, void* work) {
  for (int i = count; i-- > 0;) body(work, i);
}

inline void the_last_alone(void* /*user*/, int count, ExecutorBody body, void* work) {
  body(work, count - 1);
}

inline void nothing(void* /*user*/, int /*count*/, ExecutorBody /*body*/, void* /*work*/) {}

inline std::vector<Executor> executors() {
  return {{at_once}, {in_turn}, {backwards}, {the_last_alone}, {nothing}};
}

}  // namespace sluice::test
