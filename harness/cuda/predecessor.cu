// SPDX-License-Identifier: Apache-2.0
#include "harness/cuda/check.hpp"
#include "harness/cuda/predecessor.hpp"

namespace sluice::harness {
namespace {

constexpr int kThreads = 256;

__global__ void rewrite(volatile int* x) {
  __syncthreads();
  if (threadIdx.x < 4) x[threadIdx.x] = x[threadIdx.x];
}

}  // namespace

Status enqueue_predecessor(void* x, Stream stream) {
  rewrite<<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<int*>(x));
  HARNESS_CUDA_TRY(cudaGetLastError());
  return {};
}

}  // namespace sluice::harness
