// SPDX-License-Identifier: Apache-2.0
// A matrix as the mma.sync kernels read it, wherever its layout puts the rows.
#pragma once

namespace sluice::cuda::sm80 {

// Row i of a matrix lies at base + i / block_rows * block_stride + i % block_rows * row_stride;
// block_rows = 0: no blocks. Bytes.
struct Rows {
  const void* base;
  long long row_stride;
  long long block_stride;
  int block_rows;
};

}  // namespace sluice::cuda::sm80
