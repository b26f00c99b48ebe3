// SPDX-License-Identifier: Apache-2.0
// Device memory of the example: checks and timing alike end the program where CUDA fails.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace example {

#define CUDA_OK(call)                                                      \
  do {                                                                     \
    const cudaError_t status = (call);                                     \
    if (status != cudaSuccess) {                                           \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status)); \
      std::exit(1);                                                        \
    }                                                                      \
  } while (false)

template <class T>
struct Buffer {
  T* data = nullptr;
  explicit Buffer(std::size_t count) { CUDA_OK(cudaMalloc(&data, count * sizeof(T))); }
  explicit Buffer(const std::vector<T>& host) : Buffer(std::max<std::size_t>(host.size(), 1)) {
    CUDA_OK(cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data); }
};

}  // namespace example
