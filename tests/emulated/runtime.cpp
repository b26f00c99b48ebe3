// SPDX-License-Identifier: Apache-2.0
// What run() asks of the CUDA runtime, on a machine without one.
#include <cuda_runtime_api.h>

#include <cstring>

extern "C" {
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t /*stream*/) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}
}
