// SPDX-License-Identifier: Apache-2.0
// griddepcontrol: programmatic dependent launch, from both sides. sm_90; nothing before.
// Source: PTX ISA, "Parallel Synchronization and Communication Instructions: griddepcontrol".
#pragma once

namespace sluice::cuda::ptx {

/// Lets the next kernel of the stream start once every CTA has called this or ended. It says
/// nothing of memory: what this kernel writes is visible only behind the other's wait.
__device__ __forceinline__ void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until the kernels before this one have ended and their writes are visible. Every thread
/// that reads what they wrote, or writes what they read, must come after a wait of its own CTA.
__device__ __forceinline__ void wait_for_prerequisites() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace sluice::cuda::ptx
