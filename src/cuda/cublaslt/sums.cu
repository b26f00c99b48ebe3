// SPDX-License-Identifier: Apache-2.0
// The gate over cuBLASLt's sums or its gradient, or a bias and a residual added to them: a thread
// has eight columns of a row, or one. The sums come from L2 where these kernels are chosen, so that
// a walk of its own, as gate_mul's, has nothing to win.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "cuda/cublaslt/sums.hpp"
#include "cuda/host/launch.hpp"
#include "cuda/tile/activation.cuh"
#include "cuda/tile/vector8.cuh"
#include "math/gate.hpp"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 128;

// One column, of any type and alignment, as Vector8 has eight.
template <class Element>
struct Column {
  float at[1];

  static __device__ __forceinline__ Column load(const Element* from) {
    return {{static_cast<float>(*from)}};
  }
  __device__ __forceinline__ void store(Element* to) const { *to = Element(at[0]); }
};

template <class Element, int kCount>
using Columns = std::conditional_t<kCount == 1, Column<Element>, Vector8<Element>>;

template <class Element, int kCount>
__device__ __forceinline__ Columns<Element, kCount> sums_at(const float* from, const void* bias,
                                                            std::int64_t col) {
  Columns<Element, kCount> v;
  if constexpr (kCount == 1) {
    v.at[0] = __ldcg(from);
  } else {
    const float4 a = __ldcg(reinterpret_cast<const float4*>(from));
    const float4 b = __ldcg(reinterpret_cast<const float4*>(from) + 1);
    v = {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
  }
  if (bias == nullptr) return v;
  const Element* const add = static_cast<const Element*>(bias) + col;
#pragma unroll
  for (int i = 0; i < kCount; ++i) v.at[i] += static_cast<float>(add[i]);
  return v;
}

template <class Element, int kCount>
__global__ void __launch_bounds__(kThreads) gate_rows(const __grid_constant__ GateRowsParams p) {
  const std::int64_t col = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  if (col >= p.cols) return;
  const std::int64_t first = col / p.block * 2 * p.block + col % p.block;
  const std::int64_t gate_at = first + (p.up_first ? p.block : 0);
  const std::int64_t up_at = first + (p.up_first ? 0 : p.block);
  for (std::int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    const float* const sums = p.sums + row * p.sums_stride;
    const auto g = sums_at<Element, kCount>(sums + gate_at, p.b_gate, col);
    const auto u = sums_at<Element, kCount>(sums + up_at, p.b_up, col);
    Columns<Element, kCount> h;
    tile::with_gate(p.gate, p.plain_gate, [&](const Gate& gate) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) h.at[i] = math::gate_mul(gate, g.at[i], u.at[i]);
    });
    h.store(static_cast<Element*>(p.h) + row * p.h_stride + col);
    if (p.g == nullptr) continue;
    g.store(static_cast<Element*>(p.g) + row * p.g_u_stride + col);
    u.store(static_cast<Element*>(p.u) + row * p.g_u_stride + col);
  }
}

template <class Element, int kCount>
__global__ void __launch_bounds__(kThreads) grad_rows(const __grid_constant__ GradRowsParams p) {
  const std::int64_t col = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  if (col >= p.cols) return;
  for (std::int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    using Values = Columns<Element, kCount>;
    const std::int64_t from = row * p.g_u_stride + col;
    const auto dh = sums_at<Element, kCount>(p.sums + row * p.sums_stride + col, nullptr, col);
    const auto g = Values::load(static_cast<const Element*>(p.g) + from);
    const auto u = Values::load(static_cast<const Element*>(p.u) + from);
    Values h;
    Values dg;
    Values du;
    tile::with_gate(p.gate, false, [&](const Gate& gate) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const auto grad = math::gate_mul_grad(gate, g.at[i], u.at[i], dh.at[i]);
        h.at[i] = grad.h;
        dg.at[i] = grad.dg;
        du.at[i] = grad.du;
      }
    });
    dg.store(static_cast<Element*>(p.dg) + row * p.dg_du_stride + col);
    du.store(static_cast<Element*>(p.du) + row * p.dg_du_stride + col);
    if (p.h != nullptr) h.store(static_cast<Element*>(p.h) + row * p.h_stride + col);
  }
}

