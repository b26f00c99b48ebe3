// SPDX-License-Identifier: Apache-2.0
// Where a row of a matrix begins.
#pragma once

#include "cuda/sm80/rows.hpp"

namespace sluice::cuda::sm80 {

__device__ __forceinline__ const char* row_address(const Rows& rows, int i) {
  const char* base = static_cast<const char*>(rows.base);
  if (rows.block_rows == 0) return base + i * rows.row_stride;
  return base + i / rows.block_rows * rows.block_stride + i % rows.block_rows * rows.row_stride;
}

}  // namespace sluice::cuda::sm80
