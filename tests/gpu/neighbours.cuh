// SPDX-License-Identifier: Apache-2.0
// Kernels that a kernel under test has beside it: some that hold SMs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/launch.hpp"
#include "cuda/tile/grid_barrier.cuh"

namespace sluice::gpu {

__device__ inline void spin_ns(std::uint64_t ns) {
  const std::uint64_t start = cuda::tile::global_timer_ns();
  while (cuda::tile::global_timer_ns() - start < ns) {
  }
}

struct SpinParams {
  std::uint64_t ns;
};
inline __global__ void spin(const __grid_constant__ SpinParams p) { spin_ns(p.ns); }

/// Takes `sms` SMs for half a millisecond.
inline Status hold_sms(unsigned sms, cudaStream_t stream) {
  cuda::LaunchShape shape;
  shape.grid.x = sms;
  shape.block.x = 32;
  shape.smem_bytes = 200 * 1024;  // no other CTA of ours fits beside it
  return cuda::launch<&spin>(0, shape, stream, SpinParams{500'000});
}

}  // namespace sluice::gpu
