// SPDX-License-Identifier: Apache-2.0
// Copies of matrices whose widths, addresses or strides cuBLASLt's fast kernels do not take, with
// zeros behind rows and columns.
#pragma once

#include "sluice/plan.hpp"

namespace sluice::cuda {

/// [rows, cols] of 16 bits each, its rows as `layout` has them (no blocks of columns), to
/// [to_rows, to_cols] without gaps, zeros behind the last row and column.
struct PadRowsParams {
  const void* from = nullptr;
  Layout layout;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  void* to = nullptr;  ///< a multiple of 16 bytes
  std::int64_t to_rows = 0;
  std::int64_t to_cols = 0;  ///< a multiple of 8
};

/// Enqueues the kernel.
Status launch_pad_rows(const Device& device, const PadRowsParams& params, Stream stream) noexcept;

}  // namespace sluice::cuda
