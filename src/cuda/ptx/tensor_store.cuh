// SPDX-License-Identifier: Apache-2.0
// cp.async.bulk.tensor from shared to global memory, in bulk groups of one thread. sm_90.
// Source: PTX ISA, "Data Movement: Tensor copy", "cp.async.bulk.commit_group".
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"

namespace sluice::cuda::ptx {

/// Makes this thread's ordinary writes to shared memory visible to the copy engine and to wgmma.
/// Every writing thread calls it, then a barrier, then one thread stores.
__device__ __forceinline__ void fence_shared_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// One box to (column, row); what lies outside the matrix is not written.
__device__ __forceinline__ void tensor_store_2d(const CUtensorMap& map, const void* source,
                                                std::int32_t col, std::int32_t row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
          &map),
      "r"(col), "r"(row), "r"(shared_address(source))
      : "memory");
}

/// Closes the group of this thread's stores since the last commit.
__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Waits until all of this thread's stores but the last group have read their shared memory.
__device__ __forceinline__ void bulk_wait_read_but_one() {
  asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
}

/// Waits until all of this thread's stores have read their shared memory.
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/// Waits until all of this thread's stores are complete.
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace sluice::cuda::ptx
