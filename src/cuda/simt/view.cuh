// SPDX-License-Identifier: Apache-2.0
// Reading and writing elements of a View: any type, stride and alignment of an element, 64-bit
// offsets. The type is uniform over a grid, so the switch costs a predictable branch a load.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/simt/kernels.hpp"

namespace sluice::cuda::simt {

__device__ __forceinline__ std::int64_t offset_of(const View& v, std::int64_t i, std::int64_t j) {
  const std::int64_t row = v.transposed ? j : i;
  const std::int64_t col = v.transposed ? i : j;
  const Layout& l = v.layout;
  std::int64_t at = l.block_rows == 0 ? row * l.row_stride_bytes
                                      : (row / l.block_rows) * l.block_stride_bytes +
                                            (row % l.block_rows) * l.row_stride_bytes;
  const int elem = v.dtype == DType::kF32 ? 4 : 2;
  at += l.block_cols == 0
            ? col * elem
            : (col / l.block_cols) * l.col_block_stride_bytes + (col % l.block_cols) * elem;
  return at;
}

__device__ __forceinline__ float load(const View& v, std::int64_t i, std::int64_t j) {
  const char* p = v.base + offset_of(v, i, j);
  if (v.dtype == DType::kBF16) return __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(p));
  if (v.dtype == DType::kF16) return __half2float(*reinterpret_cast<const __half*>(p));
  return *reinterpret_cast<const float*>(p);
}

/// An absent operand reads as 0.
__device__ __forceinline__ float load_or_zero(const View& v, std::int64_t i, std::int64_t j) {
  return v.base == nullptr ? 0.0F : load(v, i, j);
}

/// Rounds once, to nearest even. An absent operand takes nothing.
__device__ __forceinline__ void store(const View& v, std::int64_t i, std::int64_t j, float value) {
  if (v.base == nullptr) return;
  char* p = v.base + offset_of(v, i, j);
  if (v.dtype == DType::kBF16) {
    *reinterpret_cast<__nv_bfloat16*>(p) = __float2bfloat16_rn(value);
  } else if (v.dtype == DType::kF16) {
    *reinterpret_cast<__half*>(p) = __float2half_rn(value);
  } else {
    *reinterpret_cast<float*>(p) = value;
  }
}

/// `value` as it would come back from a store to `dtype`.
__device__ __forceinline__ float rounded(float value, DType dtype) {
  if (dtype == DType::kBF16) return __bfloat162float(__float2bfloat16_rn(value));
  if (dtype == DType::kF16) return __half2float(__float2half_rn(value));
  return value;
}

}  // namespace sluice::cuda::simt