template <class Element, int kCount>
__global__ void __launch_bounds__(kThreads) add_rows(const __grid_constant__ AddRowsParams p) {
  const std::int64_t col = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  if (col >= p.cols) return;
  for (std::int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    auto y = sums_at<Element, kCount>(p.sums + row * p.sums_stride + col, p.bias, col);
    if (p.residual != nullptr) {
      const auto r = Columns<Element, kCount>::load(static_cast<const Element*>(p.residual) +
                                                    row * p.residual_stride + col);
#pragma unroll
      for (int i = 0; i < kCount; ++i) y.at[i] += r.at[i];
    }
    y.store(static_cast<Element*>(p.y) + row * p.y_stride + col);
  }
}

struct GateRows {
  template <class Element, int kCount>
  static constexpr auto kKernel = &gate_rows<Element, kCount>;
};
struct GradRows {
  template <class Element, int kCount>
  static constexpr auto kKernel = &grad_rows<Element, kCount>;
};
struct AddRows {
  template <class Element, int kCount>
  static constexpr auto kKernel = &add_rows<Element, kCount>;
};

// A CTA for every kThreads * kCount columns of a row.
template <class Rows, int kCount, class Params>
Status launch_columns(const Device& device, DType dtype, const Params& params,
                      Stream stream) noexcept {
  constexpr std::int64_t kMostRows = 65535;
  constexpr std::int64_t kCtaColumns = std::int64_t{kThreads} * kCount;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((params.cols + kCtaColumns - 1) / kCtaColumns),
                    static_cast<unsigned>(std::min(params.rows, kMostRows)));
  shape.block = dim3(kThreads);
  const int ordinal = device.ordinal;
  if (dtype == DType::kBF16) {
    return launch<Rows::template kKernel<__nv_bfloat16, kCount>>(ordinal, shape, stream, params);
  }
  if constexpr (kCount == 1) {
    if (dtype == DType::kF32) {
      return launch<Rows::template kKernel<float, 1>>(ordinal, shape, stream, params);
    }
  }
  return launch<Rows::template kKernel<__half, kCount>>(ordinal, shape, stream, params);
}

bool by_eights(DType dtype, std::initializer_list<std::int64_t> counts,
               std::initializer_list<const void*> pointers) {
  return dtype != DType::kF32 &&
         std::all_of(counts.begin(), counts.end(),
                     [](std::int64_t count) { return count % kSumColumns == 0; }) &&
         std::all_of(pointers.begin(), pointers.end(), [](const void* pointer) {
           return reinterpret_cast<std::uintptr_t>(pointer) % sizeof(uint4) == 0;
         });
}

}  // namespace

Status launch_gate_rows(const Device& device, DType dtype, const GateRowsParams& p,
                        Stream stream) noexcept {
  return by_eights(dtype,
                   {p.cols, p.block, p.sums_stride, p.h_stride, p.g == nullptr ? 0 : p.g_u_stride},
                   {p.h, p.g, p.u})
             ? launch_columns<GateRows, kSumColumns>(device, dtype, p, stream)
             : launch_columns<GateRows, 1>(device, dtype, p, stream);
}

Status launch_grad_rows(const Device& device, DType dtype, const GradRowsParams& p,
                        Stream stream) noexcept {
  return launch_columns<GradRows, 1>(device, dtype, p, stream);
}

Status launch_add_rows(const Device& device, DType dtype, const AddRowsParams& p,
                       Stream stream) noexcept {
  return by_eights(
             dtype,
             {p.cols, p.sums_stride, p.y_stride, p.residual == nullptr ? 0 : p.residual_stride},
             {p.residual, p.y})
             ? launch_columns<AddRows, kSumColumns>(device, dtype, p, stream)
             : launch_columns<AddRows, 1>(device, dtype, p, stream);
}

}  // namespace sluice::cuda
