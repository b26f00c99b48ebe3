// SPDX-License-Identifier: Apache-2.0
// cp.async: 16 bytes from global to shared memory without passing through registers. sm_80.
// Source: PTX ISA, "Data Movement and Conversion Instructions: cp.async".
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"

namespace sluice::cuda::ptx {

/// Copies 16 bytes past L1, or writes 16 zero bytes where not `valid` (the source is not read
/// then).
__device__ __forceinline__ void cp_async_16(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

/// Closes the group of this thread's copies since the last commit; a group may be empty.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most `kPending` of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Arrives at a barrier once all copies that this thread has issued have landed: one of the
/// arrivals that it was initialised with.
__device__ __forceinline__ void cp_async_arrive(std::uint64_t& barrier) {
  asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier))
      : "memory");
}

}  // namespace sluice::cuda::ptx
