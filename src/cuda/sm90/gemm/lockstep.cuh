// SPDX-License-Identifier: Apache-2.0
// How the CTAs of a persistent GEMM keep in step, so that what one loads the others find in L2.
// docs/kernels/gate_up.md, section 8.
#pragma once

#include <cstdint>

#include "cuda/ptx/global_timer.cuh"
#include "cuda/sm90/gemm/params.hpp"

namespace sluice::cuda::sm90::gemm {

// A word on a cache line of its own. Arrivals of all CTAs of a grid add up to exactly 2^31: CTA 0
// adds 2^31 - (CTAs - 1), the others 1, so that the top bit flips when the last one arrives.
// Nothing is ever reset, no target depends on earlier grids' sizes, and captured launches replay. A
// CTA cannot miss a flip: the next one needs its own arrival. Source: the arithmetic of
// cooperative_groups::grid_group::sync in the CUDA headers.
struct alignas(128) StepWord {
  std::uint32_t arrived;
};

// A launch takes one of these; the kernels of a translation unit have their own. Two launches on
// one word at the same time only disturb each other's step.
static __device__ StepWord step_words[kLockstepWords];

// Keeps the CTAs of a grid in step: they read the same rows and columns at about the same k, and
// where a wave reads more than L2 holds, one that has run ahead finds nothing there that others
// left, nor leaves anything. A hint, on which nothing depends but time: no data passes, and who has
// waited for kPatienceNs (CTAs that are not resident, because another kernel holds SMs) waits no
// more. One thread a CTA.
class Step {
 public:
  __device__ __forceinline__ explicit Step(int word) : word_(word), waits_(word >= 0) {}

  // Before each wait(), in turns that all CTAs have.
  __device__ __forceinline__ void arrive() {
    if (word_ < 0) return;
    ticket_ =
        atomicAdd(&step_words[word_].arrived, blockIdx.x == 0 ? 0x80000000U - (gridDim.x - 1) : 1U);
  }
  // Until all have arrived.
  __device__ __forceinline__ void wait() {
    if (!waits_) return;
    const volatile std::uint32_t& arrived = step_words[word_].arrived;
    const std::uint64_t start = ptx::global_timer_ns();
    while (((arrived ^ ticket_) & 0x80000000U) == 0) {
      if (ptx::global_timer_ns() - start > kPatienceNs) {
        waits_ = false;
        return;
      }
    }
  }

 private:
  static constexpr std::uint64_t kPatienceNs = 20'000;
  int word_;
  bool waits_;
  std::uint32_t ticket_ = 0;
};

}  // namespace sluice::cuda::sm90::gemm
