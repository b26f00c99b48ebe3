// SPDX-License-Identifier: Apache-2.0
// mbarrier: barriers in shared memory that count arrivals, and on sm_90 bytes. sm_80.
// Source: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
#pragma once

#include <cstdint>

namespace sluice::cuda::ptx {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// A barrier whose phase completes after `arrivals` arrivals and all announced bytes. One thread;
/// then a CTA (or cluster) barrier before anyone uses it, and before that fence_mbarrier_init()
/// where the copy engine or the cluster does.
__device__ __forceinline__ void mbarrier_init(std::uint64_t& barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(arrivals)
               : "memory");
}

/// Makes initialised barriers visible to the copy engine and to the cluster.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Arrives.
__device__ __forceinline__ void mbarrier_arrive(std::uint64_t& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier))
               : "memory");
}

/// Arrives, and announces bytes that copies will bring in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect_bytes(std::uint64_t& barrier,
                                                             std::uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
}

// test_wait (sm_80) answers at once; try_wait (sm_90) suspends the thread for a while.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define SLUICE_WAIT_FORM "test_wait"
#else
#define SLUICE_WAIT_FORM "try_wait"
#endif
#define SLUICE_WAIT(order)                         \
  asm volatile(                                    \
      "{\n"                                        \
      ".reg .pred p;\n"                            \
      "mbarrier." SLUICE_WAIT_FORM ".parity" order \
      ".shared::cta.b64 p, [%1], %2;\n"            \
      "selp.u32 %0, 1, 0, p;\n"                    \
      "}\n"                                        \
      : "=r"(done)                                 \
      : "r"(shared_address(&barrier)), "r"(parity) \
      : "memory")

/// Who completes the phases of a barrier: this CTA and its copies, or other CTAs of the cluster.
enum class Completer { kCta, kCluster };

/// Waits until the phase of parity `parity` (0 for the first) has completed. A debug build traps
/// after some seconds, which the stream reports as an error.
template <Completer kCompleter = Completer::kCta>
__device__ __forceinline__ void mbarrier_wait(std::uint64_t& barrier, std::uint32_t parity) {
#if defined(SLUICE_CUDA_DEBUG)
  constexpr long long kStuckClocks = 1LL << 33;  // 4 to 5 s
  const long long start = clock64();
#endif
  std::uint32_t done = 0;
  while (done == 0) {
#if defined(SLUICE_CUDA_DEBUG)
    if (clock64() - start > kStuckClocks) __trap();
#endif
    if constexpr (kCompleter == Completer::kCluster) {
      SLUICE_WAIT(".acquire.cluster");
    } else {
      SLUICE_WAIT("");  // acquire, CTA
    }
  }
}

#undef SLUICE_WAIT
#undef SLUICE_WAIT_FORM

}  // namespace sluice::cuda::ptx
