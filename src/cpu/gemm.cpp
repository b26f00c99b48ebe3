// SPDX-License-Identifier: Apache-2.0
// Loops around the register tile: for each K block pack A and B, then every tile of the block.
#include "cpu/gemm.hpp"

#include <algorithm>

namespace sluice::cpu {
namespace {

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
    const auto dtype = static_cast<std::size_t>(product.a.dtype);
    for (std::int64_t t = 0; t < cut_.tiles; ++t) {
      const std::int64_t first = block_.row + cut_.begin(t);
      const std::int64_t count = cut_.begin(t + 1) - cut_.begin(t);
      float* out = a_tile(product.a_rows, t);
      if (product.a_rows == Rows::kLines) {
        const void* lines[kMaxTileRows];
        for (std::int64_t i = 0; i < count; ++i) lines[i] = product.a.at(first + i, step.begin);
        k_.widen_lines[dtype](lines, static_cast<int>(count), step.size, out);
      } else {
        for (std::int64_t p = 0; p < step.size; ++p) {
          k_.pack_row[dtype](product.a.at(step.begin + p, first), count, k_.a_width, 0,
                             out + p * k_.a_width);
        }
      }
    }
  }

  void pack_b(const Product& product, Step step) const {
    if (product.b_rows == Rows::kLines) return pack_b_lines(product, step);
    const std::int64_t first = block_.panel * b_width_;
    const std::int64_t count = std::min(block_.panels * b_width_, product.b.cols - first);
    for (std::int64_t p = 0; p < step.size; ++p) {
      k_.pack_row[static_cast<std::size_t>(product.b.dtype)](product.b.at(step.begin + p, first),
                                                             count, b_width_, b_stride_,
                                                             scratch_.b + p * b_width_);
    }
  }

  // `c` gets (or gets added) the product of what is packed.
  void tiles(Rows a_rows, Step step, bool add, float* c) const {
    const std::int64_t ldc = block_.panels * b_width_;
    for (std::int64_t panel = 0; panel < block_.panels; ++panel) {
      const float* b = scratch_.b + panel * b_stride_;
      for (std::int64_t t = 0; t < cut_.tiles; ++t) {
        const std::int64_t first = cut_.begin(t);
        const auto rows = static_cast<std::size_t>(cut_.begin(t + 1) - first);
        k_.tile[static_cast<std::size_t>(a_rows)][rows](
            a_tile(a_rows, t), b, step.size, c + first * ldc + panel * b_width_, ldc, add, nullptr);
      }
    }
  }

 private:
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
        lines[i] = row < from.rows ? from.at(row, step.begin) : nullptr;
      }
      k_.pack_lines[static_cast<std::size_t>(product.b.dtype)](
          lines, static_cast<int>(b_width_), step.size, static_cast<int>(b_width_),
          scratch_.b + panel * b_stride_);
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

void multiply(const GemmKernels& kernels, std::span<const Product> products, const Block& block,
              const Scratch& scratch, float* c) noexcept {
  const Multiplier multiplier(kernels, block, scratch);
  bool add = false;
  for (const Product& product : products) {
    const std::int64_t size = block_k(product.k);
    for (std::int64_t begin = 0; begin < product.k; begin += size) {
      const Step step{begin, std::min(size, product.k - begin)};
      multiplier.pack_a(product, step);
      multiplier.pack_b(product, step);
      multiplier.tiles(product.a_rows, step, add, c);
      add = true;
    }
  }
}

}  // namespace sluice::cpu
