// SPDX-License-Identifier: Apache-2.0
// add + RMSNorm, one CTA a row: the row is read once, kept rounded in shared memory, and normalised
// from there. docs/kernels/norm.md.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/norm/norm.hpp"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/ptx/prefetch.cuh"
#include "cuda/tile/vector8.cuh"

namespace sluice::cuda::norm {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kWarp = 32;

template <class Element>
struct NormConfig {
  using Type = Element;
};

template <class Element>
__device__ __forceinline__ Element* at(const Rows& rows, std::int64_t row, int col) {
  return reinterpret_cast<Element*>(rows.base + row * rows.row_stride_bytes) + col;
}

// The same bits in every thread: within a warp by halving distances, then the warps in order.
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float partial[kMaxThreads / kWarp];
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, distance);
  }
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / kWarp; ++warp) sum += partial[warp];
  return sum;
}

template <class Cfg>
__global__ void __launch_bounds__(kMaxThreads) normalise_row(const __grid_constant__ NormParams p) {
  using Element = typename Cfg::Type;
  using Vector = Vector8<Element>;
  extern __shared__ uint4 kept[];  // the row: r, rounded; each thread reads what it wrote
  // The next kernel may fetch its weights meanwhile; what it reads of this one it waits for.
  ptx::launch_dependents();
  const std::int64_t row = blockIdx.x;
  const int vectors = static_cast<int>(p.cols / 8);
  // A layer's weights have streamed through L2 since these were there last: their way from memory
  // would be in the way of everybody's x, the norm's weight behind the sum besides.
  for (int v = static_cast<int>(threadIdx.x); v < vectors; v += static_cast<int>(blockDim.x)) {
    ptx::prefetch_l2(static_cast<const Element*>(p.weight) + 8 * v);
    if (p.residual.base != nullptr) ptx::prefetch_l2(at<Element>(p.residual, row, 8 * v));
  }
  ptx::wait_for_prerequisites();
  float squares = 0;
  for (int v = static_cast<int>(threadIdx.x); v < vectors; v += static_cast<int>(blockDim.x)) {
    Vector r = Vector::load(at<Element>(p.x, row, 8 * v));
    if (p.residual.base != nullptr) {
      const Vector add = Vector::load(at<Element>(p.residual, row, 8 * v));
#pragma unroll
      for (int i = 0; i < 8; ++i) r.at[i] += add.at[i];
      r.round();
    }
    kept[v] = r.packed();
    if (p.sum.base != nullptr) r.store(at<Element>(p.sum, row, 8 * v));
    if (p.kept.base != nullptr) r.store(at<Element>(p.kept, row, 8 * v));
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fmaf(r.at[i], r.at[i], squares);
  }
  const float scale = rsqrtf(block_sum(squares) / static_cast<float>(p.cols) + p.eps);
  for (int v = static_cast<int>(threadIdx.x); v < vectors; v += static_cast<int>(blockDim.x)) {
    Vector n = Vector::of(kept[v]);
    const Vector weight = Vector::load(static_cast<const Element*>(p.weight) + 8 * v);
#pragma unroll
    for (int i = 0; i < 8; ++i) n.at[i] *= scale * (weight.at[i] + p.weight_offset);
    n.store(at<Element>(p.n, row, 8 * v));
  }
}

}  // namespace

Status launch_norm(const Device& device, std::int64_t rows, DType dtype, const NormParams& params,
                   Stream stream) noexcept {
  // A vector a thread, up to the largest block.
  const std::int64_t warps = (params.cols / 8 + kWarp - 1) / kWarp;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(rows));
  shape.block = dim3(static_cast<unsigned>(std::min<std::int64_t>(warps * kWarp, kMaxThreads)));
  shape.smem_bytes = static_cast<std::size_t>(params.cols) * 2;
  shape.programmatic = device.compute_capability >= 90;
  if (dtype == DType::kBF16) {
    return launch<&normalise_row<NormConfig<__nv_bfloat16>>>(device.ordinal, shape, stream, params);
  }
  return launch<&normalise_row<NormConfig<__half>>>(device.ordinal, shape, stream, params);
}

}  // namespace sluice::cuda::norm
