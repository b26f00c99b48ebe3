// SPDX-License-Identifier: Apache-2.0
// Accesses to a word that order others among all GPUs of the system.
// Source: PTX ISA, "Memory Consistency Model", st.release and ld.acquire at the scope sys.
#pragma once

#include <cstdint>

namespace sluice::cuda::ptx {

/// What this thread wrote before, and what its CTA wrote before a barrier that it passed, is seen
/// by who acquires the word, on whatever GPU.
__device__ __forceinline__ void store_release_system(std::uint64_t* word, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ std::uint64_t load_acquire_system(const std::uint64_t* word) {
  std::uint64_t value = 0;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

}  // namespace sluice::cuda::ptx
