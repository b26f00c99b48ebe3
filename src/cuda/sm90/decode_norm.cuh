// SPDX-License-Identifier: Apache-2.0
// The decode kernel's norm prologue: r = x (+ residual), and n from the rounded r, by the consumer
// warps of the CTAs in turns; see docs/kernels/mlp_decode.md.
#pragma once

#include <cstdint>

#include "cuda/ptx/warpgroup.cuh"
#include "cuda/sm90/decode_params.hpp"
#include "cuda/tile/vector8.cuh"

namespace sluice::cuda::sm90 {

inline constexpr int kConsumerWarps = 8;
inline constexpr int kConsumers = 32 * kConsumerWarps;
inline constexpr int kConsumerBarrier = 1;  // named, of all consumers

template <class Element>
__device__ __forceinline__ Element* element_at(const RowMajor& matrix, int row, int column) {
  return reinterpret_cast<Element*>(static_cast<char*>(matrix.base) + row * matrix.row_bytes) +
         column;
}

// r = x (+ residual), rounded. d is a multiple of 8 and rows begin at multiples of 16 bytes.
template <class Element>
__device__ __forceinline__ Vector8<Element> norm_input(const DecodeNorm& norm, int row, int col) {
  auto r = Vector8<Element>::load(element_at<Element>(norm.x, row, col));
  if (norm.residual.base != nullptr) {
    const auto add = Vector8<Element>::load(element_at<Element>(norm.residual, row, col));
#pragma unroll
    for (int i = 0; i < 8; ++i) r.at[i] += add.at[i];
    r.round();
  }
  return r;
}

// Sum over the consumers, the same bits in each: within a warp by halving distances, then the
// warps' sums in order.
__device__ __forceinline__ float consumer_sum(float value, float* partial) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, distance);
  }
  ptx::named_barrier_sync(kConsumerBarrier, kConsumers);  // the last row's sums have been read
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  ptx::named_barrier_sync(kConsumerBarrier, kConsumers);
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kConsumerWarps; ++warp) sum += partial[warp];
  return sum;
}

// The norm prologue: row by row over the CTAs, while the first weights are on their way. `partial`
// is free behind it.
template <class Element>
__device__ __forceinline__ void normalise_rows(const DecodeParams& p, float* partial) {
  const DecodeNorm& norm = p.norm;
  constexpr int kStep = kConsumers * 8;
  for (int row = static_cast<int>(blockIdx.x); row < p.m; row += static_cast<int>(gridDim.x)) {
    float squares = 0;
    for (int col = static_cast<int>(threadIdx.x) * 8; col < p.d; col += kStep) {
      const auto r = norm_input<Element>(norm, row, col);
      if (norm.r.base != nullptr) r.store(element_at<Element>(norm.r, row, col));
#pragma unroll
      for (int i = 0; i < 8; ++i) squares = fmaf(r.at[i], r.at[i], squares);
    }
    const float mean = consumer_sum(squares, partial) / static_cast<float>(p.d);
    const float scale = rsqrtf(mean + norm.eps);
    for (int col = static_cast<int>(threadIdx.x) * 8; col < p.d; col += kStep) {
      auto n = norm_input<Element>(norm, row, col);
      const auto weight = Vector8<Element>::load(static_cast<const Element*>(norm.weight) + col);
#pragma unroll
      for (int i = 0; i < 8; ++i) n.at[i] *= scale * (weight.at[i] + norm.weight_offset);
      n.store(element_at<Element>(norm.n, row, col));
    }
  }
  // NOTE: whoever writes there next has waited for copies that follow a grid barrier that follows
  // this, but compute-sanitizer does not see that order.
  ptx::named_barrier_sync(kConsumerBarrier, kConsumers);
}

}  // namespace sluice::cuda::sm90
