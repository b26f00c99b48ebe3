// SPDX-License-Identifier: Apache-2.0
// Loops around the register tile: for each K block pack A and B, then every tile of the block.
#include "cpu/gemm.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace sluice::cpu {
namespace {

// Columns that are one step of k.
std::int64_t step_cols(const Product& product) { return product.pairs ? 2 : 1; }

// Of steps.
struct Step {
  std::int64_t begin;
  std::int64_t size;
};

// Rows of tile `t` of `tiles` that cut `rows` as evenly as can be.
struct Cut {
  std::int64_t rows;
  std::int64_t tiles;
  [[nodiscard]] std::int64_t begin(std::int64_t t) const {
    return t * (rows / tiles) + std::min(t, rows % tiles);
  }
};

// The last column of a row with an odd number of them, as a pair with a zero.
float last_pair(const void* line, std::int64_t cols) {
  std::uint32_t pair = 0;
  if (line != nullptr) {
    const std::int64_t bytes = size_bytes(DType::kBF16);
    std::memcpy(&pair, static_cast<const char*>(line) + (cols - 1) * bytes,
                static_cast<std::size_t>(bytes));
  }
  return std::bit_cast<float>(pair);
}

class Multiplier {
 public:
  Multiplier(const GemmKernels& kernels, const Block& block, const Scratch& scratch)
      : k_(kernels),
        block_(block),
        scratch_(scratch),
        cut_{block.rows, ceil_div(block.rows, kernels.tile_rows)},
        b_width_(2 * kernels.lanes),
        b_stride_(kBlockK * b_width_) {}

  void pack_a(const Product& product, Step step) const {
    if (product.a_rows == Rows::kLines) return pack_a_lines(product, step);
    // Row by row, as they lie in memory: a column of them may fall into one set of every cache.
    // Full tiles without padding are packed at once.
    const bool even = block_.rows % k_.tile_rows == 0 && k_.a_width == k_.tile_rows;
    for (std::int64_t p = 0; p < step.size; ++p) {
      if (even) {
        pack_step(product.pairs, product.a, step.begin + p, block_.row, block_.rows, k_.a_width,
                  k_.a_width * kBlockK, scratch_.a + p * k_.a_width);
        continue;
      }
      for (std::int64_t t = 0; t < cut_.tiles; ++t) {
        const std::int64_t count = cut_.begin(t + 1) - cut_.begin(t);
        pack_step(product.pairs, product.a, step.begin + p, block_.row + cut_.begin(t), count,
                  k_.a_width, 0, a_tile(Rows::kSteps, t) + p * k_.a_width);
      }
    }
  }

  void pack_a_lines(const Product& product, Step step) const {
    for (std::int64_t t = 0; t < cut_.tiles; ++t) {
      const std::int64_t first = block_.row + cut_.begin(t);
      const std::int64_t count = cut_.begin(t + 1) - cut_.begin(t);
      const void* lines[kMaxTileRows];
      for (std::int64_t i = 0; i < count; ++i)
        lines[i] = first_column(product, product.a, first + i, step);
      widen_strip(k_, product.pairs, product.a.dtype, lines, count, columns(product, step),
                  a_tile(Rows::kLines, t));
    }
  }

  void pack_b(const Product& product, Step step) const {
    if (product.b_rows == Rows::kLines) return pack_b_lines(product, step);
    const std::int64_t first = block_.panel * b_width_;
    const std::int64_t count = std::min(block_.panels * b_width_, product.b.cols - first);
    for (std::int64_t p = 0; p < step.size; ++p) {
      pack_step(product.pairs, product.b, step.begin + p, first, count, b_width_, b_stride_,
                scratch_.b + p * b_width_);
    }
  }

  // `c` gets (or gets added) the product of what is packed. What B packs `next` is brought near.
  void tiles(const Product& product, Step step, Step next, bool add, float* c) const {
    const Rows a_rows = product.a_rows;
    const GemmKernels::Tiles& tile =
        (product.pairs ? k_.pair_tile : k_.tile)[static_cast<std::size_t>(a_rows)];
    const std::int64_t ldc = block_.panels * b_width_;
    for (std::int64_t panel = 0; panel < block_.panels; ++panel) {
      const float* b = scratch_.b + panel * b_stride_;
      for (std::int64_t t = 0; t < cut_.tiles; ++t) {
        const std::int64_t first = cut_.begin(t);
        const auto rows = static_cast<std::size_t>(cut_.begin(t + 1) - first);
        const void* lines[kMaxTileRows];
        const bool there = lines_ahead(product, next, panel * cut_.tiles + t, lines);
        const Ahead ahead{lines, bytes_of(product.b.dtype, kAheadSteps)};
        tile[rows](a_tile(a_rows, t), b, step.size, c + first * ldc + panel * b_width_, ldc, add,
                   there ? &ahead : nullptr);
      }
    }
  }

 private:
  static const void* first_column(const Product& product, const Matrix& m, std::int64_t row,
                                  Step step) {
    return m.at(row, step.begin * step_cols(product));
  }
  static std::int64_t columns(const Product& product, Step step) {
    return std::min(step.size * step_cols(product), product.k - step.begin * step_cols(product));
  }

