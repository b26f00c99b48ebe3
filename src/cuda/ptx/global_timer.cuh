// SPDX-License-Identifier: Apache-2.0
// %globaltimer: nanoseconds, the same on all SMs.
// Source: PTX ISA, "Special Registers: %globaltimer".
#pragma once

#include <cstdint>

namespace sluice::cuda::ptx {

__device__ __forceinline__ std::uint64_t global_timer_ns() {
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

}  // namespace sluice::cuda::ptx
