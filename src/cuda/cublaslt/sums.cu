// SPDX-License-Identifier: Apache-2.0
// The gate over cuBLASLt's sums, or a bias and a residual added to them: a thread has eight columns
// of a row. The sums come from L2 where these kernels are chosen, so that a walk of its own, as
// gate_mul's, has nothing to win.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/cublaslt/sums.hpp"
#include "cuda/host/launch.hpp"
#include "cuda/tile/activation.cuh"
#include "cuda/tile/vector8.cuh"
#include "math/gate.hpp"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 128;

template <class Element>
__device__ __forceinline__ Vector8<Element> sums_at(const float* from, const void* bias,
                                                    std::int64_t col) {
  const float4 a = __ldcg(reinterpret_cast<const float4*>(from));
  const float4 b = __ldcg(reinterpret_cast<const float4*>(from) + 1);
  Vector8<Element> v{{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
  if (bias == nullptr) return v;
  const Element* const add = static_cast<const Element*>(bias) + col;
#pragma unroll
  for (int i = 0; i < kSumColumns; ++i) v.at[i] += static_cast<float>(add[i]);
  return v;
}

template <class Element>
__global__ void __launch_bounds__(kThreads) gate_rows(const __grid_constant__ GateRowsParams p) {
  const std::int64_t col = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kSumColumns;
  if (col >= p.cols) return;
  const std::int64_t first = col / p.block * 2 * p.block + col % p.block;
  const std::int64_t gate_at = first + (p.up_first ? p.block : 0);
  const std::int64_t up_at = first + (p.up_first ? 0 : p.block);
  for (std::int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    const float* const sums = p.sums + row * 2 * p.cols;
    const auto g = sums_at<Element>(sums + gate_at, p.b_gate, col);
    const auto u = sums_at<Element>(sums + up_at, p.b_up, col);
    Vector8<Element> h;
    tile::with_gate(p.gate, p.plain_gate, [&](const Gate& gate) {
#pragma unroll
      for (int i = 0; i < kSumColumns; ++i) h.at[i] = math::gate_mul(gate, g.at[i], u.at[i]);
    });
    h.store(static_cast<Element*>(p.h) + row * p.h_stride + col);
    if (p.g == nullptr) continue;
    g.store(static_cast<Element*>(p.g) + row * p.g_u_stride + col);
    u.store(static_cast<Element*>(p.u) + row * p.g_u_stride + col);
  }
}

template <class Element>
__global__ void __launch_bounds__(kThreads) add_rows(const __grid_constant__ AddRowsParams p) {
  const std::int64_t col = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kSumColumns;
  if (col >= p.cols) return;
  for (std::int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    auto y = sums_at<Element>(p.sums + row * p.cols + col, p.bias, col);
    const auto r = Vector8<Element>::load(static_cast<const Element*>(p.residual) +
                                          row * p.residual_stride + col);
#pragma unroll
    for (int i = 0; i < kSumColumns; ++i) y.at[i] += r.at[i];
    y.store(static_cast<Element*>(p.y) + row * p.y_stride + col);
  }
}

// A CTA for every 1,024 columns of a row.
template <auto kBf16, auto kFp16, class Params>
Status launch_rows(const Device& device, DType dtype, const Params& params,
                   Stream stream) noexcept {
  constexpr std::int64_t kMostRows = 65535;
  constexpr std::int64_t kCtaColumns = std::int64_t{kThreads} * kSumColumns;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((params.cols + kCtaColumns - 1) / kCtaColumns),
                    static_cast<unsigned>(std::min(params.rows, kMostRows)));
  shape.block = dim3(kThreads);
  return dtype == DType::kBF16 ? launch<kBf16>(device.ordinal, shape, stream, params)
                               : launch<kFp16>(device.ordinal, shape, stream, params);
}

}  // namespace

Status launch_gate_rows(const Device& device, DType dtype, const GateRowsParams& params,
                        Stream stream) noexcept {
  return launch_rows<&gate_rows<__nv_bfloat16>, &gate_rows<__half>>(device, dtype, params, stream);
}

Status launch_add_rows(const Device& device, DType dtype, const AddRowsParams& params,
                       Stream stream) noexcept {
  return launch_rows<&add_rows<__nv_bfloat16>, &add_rows<__half>>(device, dtype, params, stream);
}

}  // namespace sluice::cuda