  // The rows of B's next K block that the turn-th tile prefetches where B is kSteps: a tile's steps
  // take it along as many columns of them, mostly all that the block has.
  bool lines_ahead(const Product& product, Step next, std::int64_t turn, const void** lines) const {
    if (product.b_rows != Rows::kSteps) return false;
    const std::int64_t begin = next.begin * step_cols(product) + turn * k_.tile_rows;
    const std::int64_t end = std::min((next.begin + next.size) * step_cols(product), product.k);
    if (begin >= end) return false;
    for (std::int64_t i = 0; i < k_.tile_rows; ++i) {
      lines[i] = product.b.at(std::min(begin + i, end - 1), block_.panel * b_width_);
    }
    return true;
  }

  // Columns [first, first + count) of a matrix that is kSteps, for one step.
  void pack_step(bool pairs, const Matrix& m, std::int64_t step, std::int64_t first,
                 std::int64_t count, int width, std::int64_t stride, float* out) const {
    if (!pairs)
      return k_.pack_row[static_cast<std::size_t>(m.dtype)](m.at(step, first), count, width, stride,
                                                            out);
    const std::int64_t odd = 2 * step + 1;
    k_.pack_row_pairs(m.at(2 * step, first), odd < m.rows ? m.at(odd, first) : nullptr, count,
                      width, stride, out);
  }

  [[nodiscard]] float* a_tile(Rows form, std::int64_t t) const {
    return scratch_.a + t * (form == Rows::kLines ? k_.tile_rows * kAStride : k_.a_width * kBlockK);
  }

  void pack_b_lines(const Product& product, Step step) const {
    const bool paired = product.pair.present();
    const std::int64_t lanes = k_.lanes;
    const std::int64_t panel_cols = paired ? lanes : b_width_;
    for (std::int64_t panel = 0; panel < block_.panels; ++panel) {
      const void* lines[2 * kMaxLanes];
      const std::int64_t first = (block_.panel + panel) * panel_cols;
      for (std::int64_t i = 0; i < b_width_; ++i) {
        const Matrix& from = paired && i >= lanes ? product.pair : product.b;
        const std::int64_t row = first + (paired ? i % lanes : i);
        lines[i] = row < from.rows ? first_column(product, from, row, step) : nullptr;
      }
      pack_panel(k_, product.pairs, product.b.dtype, lines, b_width_, columns(product, step),
                 b_width_, scratch_.b + panel * b_stride_);
    }
  }

  const GemmKernels& k_;
  const Block& block_;
  const Scratch& scratch_;
  Cut cut_;
  int b_width_;
  std::int64_t b_stride_;
};

}  // namespace

void widen_strip(const GemmKernels& kernels, bool pairs, DType dtype, const void* const* lines,
                 std::int64_t count, std::int64_t cols, float* out) noexcept {
  const auto rows = static_cast<int>(count);
  const auto type = static_cast<std::size_t>(dtype);
  if (!pairs) return kernels.widen_lines[type](lines, rows, cols, out);
  if (is_block_type(dtype)) return kernels.widen_block_pairs[type](lines, rows, cols, out);
  kernels.widen_lines[static_cast<std::size_t>(DType::kF32)](lines, rows, cols / 2, out);
  for (std::int64_t i = 0; cols % 2 != 0 && i < count; ++i) {
    out[i * kAStride + cols / 2] = last_pair(lines[i], cols);
  }
}

void pack_panel(const GemmKernels& kernels, bool pairs, DType dtype, const void* const* lines,
                std::int64_t count, std::int64_t cols, std::int64_t width, float* out) noexcept {
  const auto rows = static_cast<int>(count);
  const auto columns = static_cast<int>(width);
  if (!pairs) {
    return kernels.pack_lines[static_cast<std::size_t>(dtype)](lines, rows, cols, columns, out);
  }
  kernels.pack_lines[static_cast<std::size_t>(DType::kF32)](lines, rows, cols / 2, columns, out);
  for (std::int64_t i = 0; cols % 2 != 0 && i < width; ++i) {
    out[cols / 2 * width + i] = last_pair(i < count ? lines[i] : nullptr, cols);
  }
}

void multiply(const GemmKernels& kernels, std::span<const Product> products, const Block& block,
              const Scratch& scratch, float* c) noexcept {
  const Multiplier multiplier(kernels, block, scratch);
  bool add = false;
  for (const Product& product : products) {
    const std::int64_t steps = ceil_div(product.k, step_cols(product));
    const std::int64_t size = block_k(steps);
    for (std::int64_t begin = 0; begin < steps; begin += size) {
      const Step step{begin, std::min(size, steps - begin)};
      multiplier.pack_a(product, step);
      multiplier.pack_b(product, step);
      const Step next{begin + size, std::clamp(steps - begin - size, std::int64_t{0}, size)};
      multiplier.tiles(product, step, next, add, c);
      add = true;
    }
  }
}

}  // namespace sluice::cpu
