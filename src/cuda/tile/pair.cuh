// SPDX-License-Identifier: Apache-2.0
// Two neighbouring columns in a thread's registers, as tensor-core accumulators hold them, and what
// every epilogue does with them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace sluice::cuda::tile {

// Two columns that a thread holds next to each other.
struct Pair {
  float lo;
  float hi;
};

template <class Element>
__device__ __forceinline__ std::uint32_t pack(Pair v) {
  if constexpr (std::is_same_v<Element, __half>) {
    const __half2 packed = __floats2half2_rn(v.lo, v.hi);
    return reinterpret_cast<const std::uint32_t&>(packed);
  } else {
    const __nv_bfloat162 packed = __floats2bfloat162_rn(v.lo, v.hi);
    return reinterpret_cast<const std::uint32_t&>(packed);
  }
}

template <class Element>
__device__ __forceinline__ Pair unpack(std::uint32_t word) {
  if constexpr (std::is_same_v<Element, __half>) {
    const float2 v = __half22float2(reinterpret_cast<const __half2&>(word));
    return {v.x, v.y};
  } else {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000U)};
  }
}

// The pair at element `index`, an even one, of a vector that begins at a multiple of four bytes.
template <class Element>
__device__ __forceinline__ Pair load_pair(const void* vector, int index) {
  return unpack<Element>(*(static_cast<const std::uint32_t*>(vector) + index / 2));
}

}  // namespace sluice::cuda::tile
