// SPDX-License-Identifier: Apache-2.0
// Accesses to words that GPUs of the system share: some order others, some are whole by themselves.
// Source: PTX ISA, "Memory Consistency Model", st.release, ld.acquire, relaxed and vectors at the
// scope sys.
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

/// Two words, of which each is whole for who loads them, on whatever GPU; they order nothing.
/// 16-byte aligned.
__device__ __forceinline__ void store_relaxed_system(std::uint64_t (&to)[2], std::uint64_t first,
                                                     std::uint64_t second) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(&to[0]), "l"(first), "l"(second)
               : "memory");
}

__device__ __forceinline__ void load_relaxed_system(const std::uint64_t (&from)[2],
                                                    std::uint64_t& first, std::uint64_t& second) {
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(first), "=l"(second)
               : "l"(&from[0])
               : "memory");
}

}  // namespace sluice::cuda::ptx
