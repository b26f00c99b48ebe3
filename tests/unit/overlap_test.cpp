// SPDX-License-Identifier: Apache-2.0
// The overlap rule of run() against brute force: a pair of operands is accepted where it shares no
// byte, and refused where it does.
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "expect_error.hpp"
#include "sluice/sluice.hpp"

namespace sluice {
namespace {

using test::succeeds;

constexpr std::size_t kArena = 1 << 15;

// Every byte of an operand, marked in a map of the arena; false where one was marked already.
bool mark(const OperandSpec& spec, std::int64_t base, std::vector<bool>& used) {
  for (std::int64_t r = 0; r < spec.rows; ++r) {
    for (std::int64_t c = 0; c < spec.cols; ++c) {
      const std::int64_t at = base + offset_bytes(spec.layout, spec.dtype, r, c);
      for (std::int64_t b = at; b < at + size_bytes(spec.dtype); ++b) {
        if (used.at(static_cast<std::size_t>(b))) return false;
        used.at(static_cast<std::size_t>(b)) = true;
      }
    }
  }
  return true;
}

// Runs `problem` with the operands `a` and `b` at these offsets of one arena and all others in
// blocks of their own: was it accepted, and do the two share a byte?
struct Verdict {
  bool accepted = false;
  bool disjoint = false;
};

Verdict judge(const Problem& problem, Operand a, std::int64_t a_at, Operand b, std::int64_t b_at) {
  const Plan made = plan(problem, cpu_device(), {.variant = "cpu.reference"}).value();
  struct alignas(kWorkspaceAlignment) Block {
    unsigned char bytes[kArena]{};
  };
  std::vector<Block> blocks(kOperandCount + 2);
  Operands operands;
  std::vector<bool> used(kArena);
  Verdict verdict{.accepted = false, .disjoint = true};
  for (const OperandSpec& spec : operand_specs(problem)) {
    if (spec.access == Access::kUnused) continue;
    unsigned char* place = blocks[static_cast<std::size_t>(spec.id)].bytes;
    if (spec.id == a || spec.id == b) {
      const std::int64_t at = spec.id == a ? a_at : b_at;
      place = blocks[kOperandCount].bytes + at;
      verdict.disjoint = mark(spec, at, used) && verdict.disjoint;
    }
    set_address(operands, spec.id, place);
  }
  const Workspace workspace{blocks[kOperandCount + 1].bytes, kArena};
  verdict.accepted = run(made, operands, workspace, nullptr).has_value();
  return verdict;
}

Problem small(Op op, std::int64_t m, std::int64_t d, std::int64_t h) {
  Problem p;
  p.op = op;
  p.m = m;
  p.d = d;
  p.h = h;
  p.alignment_bytes = 8;
  p.dw_dtype = DType::kF32;
  return p;
}

TEST(Overlap, AcceptsConcatenatedAndInterleavedGradientsInEitherOrder) {
  for (const std::int64_t block : {1, 2, 3, 4, 5, 8}) {
    Problem p = small(Op::kMlpGrad, 3, 4, 10);
    p.layout.dw_gate_up = interleaved_rows(block, p.d, p.dw_dtype);
    const std::int64_t shift = block * p.d * size_bytes(p.dw_dtype);
    for (const bool up_first : {false, true}) {
      const Verdict v =
          judge(p, Operand::kDwGate, up_first ? shift : 0, Operand::kDwUp, up_first ? 0 : shift);
      EXPECT_TRUE(v.accepted && v.disjoint) << block << up_first;
    }
  }
  Problem p = small(Op::kMlpGrad, 3, 4, 10);
  EXPECT_TRUE(judge(p, Operand::kDwGate, 0, Operand::kDwUp, p.h * p.d * 4).accepted);
}

TEST(Overlap, AcceptsInterleavedColumnsInEitherOrder) {
  for (const std::int64_t h : {8, 10, 11}) {
    for (const std::int64_t block : {4, 8, 16}) {  // 8-byte blocks at least: alignment
      Problem p = small(Op::kGateMulGrad, 3, 1, h);
      p.layout.dg_du = interleaved_cols(block, p.h, p.x_dtype);
      const std::int64_t shift = block * size_bytes(p.x_dtype);
      for (const bool up_first : {false, true}) {
        const Verdict v =
            judge(p, Operand::kDg, up_first ? shift : 0, Operand::kDu, up_first ? 0 : shift);
        EXPECT_TRUE(v.accepted && v.disjoint) << h << " " << block << up_first;
      }
    }
  }
}

// Two matrices of different width beside each other in the rows of one buffer.
TEST(Overlap, AcceptsOutputsBesideEachOtherAndSeesAWiderOneReachIntoTheNextRow) {
  Problem p = small(Op::kMlpGrad, 3, 4, 12);
  p.y_dtype = p.x_dtype;
  p.op = Op::kMlp;
  p.save_g_u = true;  // g [3, 12] and y [3, 4] in rows of 16
  p.layout.y.row_stride_bytes = p.layout.g_u.row_stride_bytes = 32;
  EXPECT_TRUE(judge(p, Operand::kG, 0, Operand::kY, 24).accepted);
  EXPECT_TRUE(judge(p, Operand::kY, 0, Operand::kG, 8).accepted);
  EXPECT_FALSE(judge(p, Operand::kY, 0, Operand::kG, 16).accepted);
  EXPECT_FALSE(judge(p, Operand::kY, 0, Operand::kG, 4 * 8 - 8).accepted);
}

TEST(Overlap, OneLayoutIsAcceptedWhereItSharesNoByte) {
  std::mt19937 random(7);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  int accepted = 0;
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    const bool rows = i % 2 == 0;
    Problem p = rows ? small(Op::kMlpGrad, 1, pick(1, 5), pick(1, 9))
                     : small(Op::kGateMulGrad, pick(1, 4), 1, pick(1, 13));
    p.dw_dtype = DType::kF64;
    p.x_dtype = rows ? DType::kF64 : DType::kF32;
    p.y_dtype = p.w_dtype = p.x_dtype;
    const std::int64_t elem = size_bytes(p.x_dtype);
    Layout layout;
    if (rows) {
      layout.row_stride_bytes = (p.d + pick(0, 6)) * elem;
      layout.block_rows = pick(0, 4);
      if (layout.block_rows > 0) {
        layout.block_stride_bytes =
            layout.block_rows * layout.row_stride_bytes * pick(1, 3) + elem * pick(0, 2);
      }
      p.layout.dw_gate_up = layout;
    } else {
      layout.block_cols = pick(0, 4);
      std::int64_t width = p.h * elem;
      if (layout.block_cols > 0) {
        layout.col_block_stride_bytes = (layout.block_cols + pick(0, 5)) * elem;
        width = (p.h - 1) / layout.block_cols * layout.col_block_stride_bytes +
                ((p.h - 1) % layout.block_cols + 1) * elem;
      }
      layout.row_stride_bytes = width + pick(0, 16) * elem;
      p.layout.dg_du = layout;
    }
    const std::int64_t shift = pick(0, 24) * 8;
    const bool swap = pick(0, 1) == 1;
    const Verdict v = judge(p, rows ? Operand::kDwGate : Operand::kDg, swap ? shift : 0,
                            rows ? Operand::kDwUp : Operand::kDu, swap ? 0 : shift);
    ASSERT_EQ(v.accepted, v.disjoint)
        << "iteration " << i << ": " << to_string(p) << " row stride " << layout.row_stride_bytes
        << " block_rows " << layout.block_rows << " block_stride " << layout.block_stride_bytes
        << " block_cols " << layout.block_cols << " col stride " << layout.col_block_stride_bytes
        << " shift " << shift;
    (v.accepted ? accepted : refused) += 1;
  }
  // Both answers must occur often, or the test says nothing.
  EXPECT_GT(accepted, 400);
  EXPECT_GT(refused, 400);
}

// g in blocks of columns beside y, and dw_gate in blocks of rows beside dw_down: layouts, widths,
// periods and types that have nothing in common.
TEST(Overlap, TwoLayoutsAreAcceptedWhereTheyShareNoByte) {
  std::mt19937 random(11);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  int accepted = 0;
  int refused = 0;
  for (int i = 0; i < 6000; ++i) {
    const bool rows = i % 2 == 0;
    Problem p = rows ? small(Op::kMlpGrad, 1, pick(1, 5), pick(1, 9))
                     : small(Op::kMlp, pick(1, 5), pick(1, 4), pick(1, 13));
    p.x_dtype = p.w_dtype = p.y_dtype = rows ? DType::kF64 : DType::kF32;
    p.dw_dtype = DType::kF64;
    p.save_g_u = !rows;
    Layout& blocked = rows ? p.layout.dw_gate_up : p.layout.g_u;
    Layout& plain = rows ? p.layout.dw_down : p.layout.y;
    const std::int64_t elem = rows ? 8 : 4;
    if (rows) {
      blocked.row_stride_bytes = (p.d + pick(0, 9)) * elem;
      blocked.block_rows = pick(0, 4);
      if (blocked.block_rows > 0) {
        blocked.block_stride_bytes =
            blocked.block_rows * blocked.row_stride_bytes + elem * pick(0, 12);
      }
      plain.row_stride_bytes = (p.h + pick(0, 24)) * elem;
    } else {
      blocked.block_cols = pick(0, 4);
      std::int64_t width = p.h * elem;
      if (blocked.block_cols > 0) {
        blocked.col_block_stride_bytes = (blocked.block_cols + pick(0, 5)) * elem;
        width = (p.h - 1) / blocked.block_cols * blocked.col_block_stride_bytes +
                ((p.h - 1) % blocked.block_cols + 1) * elem;
      }
      blocked.row_stride_bytes = width + pick(0, 24) * elem;
      plain.row_stride_bytes = (p.d + pick(0, 24)) * elem;
    }
    const std::int64_t shift = pick(0, 40) * 8;
    const bool swap = pick(0, 1) == 1;
    const Verdict v = judge(p, rows ? Operand::kDwGate : Operand::kG, swap ? shift : 0,
                            rows ? Operand::kDwDown : Operand::kY, swap ? 0 : shift);
    ASSERT_EQ(v.accepted, v.disjoint)
        << "iteration " << i << ": " << to_string(p) << " rows of " << blocked.row_stride_bytes
        << " and " << plain.row_stride_bytes << " bytes, shift " << shift;
    (v.accepted ? accepted : refused) += 1;
  }
  EXPECT_GT(accepted, 600);
  EXPECT_GT(refused, 600);
}

// What documentation refuses: h in every other gap of g, with more rows than are looked at.
TEST(Overlap, TwoLayoutsOfManyRowsAreRefused) {
  for (const std::int64_t m : {std::int64_t{16384}, std::int64_t{16385}}) {
    Problem p = small(Op::kGateMul, m, 1, 2);
    p.x_dtype = p.w_dtype = p.y_dtype = DType::kF32;
    p.layout.g_u.row_stride_bytes = 32;
    p.layout.h.row_stride_bytes = 64;
    std::vector<double> buffer(static_cast<std::size_t>(m) * 8);  // h reaches twice as far as g
    std::vector<double> other(static_cast<std::size_t>(m) * 4);
    Operands operands;
    operands.g = buffer.data();
    operands.u = other.data();
    operands.h = buffer.data() + 2;
    const Plan made = plan(p, cpu_device(), {.variant = "cpu.reference"}).value();
    EXPECT_EQ(run(made, operands, {}, nullptr).has_value(), m == 16384) << m;
  }
}

}  // namespace
}  // namespace sluice
