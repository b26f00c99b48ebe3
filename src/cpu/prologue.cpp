// SPDX-License-Identifier: Apache-2.0
// The norm, by itself and as a prologue, and the epilogue of y: what both forward paths do to rows
// around the products.
#include <cmath>

#include "cpu/engine.hpp"

namespace sluice::cpu {

void norm_input(const Engine& e, std::int64_t row, std::int64_t col, std::int64_t n,
                float* out) noexcept {
  const Matrix& x = e.matrix(Operand::kX);
  e.io.load(x, row, col, n, out);
  const Matrix& residual = e.matrix(Operand::kXResidual);
  if (!residual.present()) return;
  alignas(64) float other[kChunk];
  e.io.load(residual, row, col, n, other);
  e.kernels.row.add(other, n, out);
  e.io.round(x.dtype, n, out);
}

float norm_scale(const Engine& e, std::int64_t row) noexcept {
  const Matrix& x_sum = e.matrix(Operand::kXSum);
  constexpr std::size_t kSums = 8;
  double squares[kSums] = {};
  alignas(64) float r[kChunk];
  for (std::int64_t col = 0; col < e.problem.d; col += kChunk) {
    const std::int64_t n = std::min(kChunk, e.problem.d - col);
    norm_input(e, row, col, n, r);
    if (x_sum.present()) e.io.store(x_sum, row, col, n, r);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto v = static_cast<double>(r[i]);
      squares[static_cast<std::size_t>(i) % kSums] += v * v;
    }
  }
  double sum = 0;
  for (const double s : squares) sum += s;
  const double mean = sum / static_cast<double>(e.problem.d);
  return static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(e.problem.norm.eps)));
}

void norm_output(const Engine& e, std::int64_t row, float scale, std::int64_t col,
                 std::int64_t count, float* out) noexcept {
  alignas(64) float weight[kChunk];
  norm_input(e, row, col, count, out);
  e.io.load(e.matrix(Operand::kNormWeight), 0, col, count, weight);
  e.kernels.row.scale(out, scale, weight, e.problem.norm.weight_offset, count, out);
  e.io.round(e.problem.x_dtype, count, out);
}

void norm(const Engine& e) noexcept {
  const Matrix& y = e.matrix(Operand::kY);
  parallel_for(e.team, e.problem.m, [&](std::int64_t row, int) {
    norm_row(e, row, [&](std::int64_t col, std::int64_t count, const float* values) {
      e.io.store(y, row, col, count, values);
    });
  });
}

void load_vector(const Engine& e, Operand id, std::int64_t col, std::int64_t n,
                 float* out) noexcept {
  const Matrix& vector = e.matrix(id);
  if (vector.present()) return e.io.load(vector, 0, col, n, out);
  std::fill(out, out + n, 0.0F);
}

void finish_y(const Engine& e, std::int64_t row, std::int64_t col, std::int64_t n,
              const float* bias, float* sum) noexcept {
  alignas(64) float other[kChunk];
  if (e.problem.bias_down) e.kernels.row.add(bias, n, sum);
  if (e.problem.residual == Residual::kOperand) {
    e.io.load(e.matrix(Operand::kResidual), row, col, n, other);
    e.kernels.row.add(other, n, sum);
  } else if (e.problem.residual == Residual::kNormInput) {
    norm_input(e, row, col, n, other);
    e.kernels.row.add(other, n, sum);
  }
  e.io.store(e.matrix(Operand::kY), row, col, n, sum);
}

}  // namespace sluice::cpu
