// SPDX-License-Identifier: Apache-2.0
// What kernels that move units of 16 bytes ask of operands alike.
#pragma once

#include "core/kernel.hpp"
#include "cuda/tile/rows.hpp"

namespace sluice::cuda {

inline constexpr std::int64_t kUnitBytes = 16;

/// An alignment below a unit, widths that are no whole units.
[[nodiscard]] inline detail::Reason unit_refusal(const Problem& p) noexcept {
  using ll = long long;
  if (p.alignment_bytes < kUnitBytes) {
    return detail::refuse("alignment_bytes is %lld, copies need %lld", ll{p.alignment_bytes},
                          ll{kUnitBytes});
  }
  // A row that ends within 16 bytes: the copy engine was seen to write behind its end on an H200
  // (1 x 1 x 1 with a tile of 192), so both widths are whole units.
  constexpr std::int64_t kUnit = 8;
  if (p.d % kUnit != 0 || p.h % kUnit != 0) {
    return detail::refuse("d is %lld and h %lld, wanted multiples of %lld (16 bytes)", ll{p.d},
                          ll{p.h}, ll{kUnit});
  }
  return {};
}

/// Strides that would move a row's start off a multiple of `unit` bytes.
[[nodiscard]] inline detail::Reason stride_refusal(const OperandSpec& spec,
                                                   std::int64_t unit = kUnitBytes) noexcept {
  using ll = long long;
  const Layout& l = spec.layout;
  if (l.row_stride_bytes % unit == 0 && l.block_stride_bytes % unit == 0) return {};
  return detail::refuse(
      "%s: strides of rows and blocks are %lld and %lld bytes, wanted multiples of %lld", spec.name,
      ll{l.row_stride_bytes}, ll{l.block_stride_bytes}, ll{unit});
}

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
