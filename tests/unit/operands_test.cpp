// SPDX-License-Identifier: Apache-2.0
// The operand table: a golden line per operator, and layouts, extents and costs against brute
// force.
#include "sluice/operands.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>

namespace sluice {
namespace {

// Distinct dims and types, so that a mix-up shows.
Problem problem_of(Op op) {
  Problem p;
  p.op = op;
  p.m = 3;
  p.d = 5;
  p.h = 7;
  p.x_dtype = DType::kBF16;
  p.w_dtype = DType::kF16;
  p.y_dtype = DType::kF32;
  p.dw_dtype = DType::kF64;
  if (op == Op::kNorm) p.norm.enabled = true, p.y_dtype = p.x_dtype;
  return p;
}

// "x:r[3,5]bf16 ..."; r, w, m (read and written); "?" marks the optional ones.
std::string table_of(const Problem& p) {
  std::string text;
  for (const OperandSpec& s : operand_specs(p)) {
    if (s.access == Access::kUnused) {
      EXPECT_FALSE(s.required) << s.name;
      continue;
    }
    const char* access = s.access == Access::kRead ? "r" : s.access == Access::kWrite ? "w" : "m";
    std::ostringstream line;
    line << (text.empty() ? "" : " ") << s.name << ":" << access << (s.required ? "" : "?") << "["
         << s.rows << "," << s.cols << "]" << to_string(s.dtype);
    text += line.str();
  }
  return text;
}

TEST(OperandTable, IsGoldenForEveryOperator) {
  EXPECT_EQ(table_of(problem_of(Op::kGateUp)),
            "x:r[3,5]bf16 w_gate:r[7,5]fp16 w_up:r[7,5]fp16 h:w[3,7]bf16");
  EXPECT_EQ(table_of(problem_of(Op::kDown)), "w_down:r[5,7]fp16 h:r[3,7]bf16 y:w[3,5]fp32");
  EXPECT_EQ(table_of(problem_of(Op::kMlp)),
            "x:r[3,5]bf16 w_gate:r[7,5]fp16 w_up:r[7,5]fp16 w_down:r[5,7]fp16 y:w[3,5]fp32");
  EXPECT_EQ(table_of(problem_of(Op::kGateMul)), "g:r[3,7]bf16 u:r[3,7]bf16 h:w[3,7]bf16");
  EXPECT_EQ(table_of(problem_of(Op::kGateMulGrad)),
            "dh:r[3,7]bf16 g:r[3,7]bf16 u:r[3,7]bf16 h:w?[3,7]bf16 dg:w[3,7]bf16 du:w[3,7]bf16");
  EXPECT_EQ(table_of(problem_of(Op::kGateUpGrad)),
            "w_down:r[5,7]fp16 dy:r[3,5]fp32 g:r[3,7]bf16 u:r[3,7]bf16 h:w?[3,7]bf16 "
            "dg:w[3,7]bf16 du:w[3,7]bf16");
  EXPECT_EQ(table_of(problem_of(Op::kMlpGrad)),
            "x:r[3,5]bf16 w_gate:r[7,5]fp16 w_up:r[7,5]fp16 w_down:r[5,7]fp16 dy:r[3,5]fp32 "
            "g:r[3,7]bf16 u:r[3,7]bf16 dx:w?[3,5]bf16 dw_gate:w?[7,5]fp64 dw_up:w?[7,5]fp64 "
            "dw_down:w?[5,7]fp64");
  EXPECT_EQ(table_of(problem_of(Op::kInputGrad)),
            "w_gate:r[7,5]fp16 w_up:r[7,5]fp16 dg:r[3,7]bf16 du:r[3,7]bf16 dx:w[3,5]bf16");
  EXPECT_EQ(table_of(problem_of(Op::kWeightGrad)),
            "x:r[3,5]bf16 dg:r[3,7]bf16 du:r?[3,7]bf16 dw_gate:w?[7,5]fp64 dw_up:w?[7,5]fp64");
  EXPECT_EQ(table_of(problem_of(Op::kColumnSum)), "dg:r[3,7]bf16 db_gate:w[1,7]fp64");
  EXPECT_EQ(table_of(problem_of(Op::kNorm)), "x:r[3,5]bf16 norm_weight:r[1,5]fp16 y:w[3,5]bf16");
}

TEST(OperandTable, IsGoldenForEveryFlag) {
  Problem p = problem_of(Op::kMlp);
  p.norm = {.enabled = true, .add = true};
  p.residual = Residual::kOperand;
  p.bias_gate_up = p.bias_down = p.save_g_u = true;
  EXPECT_EQ(table_of(p),
            "x:r[3,5]bf16 x_residual:r[3,5]bf16 norm_weight:r[1,5]fp16 w_gate:r[7,5]fp16 "
            "w_up:r[7,5]fp16 w_down:r[5,7]fp16 b_gate:r[1,7]fp16 b_up:r[1,7]fp16 "
            "b_down:r[1,5]fp16 residual:r[3,5]fp32 g:w[3,7]bf16 u:w[3,7]bf16 y:w[3,5]fp32 "
            "x_sum:w?[3,5]bf16");
  p.norm.add = false;
  p.residual = Residual::kNormInput;
  p.save_g_u = p.bias_gate_up = p.bias_down = false;
  EXPECT_EQ(table_of(p),
            "x:r[3,5]bf16 norm_weight:r[1,5]fp16 w_gate:r[7,5]fp16 w_up:r[7,5]fp16 "
            "w_down:r[5,7]fp16 y:w[3,5]fp32");
  p = problem_of(Op::kMlpGrad);
  p.recompute = p.accumulate_dw = p.bias_gate_up = p.bias_down = true;
  EXPECT_EQ(table_of(p),
            "x:r[3,5]bf16 w_gate:r[7,5]fp16 w_up:r[7,5]fp16 w_down:r[5,7]fp16 b_gate:r[1,7]fp16 "
            "b_up:r[1,7]fp16 dy:r[3,5]fp32 dx:w?[3,5]bf16 dw_gate:m?[7,5]fp64 dw_up:m?[7,5]fp64 "
            "dw_down:m?[5,7]fp64 db_gate:m?[1,7]fp64 db_up:m?[1,7]fp64 db_down:m?[1,5]fp64");
  p = problem_of(Op::kNorm);
  p.norm.add = true;
  EXPECT_EQ(table_of(p),
            "x:r[3,5]bf16 x_residual:r[3,5]bf16 norm_weight:r[1,5]fp16 y:w[3,5]bf16 "
            "x_sum:w?[3,5]bf16");
  p = problem_of(Op::kMlpGrad);
  p.save_dg_du = true;
  EXPECT_EQ(table_of(p),
            "x:r[3,5]bf16 w_gate:r[7,5]fp16 w_up:r[7,5]fp16 w_down:r[5,7]fp16 dy:r[3,5]fp32 "
            "g:r[3,7]bf16 u:r[3,7]bf16 dg:w[3,7]bf16 du:w[3,7]bf16 dx:w?[3,5]bf16 "
            "dw_gate:w?[7,5]fp64 dw_up:w?[7,5]fp64 dw_down:w?[5,7]fp64");
}

TEST(OperandTable, AddressesAreTheNamedMembers) {
  Operands operands;
  char memory[kOperandCount];
  for (int i = 0; i < kOperandCount; ++i) {
    set_address(operands, static_cast<Operand>(i), &memory[i]);
  }
  for (int i = 0; i < kOperandCount; ++i) {
    EXPECT_EQ(address(operands, static_cast<Operand>(i)), &memory[i]) << i;
  }
  const Problem p = problem_of(Op::kMlp);
  const auto at = [&](const void* pointer) {
    const auto i = static_cast<const char*>(pointer) - memory;
    return std::string(operand_specs(p)[static_cast<std::size_t>(i)].name);
  };
  EXPECT_EQ(at(operands.x), "x");
  EXPECT_EQ(at(operands.w_down), "w_down");
  EXPECT_EQ(at(operands.dy), "dy");
  EXPECT_EQ(at(operands.u), "u");
  EXPECT_EQ(at(operands.x_sum), "x_sum");
  EXPECT_EQ(at(operands.db_down), "db_down");
}

TEST(OperandTable, ContiguousStridesAreResolved) {
  const Problem p = problem_of(Op::kMlp);
  for (const OperandSpec& s : operand_specs(p)) {
    if (s.access == Access::kUnused) continue;
    EXPECT_EQ(s.layout.row_stride_bytes, s.cols * size_bytes(s.dtype)) << s.name;
  }
}

// Every element's bytes, by the formula of problem.hpp; calls `each(first byte)`.
void for_each_element(const OperandSpec& s, const std::function<void(std::int64_t)>& each) {
  const Layout& l = s.layout;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    for (std::int64_t c = 0; c < s.cols; ++c) {
      std::int64_t at = 0;
      at += l.block_rows == 0 ? r * l.row_stride_bytes
                              : (r / l.block_rows) * l.block_stride_bytes +
                                    (r % l.block_rows) * l.row_stride_bytes;
      at += l.block_cols == 0 ? c * size_bytes(s.dtype)
                              : (c / l.block_cols) * l.col_block_stride_bytes +
                                    (c % l.block_cols) * size_bytes(s.dtype);
      EXPECT_EQ(at, offset_bytes(l, s.dtype, r, c));
      each(at);
    }
  }
}

TEST(Extent, IsTheEndOfTheFarthestElement) {
  for (std::int64_t rows = 0; rows <= 7; ++rows) {
    for (std::int64_t cols = 1; cols <= 7; ++cols) {
      for (std::int64_t block = 0; block <= 5; ++block) {
        for (const bool by_rows : {true, false}) {
          OperandSpec s{.rows = rows, .cols = cols};
          s.dtype = DType::kBF16;
          s.layout.row_stride_bytes = 2 * cols + 6;
          if (by_rows) {
            s.layout.block_rows = block;
            s.layout.block_stride_bytes = block * s.layout.row_stride_bytes + 4;
          } else if (block > 0) {
            s.layout.block_cols = block;
            s.layout.col_block_stride_bytes = 2 * block + 10;
            s.layout.row_stride_bytes = (cols / block + 1) * s.layout.col_block_stride_bytes;
          }
          std::int64_t end = 0;
          for_each_element(s, [&](std::int64_t at) { end = std::max(end, at + 2); });
          EXPECT_EQ(extent_bytes(s), end) << rows << "x" << cols << " block " << block << by_rows;
        }
      }
    }
  }
}

TEST(Extent, OfABroadcastInputIsOneRow) {
  OperandSpec s{.rows = 5, .cols = 6};
  s.dtype = DType::kF32;
  s.layout.row_stride_bytes = 0;
  EXPECT_EQ(extent_bytes(s), 24);
}

// The gate and the up matrix together touch every element of their buffer exactly once where the
// block divides, and never one twice otherwise.
void expect_partition(const OperandSpec& s, std::int64_t shift_bytes, bool whole) {
  std::map<std::int64_t, int> touched;
  for_each_element(s, [&](std::int64_t at) { ++touched[at]; });
  for_each_element(s, [&](std::int64_t at) { ++touched[at + shift_bytes]; });
  for (const auto& [at, times] : touched) ASSERT_EQ(times, 1) << at;
  if (!whole) return;
  const std::int64_t elem = size_bytes(s.dtype);
  const auto elements = static_cast<std::int64_t>(touched.size());
  EXPECT_EQ(elements, 2 * s.rows * s.cols);
  EXPECT_EQ(touched.rbegin()->first, (elements - 1) * elem) << "a hole in the buffer";
}

TEST(Interleaved, PairsPartitionTheirBuffer) {
  for (std::int64_t width = 1; width <= 12; ++width) {
    for (std::int64_t block = 1; block <= 9; ++block) {
      OperandSpec rows{.rows = width, .cols = 3};
      rows.dtype = DType::kBF16;
      rows.layout = interleaved_rows(block, rows.cols, rows.dtype);
      expect_partition(rows, block * rows.cols * 2, width % block == 0);
      OperandSpec cols{.rows = 3, .cols = width};
      cols.dtype = DType::kF32;
      cols.layout = interleaved_cols(block, cols.cols, cols.dtype);
      expect_partition(cols, block * 4, width % block == 0);
    }
  }
}

TEST(Interleaved, RowsOneByOneAreTheDocumentedOrder) {
  const Layout l = interleaved_rows(1, 5, DType::kBF16);
  for (std::int64_t r = 0; r < 4; ++r) {
    EXPECT_EQ(offset_bytes(l, DType::kBF16, r, 2), 2 * r * 10 + 4);
  }
}

TEST(Cost, CountsFlopsAndBytes) {
  const double gemm = 2.0 * 3 * 5 * 7;
  EXPECT_EQ(flops(problem_of(Op::kGateUp)), 2 * gemm);
  EXPECT_EQ(flops(problem_of(Op::kDown)), gemm);
  EXPECT_EQ(flops(problem_of(Op::kMlp)), 3 * gemm);
  EXPECT_EQ(flops(problem_of(Op::kGateMul)), 0);
  EXPECT_EQ(flops(problem_of(Op::kGateMulGrad)), 0);
  EXPECT_EQ(flops(problem_of(Op::kGateUpGrad)), gemm);
  Problem grad = problem_of(Op::kMlpGrad);
  EXPECT_EQ(flops(grad), 6 * gemm);
  grad.recompute = true;
  EXPECT_EQ(flops(grad), 8 * gemm);
  EXPECT_EQ(bytes_moved(problem_of(Op::kMlp)), 3 * 5 * 2 + 3 * 7 * 5 * 2 + 3 * 5 * 4);
  EXPECT_EQ(bytes_moved(problem_of(Op::kGateMul)), 3 * 3 * 7 * 2);
  grad = problem_of(Op::kMlpGrad);
  const double plain = bytes_moved(grad);
  grad.accumulate_dw = true;  // what is there is read too
  EXPECT_EQ(bytes_moved(grad), plain + 3 * 7 * 5 * 8);
}

}  // namespace
}  // namespace sluice
