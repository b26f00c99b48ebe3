// SPDX-License-Identifier: Apache-2.0
// gate_up_grad and mlp_grad. First region: dh = dy·Wd (and g, u again, where they were not saved)
// with the gate's derivative applied to each block. Second region, for mlp_grad: dx and all weight
// and bias gradients, whose tasks share one queue.
#include <algorithm>

#include "cpu/engine.hpp"
#include "cpu/tile_rows.hpp"

namespace sluice::cpu {
namespace {

// Where the first region puts what it computes; h may be absent.
struct HiddenGrads {
  Matrix dg;
  Matrix du;
  Matrix h;
};

// dg, du and h of one block from dh in scratch.c and g, u given or in scratch.c2.
void grad_block(const Engine& e, const Block& block, const Scratch& scratch,
                const HiddenGrads& out) {
  const std::int64_t width = block.panels * e.panel_width();
  const std::int64_t col = block.panel * e.panel_width();
  const std::int64_t n = std::min(width, e.problem.h - col);
  alignas(64) float b_gate[kMaxBlockCols];
  alignas(64) float b_up[kMaxBlockCols];
  if (e.problem.recompute && e.problem.bias_gate_up) {
    load_bias(e, Operand::kBGate, col, n, width, b_gate);
    load_bias(e, Operand::kBUp, col, n, width, b_up);
  }
  alignas(64) float g[kMaxBlockCols];
  alignas(64) float u[kMaxBlockCols];
  for (std::int64_t i = 0; i < block.rows; ++i) {
    const std::int64_t row = block.row + i;
    float* dh = scratch.c + i * width;
    if (e.problem.recompute) {
      split_pair(e, scratch.c2 + i * 2 * width, 2 * block.panels, b_gate, b_up, g, u);
    } else {
      e.io.load(e.matrix(Operand::kG), row, col, n, g);
      e.io.load(e.matrix(Operand::kU), row, col, n, u);
    }
    e.kernels.gate.grad(e.problem.gate, g, u, dh, n, g, u, dh);
    e.io.store(out.dg, row, col, n, g);
    e.io.store(out.du, row, col, n, u);
    if (out.h.present()) e.io.store(out.h, row, col, n, dh);
  }
}

void hidden_grads(const Engine& e, const HiddenGrads& out) {
  const Problem& p = e.problem;
  const Product dh{.a = e.matrix(Operand::kDy),
                   .b = e.matrix(Operand::kWDown),
                   .b_rows = Rows::kSteps,
                   .k = p.d,
                   .pairs = e.schedule.pairs};
  const Product g_u{.a = e.matrix(Operand::kX),
                    .b = e.matrix(Operand::kWGate),
                    .pair = e.matrix(Operand::kWUp),
                    .k = p.d,
                    .pairs = e.schedule.pairs};
  const Blocking& blocking = e.schedule.dh;
  const std::int64_t panels = ceil_div(p.h, e.panel_width());
  parallel_for(e.team, blocking.tasks(), [&](std::int64_t task, int worker) {
    const Block block = block_of(blocking, task, p.m, panels);
    const Scratch scratch = e.scratch(worker);
    if (p.recompute) {
      // A paired panel has half the columns of a panel of dh.
      const Block pairs{block.row, block.rows, 2 * block.panel, 2 * block.panels};
      multiply(e.kernels.gemm, {&g_u, 1}, pairs, scratch, scratch.c2);
    }
    multiply(e.kernels.gemm, {&dh, 1}, block, scratch, scratch.c);
    grad_block(e, block, scratch, out);
  });
}

// One GEMM of the second region: its tasks are [begin, begin + blocking.tasks()) of the queue.
struct Job {
  Matrix out;
  Product products[2];
  std::size_t count = 1;
  Blocking blocking;
  bool accumulate = false;
  std::int64_t begin = 0;
  [[nodiscard]] std::int64_t tasks() const { return out.present() ? blocking.tasks() : 0; }
};

void run_job(const Engine& e, const Job& job, std::int64_t task, const Scratch& scratch) {
  const std::int64_t width = e.panel_width();
  const Block block = block_of(job.blocking, task, job.out.rows, ceil_div(job.out.cols, width));
  multiply(e.kernels.gemm, {job.products, job.count}, block, scratch, scratch.c);
  const std::int64_t col = block.panel * width;
  const std::int64_t n = std::min(block.panels * width, job.out.cols - col);
  alignas(64) float before[kMaxBlockCols];
  for (std::int64_t i = 0; i < block.rows; ++i) {
    float* row = scratch.c + i * block.panels * width;
    if (job.accumulate) {
      e.io.load(job.out, block.row + i, col, n, before);
      e.kernels.row.add(before, n, row);
    }
    e.io.store(job.out, block.row + i, col, n, row);
  }
}

// A bias gradient: the sums of a matrix's columns. Tasks are chunks of columns.
struct ColumnSum {
  Matrix out;
  Matrix in;
  std::int64_t begin = 0;
  [[nodiscard]] std::int64_t tasks() const { return out.present() ? ceil_div(in.cols, kChunk) : 0; }
};

// Rows are summed in blocks of kBlockK, as the GEMM does.
void run_column_sum(const Engine& e, const ColumnSum& job, std::int64_t task) {
  const std::int64_t col = task * kChunk;
  const std::int64_t n = std::min(kChunk, job.in.cols - col);
  alignas(64) float total[kChunk] = {};
  alignas(64) float part[kChunk];
  alignas(64) float row[kChunk];
  for (std::int64_t begin = 0; begin < job.in.rows; begin += kBlockK) {
    std::fill(part, part + n, 0.0F);
    for (std::int64_t m = begin; m < std::min(begin + kBlockK, job.in.rows); ++m) {
      e.io.load(job.in, m, col, n, row);
      e.kernels.row.add(row, n, part);
    }
    e.kernels.row.add(part, n, total);
  }
  if (e.problem.accumulate_dw) {
    e.io.load(job.out, 0, col, n, row);
    e.kernels.row.add(row, n, total);
  }
  e.io.store(job.out, 0, col, n, total);
}

// dw [rows of left's columns, right's columns] = leftᵀ·right, summed over tokens.
Job weight_grad(const Engine& e, Operand id, const Matrix& left, const Matrix& right,
                const Blocking& blocking) {
  return {.out = e.matrix(id),
          .products = {{.a = left,
                        .a_rows = Rows::kSteps,
                        .b = right,
                        .b_rows = Rows::kSteps,
                        .k = e.problem.m,
                        .pairs = e.schedule.pairs}},
          .blocking = blocking,
          .accumulate = e.problem.accumulate_dw};
}

void outer_grads(const Engine& e, const HiddenGrads& hidden) {
  const Problem& p = e.problem;
  const Matrix& x = e.matrix(Operand::kX);
  const Matrix& dy = e.matrix(Operand::kDy);
  const auto back = [&](const Matrix& grad, Operand weight) {
    return Product{.a = grad,
                   .b = e.matrix(weight),
                   .b_rows = Rows::kSteps,
                   .k = p.h,
                   .pairs = e.schedule.pairs};
  };
  Job jobs[] = {
      {.out = e.matrix(Operand::kDx),
       .products = {back(hidden.dg, Operand::kWGate), back(hidden.du, Operand::kWUp)},
       .count = 2,
       .blocking = e.schedule.dx},
      weight_grad(e, Operand::kDwGate, hidden.dg, x, e.schedule.dw_gate_up),
      weight_grad(e, Operand::kDwUp, hidden.du, x, e.schedule.dw_gate_up),
      weight_grad(e, Operand::kDwDown, dy, hidden.h, e.schedule.dw_down),
  };
  ColumnSum sums[] = {{e.matrix(Operand::kDbGate), hidden.dg},
                      {e.matrix(Operand::kDbUp), hidden.du},
                      {e.matrix(Operand::kDbDown), dy}};
  std::int64_t tasks = 0;
  for (Job& job : jobs) job.begin = tasks, tasks += job.tasks();
  for (ColumnSum& sum : sums) sum.begin = tasks, tasks += sum.tasks();
  parallel_for(e.team, tasks, [&](std::int64_t task, int worker) {
    for (const Job& job : jobs) {
      const std::int64_t own = task - job.begin;
      if (own >= 0 && own < job.tasks()) return run_job(e, job, own, e.scratch(worker));
    }
    for (const ColumnSum& sum : sums) {
      const std::int64_t own = task - sum.begin;
      if (own >= 0 && own < sum.tasks()) return run_column_sum(e, sum, own);
    }
  });
}

}  // namespace

void backward(const Engine& e) noexcept {
  const Problem& p = e.problem;
  if (p.op == Op::kGateUpGrad) {
    return hidden_grads(e, {e.matrix(Operand::kDg), e.matrix(Operand::kDu), e.matrix(Operand::kH)});
  }
  const auto at = [&](std::size_t offset) { return dense(e.at(offset), p.x_dtype, p.m, p.h); };
  const bool saves = p.save_dg_du;
  const HiddenGrads hidden{saves ? e.matrix(Operand::kDg) : at(e.schedule.dg),
                           saves ? e.matrix(Operand::kDu) : at(e.schedule.du),
                           at(e.schedule.hidden)};
  hidden_grads(e, hidden);
  outer_grads(e, hidden);
}

}  // namespace sluice::cpu
