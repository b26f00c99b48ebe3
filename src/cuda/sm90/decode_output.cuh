// SPDX-License-Identifier: Apache-2.0
// What both kinds of consumers of the decode kernel do: biases read, words to the producers.
#pragma once

#include <cstdint>

#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/sm90/decode_policy.cuh"

namespace sluice::cuda::sm90 {

// This consumer warp's own rows are written: tells the activation producer.
__device__ __forceinline__ void announce(std::uint64_t& ready) {
  ptx::fence_global_for_async();
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ready);
}

template <class Element>
__device__ __forceinline__ float vector_at(const void* base, int i) {
  return static_cast<float>(static_cast<const Element*>(base)[i]);
}

// This warp has read the stage.
template <class Cfg>
__device__ __forceinline__ void release(const DecodeSmem<Cfg>& smem, int stage) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(smem.empty(stage));
}

}  // namespace sluice::cuda::sm90
