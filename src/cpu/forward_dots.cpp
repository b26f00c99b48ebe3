// SPDX-License-Identifier: Apache-2.0
// gate_up, down and mlp for a few tokens: bound by reading the weights, each once, in place.
// A task is a run of weight rows; tokens are kept in fp32 by all threads together.
#include <algorithm>

#include "cpu/engine.hpp"
#include "cpu/thread_pool.hpp"

namespace sluice::cpu {
namespace {

constexpr std::int64_t kMaxTokens = DotKernels::kMaxTokens;
constexpr std::int64_t kMaxLines = 256;  // weight rows of a task
// Weight bytes of a task: rows of one matrix are read this long before another's. 256 KiB cost 2 %.
constexpr std::int64_t kTaskBytes = std::int64_t{1} << 20;

// Rows a task, a multiple of 8 (the rows that dots() takes at once for one token).
std::int64_t rows_per_task(std::int64_t row_bytes, std::int64_t rows, int threads) {
  const std::int64_t by_bytes = kTaskBytes / row_bytes;
  const std::int64_t by_threads = rows / (std::int64_t{8} * threads);
  return std::clamp<std::int64_t>(std::min(by_bytes, by_threads) / 8 * 8, 8, kMaxLines);
}

struct Tokens {
  float* data;
  std::int64_t stride;  // floats; rows are zero from their width to here
};

Tokens tokens_at(const Engine& e, std::size_t offset, std::int64_t width) {
  return {static_cast<float*>(e.at(offset)), round_up(width, kMaxLanes)};
}

void zero_ends(const Tokens& tokens, std::int64_t count, std::int64_t width) {
  for (std::int64_t t = 0; t < count; ++t) {
    std::fill(tokens.data + t * tokens.stride + width, tokens.data + (t + 1) * tokens.stride, 0.0F);
  }
}

// One token of what is multiplied first in fp32: x, n where there is a norm, or h of a lone down.
void widen_token(const Engine& e, const Tokens& out, std::int64_t t) {
  float* row = out.data + t * out.stride;
  if (e.problem.norm.enabled) {
    norm_row(e, t, [&](std::int64_t col, std::int64_t n, const float* values) {
      std::copy(values, values + n, row + col);
    });
  } else {
    const Matrix& in = e.matrix(e.problem.op == Op::kDown ? Operand::kH : Operand::kX);
    e.io.load(in, t, 0, in.cols, row);
  }
}

struct Sums {
  alignas(64) float value[kMaxTokens][kMaxLines];
};

void dots(const Engine& e, const void* const* lines, std::int64_t count, DType dtype,
          const Tokens& x, std::int64_t k, Sums& out) {
  e.kernels.dot.dots[static_cast<std::size_t>(dtype)](lines, static_cast<int>(count), x.data,
                                                      x.stride, static_cast<int>(e.problem.m), k,
                                                      out.value[0], kMaxLines);
}

// h of columns [col, col + n) for all tokens; put(token, values) takes it.
template <class Put>
void gate_up_columns(const Engine& e, const Tokens& x, std::int64_t col, std::int64_t n,
                     const Put& put) {
  const Matrix& w_gate = e.matrix(Operand::kWGate);
  const Matrix& w_up = e.matrix(Operand::kWUp);
  const void* lines[kMaxLines];
  for (std::int64_t i = 0; i < n; ++i) {
    lines[i] = w_gate.at(col + i, 0);
    lines[n + i] = w_up.at(col + i, 0);
  }
  Sums sums;
  dots(e, lines, 2 * n, w_gate.dtype, x, e.problem.d, sums);
  alignas(64) float g[kMaxLines / 2];
  alignas(64) float u[kMaxLines / 2];
  alignas(64) float b_gate[kMaxLines / 2];
  alignas(64) float b_up[kMaxLines / 2];
  load_vector(e, Operand::kBGate, col, n, b_gate);
  load_vector(e, Operand::kBUp, col, n, b_up);
  for (std::int64_t t = 0; t < e.problem.m; ++t) {
    for (std::int64_t i = 0; i < n; ++i) {
      g[i] = sums.value[t][i] + b_gate[i];
      u[i] = sums.value[t][n + i] + b_up[i];
    }
    if (e.problem.save_g_u) {
      e.io.store(e.matrix(Operand::kG), t, col, n, g);
      e.io.store(e.matrix(Operand::kU), t, col, n, u);
    }
    e.kernels.gate.mul(e.problem.gate, g, u, n, g);
    put(t, g);
  }
}

void gate_up(const Engine& e, const Tokens& x, const Tokens* hidden, std::int64_t cols,
             std::int64_t task) {
  const Problem& p = e.problem;
  const std::int64_t col = task * cols;
  const std::int64_t n = std::min(cols, p.h - col);
  gate_up_columns(e, x, col, n, [&](std::int64_t t, float* h) {
    if (hidden == nullptr) return e.io.store(e.matrix(Operand::kH), t, col, n, h);
    e.io.round(p.x_dtype, n, h);
    std::copy(h, h + n, hidden->data + t * hidden->stride + col);
  });
}

void down(const Engine& e, const Tokens& hidden, std::int64_t rows, std::int64_t task) {
  const Problem& p = e.problem;
  const Matrix& w_down = e.matrix(Operand::kWDown);
  const std::int64_t col = task * rows;
  const std::int64_t n = std::min(rows, p.d - col);
  const void* lines[kMaxLines];
  for (std::int64_t i = 0; i < n; ++i) lines[i] = w_down.at(col + i, 0);
  Sums sums;
  dots(e, lines, n, w_down.dtype, hidden, p.h, sums);
  alignas(64) float bias[kMaxLines];
  load_vector(e, Operand::kBDown, col, n, bias);
  for (std::int64_t t = 0; t < p.m; ++t) finish_y(e, t, col, n, bias, sums.value[t]);
}

}  // namespace

// One region: the tokens are widened, then gate_up, then down.
void forward_dots(const Engine& e) noexcept {
  const Problem& p = e.problem;
  const bool has_gate_up = p.op != Op::kDown;
  const bool has_down = p.op != Op::kGateUp;
  const std::int64_t width = has_gate_up ? p.d : p.h;
  const Tokens x = tokens_at(e, e.schedule.input, width);
  const Tokens hidden = has_gate_up && has_down ? tokens_at(e, e.schedule.hidden, p.h) : x;
  zero_ends(x, p.m, width);
  if (has_gate_up && has_down) zero_ends(hidden, p.m, p.h);

  const std::int64_t pair_bytes = 2 * bytes_of(p.w_dtype, p.d);
  const std::int64_t cols = std::min(rows_per_task(pair_bytes, p.h, e.threads), kMaxLines / 2);
  const std::int64_t rows = rows_per_task(bytes_of(p.w_dtype, p.h), p.d, e.threads);
  // Microseconds for a few tokens: less than it takes to share them.
  const std::int64_t widen_tasks = p.m < 8 ? 1 : p.m;
  const PhaseTasks tasks = {widen_tasks, has_gate_up ? ceil_div(p.h, cols) : 0,
                            has_down ? ceil_div(p.d, rows) : 0};
  parallel_phases(e.threads, 1, tasks,
                  [&](std::int64_t, int phase, std::int64_t task, int /*worker*/) {
                    if (phase == 1) return gate_up(e, x, has_down ? &hidden : nullptr, cols, task);
                    if (phase == 2) return down(e, hidden, rows, task);
                    if (widen_tasks > 1) return widen_token(e, x, task);
                    for (std::int64_t t = 0; t < p.m; ++t) widen_token(e, x, t);
                  });
}

}  // namespace sluice::cpu
