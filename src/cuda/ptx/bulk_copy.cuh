// SPDX-License-Identifier: Apache-2.0
// cp.async.bulk: the copy engine, global to shared memory, completing on an mbarrier. sm_90.
// Source: PTX ISA, "Data Movement: Bulk copy".
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"

namespace sluice::cuda::ptx {

/// `bytes` from `source` to `destination`, both multiples of 16, as is the count. One thread.
__device__ __forceinline__ void bulk_copy(void* destination, const void* source,
                                          std::uint32_t bytes, std::uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(destination)),
      "l"(source), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}

/// A cache policy for what is read once: it leaves L2 first.
__device__ __forceinline__ std::uint64_t evict_first_policy() {
  std::uint64_t policy = 0;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// bulk_copy() under a cache policy.
__device__ __forceinline__ void bulk_copy(void* destination, const void* source,
                                          std::uint32_t bytes, std::uint64_t& barrier,
                                          std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(destination)),
      "l"(source), "r"(bytes), "r"(shared_address(&barrier)), "l"(policy)
      : "memory");
}

/// Asks for `bytes` from `source` in L2, both multiples of 16, and waits for nothing. As with
/// prefetch_l2() no promise is needed of who writes there meanwhile. One thread.
__device__ __forceinline__ void bulk_prefetch_l2(const void* source, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes));
}

}  // namespace sluice::cuda::ptx
