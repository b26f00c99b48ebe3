// SPDX-License-Identifier: Apache-2.0
// Packing and register tiles of every target: small integers, so every sum is exact in fp32 and any
// wrong index or order of storage shows.
#include "cpu/gemm.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "cpu/next_rows.hpp"
#include "harness/quantise.hpp"
#include "math/block_types.hpp"
#include "targets.hpp"

namespace sluice::cpu {
namespace {

// A matrix of small integers in its own memory, exactly as large as its elements.
class IntegerMatrix {
 public:
  IntegerMatrix(DType dtype, std::int64_t rows, std::int64_t cols, std::uint64_t seed)
      : bytes_(static_cast<std::size_t>(rows * bytes_of(dtype, cols))),
        matrix_(dense(bytes_.data(), dtype, rows, cols)) {
    const auto next = [&seed] {
      seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
      return static_cast<double>(seed >> 61) - 3;
    };
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; c += block_elems(dtype)) {
        if (!is_block_type(dtype)) {
          math::store(matrix_.at(r, c), dtype, next());
          continue;
        }
        std::array<float, kBlockElems> units{};
        for (float& v : units) v = static_cast<float>(std::clamp(next(), -1.0, 1.0));
        harness::encode_units(dtype, units, static_cast<int>((r + c / kBlockElems) % 3),
                              matrix_.at(r, c));
      }
    }
  }
  [[nodiscard]] const Matrix& matrix() const { return matrix_; }
  [[nodiscard]] float at(std::int64_t r, std::int64_t c) const {
    return static_cast<float>(math::load(matrix_.at(r, c), matrix_.dtype, c));
  }

 private:
  std::vector<char> bytes_;
  Matrix matrix_;
};

struct Form {
  Rows a_rows;
  Rows b_rows;
  bool paired;
  bool bf16_pairs = false;  // multiplied two steps at a time
};

// C = A·B of m x n (or of two n-column halves) over k, block by block, against plain loops.
void check(const GemmKernels& kernels, DType dtype, Form form, std::int64_t m, std::int64_t n,
           std::int64_t k) {
  const auto stored = [&](Rows rows, std::int64_t lines, std::uint64_t seed) {
    return rows == Rows::kLines ? IntegerMatrix(dtype, lines, k, seed)
                                : IntegerMatrix(dtype, k, lines, seed);
  };
  // Activations are never in blocks.
  const IntegerMatrix a =
      is_block_type(dtype) ? IntegerMatrix(DType::kBF16, m, k, 1) : stored(form.a_rows, m, 1);
  const IntegerMatrix b = stored(form.b_rows, n, 2);
  const IntegerMatrix pair = stored(form.b_rows, n, 3);
  const auto value = [](const IntegerMatrix& x, Rows rows, std::int64_t line, std::int64_t step) {
    return rows == Rows::kLines ? x.at(line, step) : x.at(step, line);
  };
  Product product{.a = a.matrix(),
                  .a_rows = form.a_rows,
                  .b = b.matrix(),
                  .b_rows = form.b_rows,
                  .k = k,
                  .pairs = form.bf16_pairs};
  if (form.paired) product.pair = pair.matrix();
  const std::int64_t lanes = kernels.lanes;
  const std::int64_t panel_cols = form.paired ? lanes : 2 * lanes;
  const std::int64_t panels = ceil_div(n, panel_cols);
  const std::int64_t tiles = ceil_div(m, kernels.tile_rows);
  std::vector<float> packed_a(static_cast<std::size_t>(tiles * kernels.a_width * kBlockK));
  std::vector<float> packed_b(static_cast<std::size_t>(panels * 2 * lanes * kBlockK));
  std::vector<float> c(static_cast<std::size_t>(m * panels * 2 * lanes));
  // Two blocks of rows, and of panels where there are two.
  const Blocking cut{ceil_div(m, 2), ceil_div(m, ceil_div(m, 2)), ceil_div(panels, 2),
                     ceil_div(panels, ceil_div(panels, 2))};
  for (std::int64_t task = 0; task < cut.tasks(); ++task) {
    const Block block = block_of(cut, task, m, panels);
    const Scratch scratch{packed_a.data(), packed_b.data(), c.data(), nullptr};
    multiply(kernels, {&product, 1}, block, scratch, c.data());
    for (std::int64_t i = 0; i < block.rows; ++i) {
      for (std::int64_t j = 0; j < block.panels * 2 * lanes; ++j) {
        const bool second = form.paired && j % (2 * lanes) >= lanes;
        const std::int64_t col = form.paired ? (block.panel + j / (2 * lanes)) * lanes + j % lanes
                                             : block.panel * 2 * lanes + j;
        float expected = 0;
        for (std::int64_t step = 0; col < n && step < k; ++step) {
          expected += value(a, form.a_rows, block.row + i, step) *
                      value(second ? pair : b, form.b_rows, col, step);
        }
        const float got = c[static_cast<std::size_t>(i * block.panels * 2 * lanes + j)];
        ASSERT_EQ(got, expected) << "m " << m << " n " << n << " k " << k << " at " << block.row + i
                                 << ", " << j << " of panel " << block.panel;
      }
    }
  }
}

class Gemm : public testing::TestWithParam<SimdTarget> {};

