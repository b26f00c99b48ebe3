// SPDX-License-Identifier: Apache-2.0
// The SIMT kernels that are no GEMM: norm prologue, gate and its gradient, column sums.
#pragma once

#include "cuda/simt/view.cuh"
#include "math/gate.hpp"

namespace sluice::cuda::simt {

inline constexpr int kRowThreads = 256;

/// Sum over a block of kRowThreads threads, the same bits in every thread and on every run: within
/// a warp by halving distances, then the warps' sums in order.
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float partial[kRowThreads / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, distance);
  }
  __syncthreads();  // the last use of `partial` is over
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();  // all warps wrote their sum
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kRowThreads / 32; ++warp) sum += partial[warp];
  return sum;
}

/// One row a block: r = x (+ x_residual), rounded to the activations' type; then n from the rounded
/// r. r is read again from the inputs rather than kept: any D.
__global__ void __launch_bounds__(kRowThreads) norm_rows(const __grid_constant__ NormParams p) {
  for (std::int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const auto r_at = [&](std::int64_t col) {
      return rounded(load(p.x, row, col) + load_or_zero(p.x_residual, row, col), p.dtype);
    };
    float squares = 0;
    for (std::int64_t col = threadIdx.x; col < p.cols; col += kRowThreads) {
      const float r = r_at(col);
      store(p.r, row, col, r);
      squares = fmaf(r, r, squares);
    }
    const float scale = rsqrtf(block_sum(squares) / static_cast<float>(p.cols) + p.eps);
    for (std::int64_t col = threadIdx.x; col < p.cols; col += kRowThreads) {
      store(p.n, row, col, r_at(col) * scale * (load(p.weight, 0, col) + p.weight_offset));
    }
  }
}

/// A work item is kRowThreads columns of one row: one 64-bit division an item, none an element.
template <class Element>
__device__ __forceinline__ void for_each_element(std::int64_t rows, std::int64_t cols,
                                                 const Element& element) {
  const std::int64_t chunks = (cols + kRowThreads - 1) / kRowThreads;
  for (std::int64_t item = blockIdx.x; item < rows * chunks; item += gridDim.x) {
    const std::int64_t row = item / chunks;
    const std::int64_t col = item % chunks * kRowThreads + threadIdx.x;
    if (col < cols) element(row, col);
  }
}

/// Problem::round_gate's rounding.
struct Rounded {
  DType dtype;
  __device__ __forceinline__ float operator()(float v) const { return rounded(v, dtype); }
};

/// What rounds on the way, or nothing.
template <bool kRounds>
__device__ __forceinline__ auto round_of(const GateParams& p) {
  if constexpr (kRounds) {
    return Rounded{p.g.dtype};
  } else {
    return math::Unrounded{};
  }
}

template <bool kRounds>
struct GateForward {
  static __device__ void run(const GateParams& p, std::int64_t i, std::int64_t j) {
    store(p.h, i, j,
          math::gate_mul(p.gate, load(p.g, i, j), load(p.u, i, j), round_of<kRounds>(p)));
  }
};

template <bool kRounds>
struct GateBackward {
  static __device__ void run(const GateParams& p, std::int64_t i, std::int64_t j) {
    // dg may be g and du may be u: both are read before either is written.
    const auto grad = math::gate_mul_grad(p.gate, load(p.g, i, j), load(p.u, i, j),
                                          load(p.dh, i, j), round_of<kRounds>(p));
    store(p.h, i, j, grad.h);
    store(p.dg, i, j, grad.dg);
    store(p.du, i, j, grad.du);
  }
};

template <class Direction>
__global__ void __launch_bounds__(kRowThreads) gate_elements(const __grid_constant__ GateParams p) {
  for_each_element(p.rows, p.cols,
                   [&](std::int64_t i, std::int64_t j) { Direction::run(p, i, j); });
}

/// 32 columns a block; thread (lane, part) sums rows part, part + 8, … of column `lane`, then the
/// eight parts are added in order.
__global__ void __launch_bounds__(kRowThreads)
    column_sums(const __grid_constant__ ColumnSumParams p) {
  constexpr int kParts = kRowThreads / 32;
  __shared__ float partial[kParts][32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = static_cast<int>(threadIdx.x) / 32;
  for (std::int64_t col0 = std::int64_t{32} * blockIdx.x; col0 < p.cols;
       col0 += std::int64_t{32} * gridDim.x) {
    const std::int64_t col = col0 + lane;
    float sum = 0;
    if (col < p.cols) {
      for (std::int64_t row = part; row < p.rows; row += kParts) sum += load(p.in, row, col);
    }
    partial[part][lane] = sum;
    __syncthreads();  // all parts are there for warp 0
    if (part == 0 && col < p.cols) {
      float total = p.accumulate ? load(p.out, 0, col) : 0.0F;
      for (int i = 0; i < kParts; ++i) total += partial[i][lane];
      store(p.out, 0, col, total);
    }
    __syncthreads();  // warp 0 has read; the next columns may overwrite
  }
}

}  // namespace sluice::cuda::simt
