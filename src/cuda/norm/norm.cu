// SPDX-License-Identifier: Apache-2.0
// add + RMSNorm, one CTA a row: the row is kept in registers from one pass to the other, and what
// does not fit is read again. No shared memory to speak of: the decode kernel that starts meanwhile
// fills an SM's, and its CTA finds room beside this one's. docs/kernels/norm.md.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/norm/norm.hpp"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/ptx/prefetch.cuh"
#include "cuda/tile/block_sum.cuh"
#include "cuda/tile/vector8.cuh"

namespace sluice::cuda::norm {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kWarp = 32;
constexpr int kHeld = 2;  // vectors of a row that a thread keeps: 8192 columns in all

template <class Element>
__device__ __forceinline__ Element* at(const tile::RowMajor& rows, std::int64_t row, int col) {
  return reinterpret_cast<Element*>(rows.base + row * rows.row_bytes) + col;
}

// Eight columns of r = x (+ residual), rounded. NOTE: both by value: a pointer that may be null has
// what it points to in local memory, a third of the kernel's time.
template <class Element>
__device__ __forceinline__ uint4 rounded_sum(const uint4& x, bool adds, const uint4& add) {
  if (!adds) return x;
  auto r = Vector8<Element>::of(x);
  const auto other = Vector8<Element>::of(add);
#pragma unroll
  for (int i = 0; i < 8; ++i) r.at[i] += other.at[i];
  return r.packed();
}

template <class Element>
__global__ void __launch_bounds__(kMaxThreads) normalise_row(const __grid_constant__ NormParams p) {
  using Vector = Vector8<Element>;
  // The next kernel may fetch its weights meanwhile; what it reads of this one it waits for.
  ptx::launch_dependents();
  const std::int64_t row = blockIdx.x;
  const int first = static_cast<int>(threadIdx.x);
  const int step = static_cast<int>(blockDim.x);
  const int vectors = static_cast<int>(p.cols / 8);
  const bool adds = p.residual.base != nullptr;
  const auto* const x = reinterpret_cast<const uint4*>(at<Element>(p.x, row, 0));
  const auto* const residual = reinterpret_cast<const uint4*>(at<Element>(p.residual, row, 0));
  const auto* const weight = static_cast<const uint4*>(p.weight);
  // A layer's weights have streamed through L2 since these were there last: their way from memory
  // would be in the way of everybody's x. Where SMs have many rows, other rows hide it.
  if (p.prefetches) {
    for (int v = first; v < vectors; v += step) {
      ptx::prefetch_l2(weight + v);
      if (adds) ptx::prefetch_l2(residual + v);
    }
  }
  ptx::wait_for_prerequisites();

  // All loads before the first use, the norm's weight among them: the next kernel's weights fill
  // the queues by now, and each wait behind another would be one more of their latency.
  uint4 held_x[kHeld] = {};
  uint4 held_add[kHeld] = {};
  uint4 held_weight[kHeld] = {};
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int v = first + i * step;
    if (v < vectors) held_x[i] = __ldcg(x + v);
    if (v < vectors && adds) held_add[i] = __ldcg(residual + v);
    if (v < vectors) held_weight[i] = __ldcg(weight + v);
  }
  const auto again = [&](int v) {
    const uint4 add = adds ? __ldcg(residual + v) : uint4{};
    return rounded_sum<Element>(__ldcg(x + v), adds, add);
  };
  uint4 held[kHeld];
  float squares = 0;
  const auto square = [&](const uint4& raw) {
    const Vector r = Vector::of(raw);
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fmaf(r.at[i], r.at[i], squares);
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    held[i] = rounded_sum<Element>(held_x[i], adds, held_add[i]);
    square(held[i]);
  }
  for (int v = first + kHeld * step; v < vectors; v += step) square(again(v));
  const float scale = rsqrtf(block_sum<kMaxThreads>(squares) / static_cast<float>(p.cols) + p.eps);

  const auto finish = [&](int v, const uint4& raw, const uint4& raw_weight) {
    if (p.sum.base != nullptr) *reinterpret_cast<uint4*>(at<Element>(p.sum, row, 8 * v)) = raw;
    const Vector r = Vector::of(raw);
    const Vector factor = Vector::of(raw_weight);
    Vector n;
#pragma unroll
    for (int i = 0; i < 8; ++i) n.at[i] = r.at[i] * (scale * (factor.at[i] + p.weight_offset));
    n.store(at<Element>(p.n, row, 8 * v));
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int v = first + i * step;
    if (v < vectors) finish(v, held[i], held_weight[i]);
  }
  for (int v = first + kHeld * step; v < vectors; v += step)
    finish(v, again(v), __ldcg(weight + v));
}

}  // namespace

Status launch_norm(const Device& device, std::int64_t rows, DType dtype, const NormParams& params,
                   Stream stream) noexcept {
  const std::int64_t threads = (params.cols / 8 + kHeld - 1) / kHeld;
  const std::int64_t warps = (threads + kWarp - 1) / kWarp;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(rows));
  shape.block = dim3(static_cast<unsigned>(std::min<std::int64_t>(warps * kWarp, kMaxThreads)));
  shape.programmatic = device.compute_capability >= 90;
  if (dtype == DType::kBF16) {
    return launch<&normalise_row<__nv_bfloat16>>(device.ordinal, shape, stream, params);
  }
  return launch<&normalise_row<__half>>(device.ordinal, shape, stream, params);
}

}  // namespace sluice::cuda::norm
