// SPDX-License-Identifier: Apache-2.0
// Two neighbouring columns in a thread's registers, as tensor-core accumulators hold them, and what
// every epilogue does with them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "sluice/types.hpp"

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
__device__ __forceinline__ Pair load_pair(const void* base, long long index, bool first,
                                          bool second) {
  const Element* p = static_cast<const Element*>(base) + index;
  return {first ? static_cast<float>(p[0]) : 0.0F, second ? static_cast<float>(p[1]) : 0.0F};
}

// Calls f with the activation as a compile-time constant, so that the switch is outside the loops.
template <class F>
__device__ __forceinline__ void with_activation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::kSilu:
      f(std::integral_constant<Activation, Activation::kSilu>{});
      break;
    case Activation::kGeluTanh:
      f(std::integral_constant<Activation, Activation::kGeluTanh>{});
      break;
    case Activation::kGeluErf:
      f(std::integral_constant<Activation, Activation::kGeluErf>{});
      break;
    case Activation::kRelu:
      f(std::integral_constant<Activation, Activation::kRelu>{});
      break;
    case Activation::kSigmoid:
      f(std::integral_constant<Activation, Activation::kSigmoid>{});
      break;
    case Activation::kIdentity:
      f(std::integral_constant<Activation, Activation::kIdentity>{});
      break;
  }
}

}  // namespace sluice::cuda::tile