TEST_P(Gemm, ExactForEveryFormAndType) {
  const GemmKernels& kernels = gemm_kernels(GetParam());
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const Form form :
         {Form{Rows::kLines, Rows::kLines, false}, Form{Rows::kLines, Rows::kLines, true},
          Form{Rows::kLines, Rows::kSteps, false}, Form{Rows::kSteps, Rows::kSteps, false}}) {
      check(kernels, dtype, form, 29, 71, 37);
      check(kernels, dtype, form, 3, 5, kBlockK + 1);
    }
  }
}

TEST_P(Gemm, ExactForWeightsInBlocks) {
  const GemmKernels& kernels = gemm_kernels(GetParam());
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
    for (const bool paired : {false, true}) {
      const Form form{Rows::kLines, Rows::kLines, paired};
      check(kernels, dtype, form, 29, 71, 96);
      check(kernels, dtype, form, 3, 5, kBlockK + 32);
      for (std::int64_t n = 1; n <= std::int64_t{2} * kernels.lanes + 1; ++n) {
        check(kernels, dtype, form, 2, n, 32);
      }
    }
  }
}

TEST_P(Gemm, ExactForEveryTileHeightWidthAndTail) {
  const GemmKernels& kernels = gemm_kernels(GetParam());
  for (std::int64_t m = 1; m <= 4 * kernels.tile_rows + 1; ++m) {
    check(kernels, DType::kBF16, {Rows::kLines, Rows::kLines, true}, m, 17, 19);
    check(kernels, DType::kF32, {Rows::kSteps, Rows::kSteps, false}, m, 33, 5);
  }
  for (std::int64_t n = 1; n <= std::int64_t{2} * kernels.lanes + 1; ++n) {
    check(kernels, DType::kF16, {Rows::kLines, Rows::kLines, false}, 2, n, 7);
    check(kernels, DType::kF16, {Rows::kLines, Rows::kSteps, false}, 2, n, 7);
  }
  for (std::int64_t k = 1; k <= std::int64_t{2} * kernels.lanes + 1; ++k) {
    check(kernels, DType::kBF16, {Rows::kLines, Rows::kLines, false}, 5, 9, k);
  }
}

TEST_P(Gemm, ExactForPairsOfBf16) {
  const GemmKernels& kernels = gemm_kernels(GetParam());
  if (!kernels.has_pairs()) GTEST_SKIP() << "no products of bf16";
  for (const Form form :
       {Form{Rows::kLines, Rows::kLines, false, true}, Form{Rows::kLines, Rows::kLines, true, true},
        Form{Rows::kLines, Rows::kSteps, false, true},
        Form{Rows::kSteps, Rows::kSteps, false, true}}) {
    for (std::int64_t m = 1; m <= 4 * kernels.tile_rows + 1; ++m) {
      check(kernels, DType::kBF16, form, m, 33, 5);
    }
    for (std::int64_t n = 1; n <= std::int64_t{2} * kernels.lanes + 1; ++n) {
      check(kernels, DType::kBF16, form, 2, n, 7);
    }
    for (std::int64_t k = 1; k <= std::int64_t{2} * kernels.lanes + 1; ++k) {
      check(kernels, DType::kBF16, form, 5, 9, k);
    }
    check(kernels, DType::kBF16, form, 29, 71, 2 * kBlockK + 3);
  }
}

// Rows where they lie, each in memory of its own: also what is prefetched behind them is not read.
TEST_P(Gemm, RowTileIsExactAndAdds) {
  const GemmKernels& kernels = gemm_kernels(GetParam());
  if (kernels.row_tile == nullptr) GTEST_SKIP() << "too few registers";
  const std::int64_t rows = kernels.tile_rows;
  const std::int64_t lanes = kernels.lanes;
  const std::int64_t ldc = lanes + 3;
  for (const std::int64_t k : {1, 3, 4, 5, 16, 37}) {
    const IntegerMatrix b(DType::kF32, k, lanes, 2);
    std::vector<IntegerMatrix> a;
    std::vector<const float*> lines;
    for (std::int64_t i = 0; i < rows; ++i) {
      a.emplace_back(DType::kF32, 1, k, static_cast<std::uint64_t>(i + 3));
    }
    for (const IntegerMatrix& row : a)
      lines.push_back(reinterpret_cast<float*>(row.matrix().at(0, 0)));
    const std::array<const void*, 1> ahead = {lines.front()};
    constexpr float kBefore = 5;
    std::vector<float> c(static_cast<std::size_t>(rows * ldc), kBefore);
    for (const bool add : {true, false}) {
      NextRows next(ahead.data(), 1, k * static_cast<std::int64_t>(sizeof(float)));
      kernels.row_tile(lines.data(), reinterpret_cast<float*>(b.matrix().at(0, 0)), k, c.data(),
                       ldc, add, next);
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < ldc; ++j) {
          float expected = add || j >= lanes ? kBefore : 0;
          for (std::int64_t p = 0; j < lanes && p < k; ++p) {
            expected += a[static_cast<std::size_t>(i)].at(0, p) * b.at(p, j);
          }
          ASSERT_EQ(c[static_cast<std::size_t>(i * ldc + j)], expected)
              << "k " << k << " at " << i << ", " << j;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Gemm, testing::ValuesIn(test::targets()),
                         [](const auto& info_of) { return std::string(to_string(info_of.param)); });

}  // namespace
}  // namespace sluice::cpu
