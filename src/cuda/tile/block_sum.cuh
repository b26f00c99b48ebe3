// SPDX-License-Identifier: Apache-2.0
// A sum over the threads of a CTA: the same bits in every thread and on every call.
#pragma once

namespace sluice::cuda {

/// Within a warp by halving distances, then the warps in order. One barrier: a CTA that sums again
/// passes another in between. kMaxThreads: of the CTA, a multiple of 32.
template <int kMaxThreads>
__device__ __forceinline__ float block_sum(float value) {
  constexpr int kWarp = 32;
  __shared__ float partial[kMaxThreads / kWarp];
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, distance);
  }
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / kWarp; ++warp) sum += partial[warp];
  return sum;
}

}  // namespace sluice::cuda
