// SPDX-License-Identifier: Apache-2.0
// One block of C = sum of products A·B, from matrices as they lie in memory.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/blocking.hpp"
#include "cpu/matrix.hpp"

namespace sluice::cpu {

/// One term of C. A gives C's rows, B its columns. Where `pair` is there, B's panels are paired:
/// panel p holds `lanes` columns of b beside the same columns of pair, so that one register tile
/// has gate and up of the same elements. Pairs are kLines.
struct Product {
  Matrix a;
  Rows a_rows = Rows::kLines;
  Matrix b;
  Rows b_rows = Rows::kLines;
  Matrix pair{};
  std::int64_t k = 0;
  bool pairs = false;  ///< bf16 by bf16, two steps of k at a time (GemmKernels::pair_tile)
};

/// A block of C: rows [row, row + rows), panels [panel, panel + panels).
struct Block {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t panel = 0;
  std::int64_t panels = 0;
};

/// The block that `task` of a blocking is, of a C with m rows and `panels` panels. Neighbouring
/// tasks share B, so that its second reader finds it in a cache.
[[nodiscard]] inline Block block_of(const Blocking& b, std::int64_t task, std::int64_t m,
                                    std::int64_t panels) noexcept {
  const std::int64_t row = task % b.m_blocks * b.rows;
  const std::int64_t panel = task / b.m_blocks * b.panels;
  return {row, std::min(b.rows, m - row), panel, std::min(b.panels, panels - panel)};
}

/// A thread's packed panels and block of C.
struct Scratch {
  float* a = nullptr;
  float* b = nullptr;
  float* c = nullptr;
  float* c2 = nullptr;
};

/// `count` lines of `cols` columns as rows of A: widened, or as pairs of bf16 (an odd last column
/// is paired with a zero) that are copied as they lie. GemmKernels::widen_lines; of blocks
/// widen_block_pairs.
void widen_strip(const GemmKernels& kernels, bool pairs, DType dtype, const void* const* lines,
                 std::int64_t count, std::int64_t cols, float* out) noexcept;

/// The same lines as a panel of B. GemmKernels::pack_lines.
void pack_panel(const GemmKernels& kernels, bool pairs, DType dtype, const void* const* lines,
                std::int64_t count, std::int64_t cols, std::int64_t width, float* out) noexcept;

/// c[i * ldc + j] = the block's element (i, j), with ldc = block.panels * 2 * lanes. Columns beyond
/// B's last are zeros.
/// Numerics: fp32, fused multiply-add in the order of k within a block of kBlockK, blocks added in
/// order, products in order: an element's sum does not depend on the blocking.
void multiply(const GemmKernels& kernels, std::span<const Product> products, const Block& block,
              const Scratch& scratch, float* c) noexcept;

}  // namespace sluice::cpu
