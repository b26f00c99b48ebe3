// SPDX-License-Identifier: Apache-2.0
// cp.async.bulk and cp.async.bulk.tensor: the copy engine, global to shared memory, completing on
// an mbarrier. sm_90. Source: PTX ISA, "Data Movement: Bulk copy" and "Tensor copy".
#pragma once

#include <cuda.h>

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

/// Brings the descriptor of a tensor map (a __grid_constant__ parameter) on chip, ahead of its
/// first copy. One thread.
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// One box of a tensor map that is a __grid_constant__ parameter, at `coords`, innermost first.
/// `destination`: 128 bytes aligned, with a 128-byte swizzle 1024. One thread.
__device__ __forceinline__ void tensor_copy_2d(void* destination, const CUtensorMap& map,
                                               const std::int32_t (&coords)[5],
                                               std::uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(destination)),
      "l"(&map), "r"(coords[0]), "r"(coords[1]), "r"(shared_address(&barrier))
      : "memory");
}

__device__ __forceinline__ void tensor_copy_4d(void* destination, const CUtensorMap& map,
                                               const std::int32_t (&coords)[5],
                                               std::uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(destination)),
      "l"(&map), "r"(coords[0]), "r"(coords[1]), "r"(coords[2]), "r"(coords[3]),
      "r"(shared_address(&barrier))
      : "memory");
}

__device__ __forceinline__ void tensor_copy_5d(void* destination, const CUtensorMap& map,
                                               const std::int32_t (&coords)[5],
                                               std::uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(shared_address(destination)),
      "l"(&map), "r"(coords[0]), "r"(coords[1]), "r"(coords[2]), "r"(coords[3]), "r"(coords[4]),
      "r"(shared_address(&barrier))
      : "memory");
}

/// One box under a cache policy.
template <int kRank>
__device__ __forceinline__ void tensor_copy(void* destination, const CUtensorMap& map,
                                            const std::int32_t (&c)[5], std::uint64_t& barrier,
                                            std::uint64_t policy) {
  static_assert(kRank == 2 || kRank == 4 || kRank == 5);
  const std::uint32_t to = shared_address(destination);
  const std::uint32_t full = shared_address(&barrier);
  if constexpr (kRank == 2) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map), "r"(c[0]), "r"(c[1]), "r"(full), "l"(policy)
        : "memory");
  } else if constexpr (kRank == 4) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
        "l"(&map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(full), "l"(policy)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(to),
        "l"(&map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]), "r"(full), "l"(policy)
        : "memory");
  }
}

}  // namespace sluice::cuda::ptx
