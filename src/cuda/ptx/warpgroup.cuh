// SPDX-License-Identifier: Apache-2.0
// What warp-specialised kernels need around their math: named barriers, register budgets, clusters.
// Source: PTX ISA, "bar{.cta}", "setmaxnreg", "barrier.cluster", "mapa", "mbarrier.arrive".
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"

namespace sluice::cuda::ptx {

/// Arrives at named barrier `id` (1 to 15) of `threads` arrivals and waits for the rest.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Arrives without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// `value`, which is the same in all lanes of the warp, such that the compiler knows it: what
/// derives from it stays in uniform registers, where wgmma takes its descriptors.
__device__ __forceinline__ int warp_uniform(int value) {
  return __shfl_sync(0xFFFFFFFFU, value, 0);
}

/// Whether this thread is the one of warp `warp` of the CTA that acts for it, the same at every
/// call. All threads of that warp, converged. NOTE: ptxas knows that one thread runs what is under
/// it. Under a comparison of threadIdx each tensor copy goes through a loop over the warp's lanes.
/// Source: PTX ISA, "elect.sync".
__device__ __forceinline__ bool acts_for_warp(int warp) {
  if (warp_uniform(static_cast<int>(threadIdx.x) / 32) != warp) return false;
  std::uint32_t elected = 0;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xFFFFFFFF;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

/// `value`, which the compiler does not work out again where it is used. ptxas may still read a
/// kernel's parameter again.
template <class Value>
__device__ __forceinline__ Value held(Value value) {
  static_assert(sizeof(Value) == 4 || sizeof(Value) == 8);
  if constexpr (sizeof(Value) == 4) {
    asm("" : "+r"(value));
  } else {
    asm("" : "+l"(value));
  }
  return value;
}

/// Registers a thread of this warpgroup may use from here on. All warps of it, converged.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// This CTA's rank in its cluster.
__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t rank = 0;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// All threads of all CTAs of the cluster that have not exited meet; shared memory written before
/// is visible after. In two halves, between which a thread does what needs neither.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
}
/// Arrives where nothing was written that the others read: no fence, which waits for all stores.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

/// Arrives at the mbarrier of CTA `rank` of the cluster that lies where `barrier` lies here.
/// NOTE: the plain form. Written with .release.cluster it cost 25 to 50 % of a GEMM on an H200.
__device__ __forceinline__ void mbarrier_arrive_at(std::uint64_t& barrier, std::uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(rank)
      : "memory");
}

/// Of the CTA `rank` of the cluster, the address of what lies at `here` in this one.
__device__ __forceinline__ std::uint32_t peer_address(const void* here, std::uint32_t rank) {
  std::uint32_t there = 0;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(here)), "r"(rank));
  return there;
}

/// Stores 16 bytes, aligned so, to a peer_address(), and counts them at an mbarrier of the same
/// CTA. PTX ISA, "st.async".
__device__ __forceinline__ void store_to_peer(std::uint32_t to, float4 v, std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
      : "memory");
}

}  // namespace sluice::cuda::ptx
