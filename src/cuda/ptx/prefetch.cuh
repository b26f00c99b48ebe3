// SPDX-License-Identifier: Apache-2.0
// prefetch: brings memory into L2 and waits for nothing.
// Source: PTX ISA, "Data Movement and Conversion Instructions: prefetch, prefetchu".
#pragma once

namespace sluice::cuda::ptx {

/// Asks for the line of global memory at `address` in L2. No promise is needed of who writes there
/// meanwhile: every SM's writes meet in L2, so that what is read later is what was written.
__device__ __forceinline__ void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

}  // namespace sluice::cuda::ptx
