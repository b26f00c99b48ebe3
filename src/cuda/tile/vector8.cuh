// SPDX-License-Identifier: Apache-2.0
// Eight 16-bit elements of a row as floats: one 16-byte access each way.
#pragma once

namespace sluice::cuda {

template <class Element>
struct Vector8 {
  float at[8];

  static __device__ __forceinline__ Vector8 load(const Element* from) {
    return of(__ldcg(reinterpret_cast<const uint4*>(from)));
  }
  static __device__ __forceinline__ Vector8 of(const uint4& raw) {
    const Element* elements = reinterpret_cast<const Element*>(&raw);
    Vector8 v;
#pragma unroll
    for (int i = 0; i < 8; ++i) v.at[i] = static_cast<float>(elements[i]);
    return v;
  }
  /// Rounds what it stores, and itself with it.
  __device__ __forceinline__ void round() {
#pragma unroll
    for (int i = 0; i < 8; ++i) at[i] = static_cast<float>(Element(at[i]));
  }
  [[nodiscard]] __device__ __forceinline__ uint4 packed() const {
    uint4 raw;
    Element* elements = reinterpret_cast<Element*>(&raw);
#pragma unroll
    for (int i = 0; i < 8; ++i) elements[i] = Element(at[i]);
    return raw;
  }
  __device__ __forceinline__ void store(Element* to) const {
    *reinterpret_cast<uint4*>(to) = packed();
  }
};

}  // namespace sluice::cuda
