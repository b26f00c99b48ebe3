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

/// What a holder and the host tell each other, in memory that both see.
struct HoldWords {
  volatile int started;   ///< CTAs that hold an SM
  volatile int released;  ///< set behind the work under test, in its stream
  volatile int gave_up;   ///< CTAs that were not released within ten seconds
};

struct HoldParams {
  HoldWords* words;
};
inline __global__ void hold(const __grid_constant__ HoldParams p) {
  atomicAdd_system(const_cast<int*>(&p.words->started), 1);
  const std::uint64_t start = cuda::tile::global_timer_ns();
  while (p.words->released == 0) {
    if (cuda::tile::global_timer_ns() - start > 10'000'000'000) {
      atomicAdd_system(const_cast<int*>(&p.words->gave_up), 1);
      return;
    }
  }
}

/// Takes `sms` SMs until `words->released`.
inline Status hold_sms_until(unsigned sms, HoldWords* words, cudaStream_t stream) {
  cuda::LaunchShape shape;
  shape.grid.x = sms;
  shape.block.x = 1;
  shape.smem_bytes = 200 * 1024;  // no other CTA of ours fits beside it
  return cuda::launch<&hold>(0, shape, stream, HoldParams{words});
}

/// Takes `sms` SMs for half a millisecond.
inline Status hold_sms(unsigned sms, cudaStream_t stream) {
  cuda::LaunchShape shape;
  shape.grid.x = sms;
  shape.block.x = 32;
  shape.smem_bytes = 200 * 1024;  // no other CTA of ours fits beside it
  return cuda::launch<&spin>(0, shape, stream, SpinParams{500'000});
}

}  // namespace sluice::gpu
