// SPDX-License-Identifier: Apache-2.0
// A step's operands as the matrices of cuBLASLt's products.
#pragma once

#include "core/kernel.hpp"
#include "cuda/cublaslt/cublaslt.hpp"

namespace sluice::cuda::lt {

/// Which of the heuristic's algorithms, as lt_ranking() orders them: the config of a step.
struct Choice {
  int rank;
};

struct Matrix {
  OperandSpec spec;
  void* base;
};

/// Blocks of one row are even rows at the blocks' distance; a single block is none.
[[nodiscard]] inline OperandSpec even_rows(OperandSpec spec) noexcept {
  Layout& l = spec.layout;
  if (l.block_rows == 1) l.row_stride_bytes = l.block_stride_bytes;
  if (l.block_rows == 1 || l.block_rows >= spec.rows) l.block_rows = l.block_stride_bytes = 0;
  return spec;
}

/// A step's operand, its rows even where they can be.
[[nodiscard]] inline Matrix at(const detail::Step& step, Operand id) noexcept {
  return {even_rows(step.spec(id)), step.pointer(id)};
}

[[nodiscard]] inline bool evenly_strided(const Layout& layout) noexcept {
  return layout.block_rows == 0 && layout.block_cols == 0;
}

[[nodiscard]] inline std::int64_t stride_of(const Matrix& matrix) noexcept {
  return matrix.spec.layout.row_stride_bytes / size_bytes(matrix.spec.dtype);
}

[[nodiscard]] inline LtOperand operand(const Matrix& matrix, bool transposed) noexcept {
  return {matrix.base, stride_of(matrix), transposed};
}

/// Whether `second` is the lower half of one evenly strided matrix whose upper half is `first`.
[[nodiscard]] inline bool stacked(const Matrix& first, const Matrix& second) noexcept {
  return evenly_strided(first.spec.layout) &&
         static_cast<const char*>(second.base) ==
             static_cast<const char*>(first.base) +
                 first.spec.rows * first.spec.layout.row_stride_bytes;
}

/// Whether `second` is the right half of one evenly strided matrix whose left half is `first`.
[[nodiscard]] inline bool side_by_side(const Matrix& first, const Matrix& second) noexcept {
  const std::int64_t width = bytes_of(first.spec.dtype, first.spec.cols);
  return evenly_strided(first.spec.layout) && first.spec.layout.row_stride_bytes >= 2 * width &&
         static_cast<const char*>(second.base) == static_cast<const char*>(first.base) + width;
}

/// Of sums, which are scratch: beyond, they cost more than a better product saves, and memory that
/// users count on.
inline constexpr std::int64_t kMostSumBytes = std::int64_t{256} << 20;

/// Sums lie behind what cuBLASLt's own kernels use of a step's scratch.
[[nodiscard]] inline float* sums_of(const detail::Step& step) noexcept {
  return reinterpret_cast<float*>(static_cast<char*>(step.scratch) + kCublasLtScratchBytes);
}

/// Enqueues a product by the step's algorithm.
[[nodiscard]] inline Status multiply(const detail::Step& step, const LtProduct& product) noexcept {
  return cublaslt_product(product, detail::config_as<Choice>(step.config).rank, step.device,
                          step.scratch, step.stream);
}

/// The matrix from a row on; nothing where there is none.
[[nodiscard]] inline Matrix from_row(Matrix matrix, std::int64_t row) noexcept {
  if (matrix.base != nullptr) {
    matrix.base = static_cast<char*>(matrix.base) + row * matrix.spec.layout.row_stride_bytes;
  }
  return matrix;
}

/// Of the step's sums, which rows of its operands they are.
struct Rows {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Enqueues the gate over the step's sums: `block` columns of one half, then of the other.
Status gate_sums(const detail::Step& step, Rows rows, std::int64_t block, bool up_first) noexcept;

/// Enqueues y = sums + bias + residual, of which either may be absent. The sums' rows are
/// `sums_stride` elements apart.
Status add_sums(const detail::Step& step, std::int64_t sums_stride, std::int64_t rows,
                const void* bias, const Matrix& residual, const Matrix& y) noexcept;

/// The `configs` and `name_config` of cuBLASLt's kernels.
std::size_t configs(const Problem&, const Device&, std::span<KernelConfig> out) noexcept;
void name_config(const KernelConfig& config, std::span<char> out) noexcept;

/// "algorithm 0 of what cuBLASLt 13.1.0's heuristic offers"
[[nodiscard]] std::string algorithm_text(const detail::StepView& step);

}  // namespace sluice::cuda::lt
