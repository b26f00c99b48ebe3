// SPDX-License-Identifier: Apache-2.0
// Accesses to a word of global memory that order others among all SMs of the GPU.
// Source: PTX ISA, "Memory Consistency Model", ld.acquire and atom.acq_rel.
#pragma once

#include <cstdint>

namespace sluice::cuda::ptx {

/// What this thread wrote before, and saw written, is seen by who acquires the sum. Returns the
/// word before.
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

}  // namespace sluice::cuda::ptx
