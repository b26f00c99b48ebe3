// SPDX-License-Identifier: Apache-2.0
// cp.async.bulk.tensor: the copy engine, boxes of a tensor map from global to shared memory,
// completing on an mbarrier. sm_90. Source: PTX ISA, "Data Movement: Tensor copy".
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"

namespace sluice::cuda::ptx {

/// Brings the descriptor of a tensor map (a __grid_constant__ parameter) on chip, ahead of its
/// first copy. One thread.
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// One box of kRank dimensions, by what the functions below are given. `qualifiers` add the operand
// %8 to the instruction: `last` in its text, and its constraint.
#define SLUICE_TENSOR_COPY_OF(rank, coordinates, qualifiers, last, ...)                            \
  asm volatile("cp.async.bulk.tensor." rank                                                        \
               ".shared::cluster.global.tile.mbarrier::complete_tx::bytes" qualifiers              \
               " [%0], [%1, {" coordinates "}], [%2]" last ";" ::"r"(shared_address(destination)), \
               "l"(&map), "r"(shared_address(&barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]),       \
               "r"(at[3]), "r"(at[4])__VA_OPT__(, ) __VA_ARGS__                                    \
               : "memory")
#define SLUICE_TENSOR_COPY(...)                                     \
  static_assert(kRank == 2 || kRank == 4 || kRank == 5);            \
  if constexpr (kRank == 2) {                                       \
    SLUICE_TENSOR_COPY_OF("2d", "%3, %4", __VA_ARGS__);             \
  } else if constexpr (kRank == 4) {                                \
    SLUICE_TENSOR_COPY_OF("4d", "%3, %4, %5, %6", __VA_ARGS__);     \
  } else {                                                          \
    SLUICE_TENSOR_COPY_OF("5d", "%3, %4, %5, %6, %7", __VA_ARGS__); \
  }

/// One box of a tensor map that is a __grid_constant__ parameter, at the coordinates `at`,
/// innermost first. `destination`: 128 bytes aligned, with a 128-byte swizzle 1024. One thread.
template <int kRank>
__device__ __forceinline__ void tensor_copy(void* destination, const CUtensorMap& map,
                                            const std::int32_t (&at)[5], std::uint64_t& barrier) {
  SLUICE_TENSOR_COPY("", "")
}

/// The same under a cache policy.
template <int kRank>
__device__ __forceinline__ void tensor_copy(void* destination, const CUtensorMap& map,
                                            const std::int32_t (&at)[5], std::uint64_t& barrier,
                                            std::uint64_t policy) {
  SLUICE_TENSOR_COPY(".L2::cache_hint", ", %8", "l"(policy))
}

/// The same into that place of every CTA of the cluster whose bit is set in kMask; each one's own
/// `barrier` counts the bytes. A launch without clusters needs the plain copy.
template <int kRank, std::uint16_t kMask>
__device__ __forceinline__ void tensor_multicast(void* destination, const CUtensorMap& map,
                                                 const std::int32_t (&at)[5],
                                                 std::uint64_t& barrier) {
  SLUICE_TENSOR_COPY(".multicast::cluster", ", %8", "h"(kMask))
}

#undef SLUICE_TENSOR_COPY
#undef SLUICE_TENSOR_COPY_OF

}  // namespace sluice::cuda::ptx
