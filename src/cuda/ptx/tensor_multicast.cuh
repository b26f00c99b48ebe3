// SPDX-License-Identifier: Apache-2.0
// cp.async.bulk.tensor into the shared memory of several CTAs of a cluster. sm_90.
// Source: PTX ISA, "Data Movement: Tensor copy", .multicast::cluster.
#pragma once

#include "cuda/ptx/bulk_copy.cuh"

namespace sluice::cuda::ptx {

/// One box into the same place of every CTA whose bit is set in kMask; each one's own `barrier`
/// counts the bytes. With kMask = 1 the plain copy, which a launch without clusters needs.
template <std::uint16_t kMask, int kRank>
__device__ __forceinline__ void tensor_copy(void* destination, const CUtensorMap& map,
                                            const std::int32_t (&c)[5], std::uint64_t& barrier) {
  static_assert(kRank == 2 || kRank == 4 || kRank == 5);
  if constexpr (kMask == 1) {
    if constexpr (kRank == 2) tensor_copy_2d(destination, map, c, barrier);
    if constexpr (kRank == 4) tensor_copy_4d(destination, map, c, barrier);
    if constexpr (kRank == 5) tensor_copy_5d(destination, map, c, barrier);
  } else if constexpr (kRank == 2) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(destination)),
        "l"(&map), "r"(c[0]), "r"(c[1]), "r"(shared_address(&barrier)), "h"(kMask)
        : "memory");
  } else if constexpr (kRank == 4) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(
            shared_address(destination)),
        "l"(&map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(shared_address(&barrier)),
        "h"(kMask)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(
            shared_address(destination)),
        "l"(&map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]),
        "r"(shared_address(&barrier)), "h"(kMask)
        : "memory");
  }
}

/// The same under a cache policy.
template <std::uint16_t kMask, int kRank>
__device__ __forceinline__ void tensor_copy(void* destination, const CUtensorMap& map,
                                            const std::int32_t (&c)[5], std::uint64_t& barrier,
                                            std::uint64_t policy) {
  static_assert(kRank == 2 || kRank == 4 || kRank == 5);
  if constexpr (kMask == 1) {
    tensor_copy<kRank>(destination, map, c, barrier, policy);
  } else if constexpr (kRank == 2) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(
            shared_address(destination)),
        "l"(&map), "r"(c[0]), "r"(c[1]), "r"(shared_address(&barrier)), "h"(kMask), "l"(policy)
        : "memory");
  } else if constexpr (kRank == 4) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7, %8;" ::"r"(
            shared_address(destination)),
        "l"(&map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(shared_address(&barrier)),
        "h"(kMask), "l"(policy)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8, %9;" ::"r"(
            shared_address(destination)),
        "l"(&map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]),
        "r"(shared_address(&barrier)), "h"(kMask), "l"(policy)
        : "memory");
  }
}

}  // namespace sluice::cuda::ptx
