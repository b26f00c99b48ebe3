// SPDX-License-Identifier: Apache-2.0
// What both kinds of consumers of the decode kernel do: stores, and words to the producers.
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

template <class Element>
__device__ __forceinline__ void store_y(const DecodeParams& p, int token, int row, float sum) {
  if (p.b_down != nullptr) sum += vector_at<Element>(p.b_down, row);
  if (p.residual.base != nullptr) {
    // From L2: with a norm another SM wrote it in this launch.
    sum += static_cast<float>(__ldcg(element_at<Element>(p.residual, token, row)));
  }
  *element_at<Element>(p.y, token, row) = Element(sum);
}

// This warp has read the stage.
template <class Cfg>
__device__ __forceinline__ void release(const DecodeSmem<Cfg>& smem, int stage) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(smem.empty(stage));
}

}  // namespace sluice::cuda::sm90
