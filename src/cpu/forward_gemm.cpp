// SPDX-License-Identifier: Apache-2.0
// gate_up, down and mlp through the GEMM. A task of gate_up holds g and u of its block side by side
// and stores only h; g and u never reach memory unless they are asked for.
#include <algorithm>

#include "cpu/engine.hpp"
#include "cpu/thread_pool.hpp"
#include "cpu/tile_rows.hpp"

namespace sluice::cpu {
namespace {

// Tokens [first, first + rows) of the problem: one pass over the weights.
struct Pass {
  std::int64_t first;
  std::int64_t rows;
};

// The rows of `m` that belong to the pass, as a matrix of their own.
Matrix rows_of(const Matrix& m, const Pass& pass) {
  Matrix out = m;
  out.base = m.at(pass.first, 0);
  out.rows = pass.rows;
  return out;
}

void normalise(const Engine& e, const Pass& pass, const Matrix& out) {
  parallel_for(e.threads, pass.rows, [&](std::int64_t row, int) {
    norm_row(e, pass.first + row, [&](std::int64_t col, std::int64_t n, const float* values) {
      e.io.store(out, row, col, n, values);
    });
  });
}

// One task: g and u of the block, then h row by row while they are in cache.
void gate_up_block(const Engine& e, const Pass& pass, const Block& block, const Scratch& scratch,
                   const Matrix& h) {
  const std::int64_t padded = block.panels * e.lanes();
  const std::int64_t col = block.panel * e.lanes();
  const std::int64_t n = std::min(padded, e.problem.h - col);
  alignas(64) float b_gate[kMaxPairCols];
  alignas(64) float b_up[kMaxPairCols];
  if (e.problem.bias_gate_up) {
    load_bias(e, Operand::kBGate, col, n, padded, b_gate);
    load_bias(e, Operand::kBUp, col, n, padded, b_up);
  }
  alignas(64) float g[kMaxPairCols];
  alignas(64) float u[kMaxPairCols];
  for (std::int64_t i = 0; i < block.rows; ++i) {
    split_pair(e, scratch.c + i * 2 * padded, block.panels, b_gate, b_up, g, u);
    const std::int64_t row = block.row + i;
    if (e.problem.save_g_u) {
      e.io.store(e.matrix(Operand::kG), pass.first + row, col, n, g);
      e.io.store(e.matrix(Operand::kU), pass.first + row, col, n, u);
    }
    e.kernels.gate.mul(e.problem.gate, g, u, n, g);
    e.io.store(h, row, col, n, g);
  }
}

void gate_up(const Engine& e, const Pass& pass, const Matrix& x, const Matrix& h) {
  const Product product{
      .a = x, .b = e.matrix(Operand::kWGate), .pair = e.matrix(Operand::kWUp), .k = e.problem.d};
  Blocking blocking = e.schedule.gate_up;
  blocking.m_blocks = ceil_div(pass.rows, blocking.rows);
  const std::int64_t panels = ceil_div(e.problem.h, e.lanes());
  parallel_for(e.threads, blocking.tasks(), [&](std::int64_t task, int worker) {
    const Block block = block_of(blocking, task, pass.rows, panels);
    const Scratch scratch = e.scratch(worker);
    multiply(e.kernels.gemm, {&product, 1}, block, scratch, scratch.c);
    gate_up_block(e, pass, block, scratch, h);
  });
}

void down(const Engine& e, const Pass& pass, const Matrix& h) {
  const Product product{.a = h, .b = e.matrix(Operand::kWDown), .k = e.problem.h};
  Blocking blocking = e.schedule.down;
  blocking.m_blocks = ceil_div(pass.rows, blocking.rows);
  const std::int64_t width = e.panel_width();
  const std::int64_t panels = ceil_div(e.problem.d, width);
  parallel_for(e.threads, blocking.tasks(), [&](std::int64_t task, int worker) {
    const Block block = block_of(blocking, task, pass.rows, panels);
    const Scratch scratch = e.scratch(worker);
    multiply(e.kernels.gemm, {&product, 1}, block, scratch, scratch.c);
    const std::int64_t col = block.panel * width;
    const std::int64_t n = std::min(block.panels * width, e.problem.d - col);
    alignas(64) float bias[kMaxBlockCols];
    load_vector(e, Operand::kBDown, col, n, bias);
    for (std::int64_t i = 0; i < block.rows; ++i) {
      finish_y(e, pass.first + block.row + i, col, n, bias, scratch.c + i * block.panels * width);
    }
  });
}

}  // namespace

void forward_gemm(const Engine& e) noexcept {
  const Problem& p = e.problem;
  for (std::int64_t first = 0; first < p.m; first += e.schedule.pass_rows) {
    const Pass pass{first, std::min(e.schedule.pass_rows, p.m - first)};
    if (p.op == Op::kDown) {
      down(e, pass, rows_of(e.matrix(Operand::kH), pass));
      continue;
    }
    Matrix x = rows_of(e.matrix(Operand::kX), pass);
    if (p.norm.enabled) {
      x = dense(e.at(e.schedule.input), p.x_dtype, pass.rows, p.d);
      normalise(e, pass, x);
    }
    const bool whole = p.op == Op::kMlp;
    const Matrix h = whole ? dense(e.at(e.schedule.hidden), p.x_dtype, pass.rows, p.h)
                           : rows_of(e.matrix(Operand::kH), pass);
    gate_up(e, pass, x, h);
    if (whole) down(e, pass, h);
  }
}

}  // namespace sluice::cpu
