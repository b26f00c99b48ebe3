// SPDX-License-Identifier: Apache-2.0
// Where a step's operands lie, as kernels that read rows take them.
#pragma once

#include "core/kernel.hpp"
#include "cuda/tile/rows.hpp"

namespace sluice::cuda {

/// A step's operand without blocks.
[[nodiscard]] inline tile::RowMajor row_major(const detail::Step& step, Operand id) noexcept {
  void* const base = step.pointer(id);
  if (base == nullptr) return {};
  return {static_cast<char*>(base), step.spec(id).layout.row_stride_bytes};
}

/// Where the rows of a step's operand lie; a null base where the step has none.
[[nodiscard]] inline tile::Rows rows_of(const detail::Step& step, Operand id) noexcept {
  const OperandSpec spec = step.spec(id);
  const Layout& l = spec.layout;
  return {static_cast<const char*>(step.pointer(id)), l.row_stride_bytes, l.block_stride_bytes,
          l.block_rows < spec.rows ? static_cast<int>(l.block_rows) : 0};
}

}  // namespace sluice::cuda
