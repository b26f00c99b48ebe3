// SPDX-License-Identifier: Apache-2.0
// A barrier of all CTAs of a grid, on one word of the workspace header. The grid must be resident
// as a whole: launch with LaunchShape::cooperative.
//
// The word is an epoch counter in its top bit: CTA 0 adds 2^31 - (CTAs - 1), the others add 1, so
// one barrier adds exactly 2^31 and the top bit flips when the last CTA arrives. Nothing is ever
// reset, no target depends on a kernel argument or on earlier grids' sizes, and captured launches
// replay. A CTA cannot miss a flip: the next one needs its own arrival. Source: the arithmetic of
// cooperative_groups::grid_group::sync in the CUDA headers.
#pragma once

#include <cstdint>

#include "cuda/workspace.hpp"

namespace sluice::cuda::tile {

/// Waits for ever.
inline constexpr std::uint64_t kNoWatchdog = 0;
/// Debug builds give up after two seconds: no barrier of a healthy grid takes a millisecond.
#if defined(SLUICE_CUDA_DEBUG)
inline constexpr std::uint64_t kWatchdogNs = 2'000'000'000;
#else
inline constexpr std::uint64_t kWatchdogNs = kNoWatchdog;
#endif

__device__ __forceinline__ std::uint64_t global_timer_ns() {
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__device__ __forceinline__ std::uint32_t add_release(std::uint32_t* word, std::uint32_t value) {
  std::uint32_t old = 0;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(word), "r"(value)
               : "memory");
  return old;
}

__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* word) {
  std::uint32_t value = 0;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

/// One thread a CTA: arrives, and returns what to wait for. What the thread wrote, and what it saw
/// written before (its CTA's writes behind a __syncthreads()), is released.
__device__ __forceinline__ std::uint32_t grid_arrive(BarrierWord& barrier) {
  const std::uint32_t ctas = gridDim.x * gridDim.y * gridDim.z;
  const bool first = (blockIdx.x | blockIdx.y | blockIdx.z) == 0;
  return add_release(&barrier.arrived, first ? 0x80000000U - (ctas - 1) : 1U);
}

/// The same thread: waits until all CTAs arrived; `ticket` is grid_arrive()'s. Acquires their
/// writes. False where the watchdog gave up: the workspace must be initialised again.
template <std::uint64_t kLimitNs = kWatchdogNs>
__device__ __forceinline__ bool grid_wait(WorkspaceHeader& header, BarrierWord& barrier,
                                          std::uint32_t ticket) {
  [[maybe_unused]] std::uint64_t start = 0;
  if constexpr (kLimitNs != kNoWatchdog) start = global_timer_ns();
  while (((load_acquire(&barrier.arrived) ^ ticket) & 0x80000000U) == 0) {
    if constexpr (kLimitNs != kNoWatchdog) {
      if (global_timer_ns() - start > kLimitNs) {
        atomicAdd(&header.stuck.arrived, 1U);
        return false;
      }
    }
  }
  return true;
}

/// All threads of all CTAs: writes before it are visible to all after it. In a debug build a stuck
/// barrier traps, which the stream reports as an error.
__device__ __forceinline__ void grid_sync(WorkspaceHeader& header, int index) {
  __syncthreads();
  if (threadIdx.x == 0) {
    BarrierWord& barrier = header.barriers[index];
    const std::uint32_t ticket = grid_arrive(barrier);
    if (!grid_wait(header, barrier, ticket)) __trap();
  }
  __syncthreads();
}

}  // namespace sluice::cuda::tile
