// SPDX-License-Identifier: Apache-2.0
#include "threads.hpp"

#include <pthread.h>
#include <torch/csrc/stable/c/shim.h>

#include <atomic>

namespace sluice_torch {
namespace {

std::atomic<bool> forked{false};  // this process is a child of the one that loaded the operators
const bool told_of_forks = pthread_atfork(nullptr, nullptr, [] { forked = true; }) == 0;

}  // namespace

void on_torch_threads(void* /*user*/, std::int32_t count, void (*body)(void*, std::int32_t),
                      void* work) {
  if (!told_of_forks || forked) return;
  struct Call {
    void (*body)(void*, std::int32_t);
    void* work;
  } call{body, work};
  constexpr std::int64_t kGrain = 1;  // as many threads as there are calls
  static_cast<void>(torch_parallel_for(
      0, count, kGrain,
      [](std::int64_t begin, std::int64_t end, void* context) {
        const auto& each = *static_cast<const Call*>(context);
        for (std::int64_t i = begin; i < end; ++i) {
          each.body(each.work, static_cast<std::int32_t>(i));
        }
      },
      &call));
}

}  // namespace sluice_torch
