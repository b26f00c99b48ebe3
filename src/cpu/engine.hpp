// SPDX-License-Identifier: Apache-2.0
// One call of the SIMD engine: operands, schedule and kernels, shared by the operators' files.
#pragma once

#include <array>
#include <cstdint>

#include "core/kernel.hpp"
#include "cpu/blocking.hpp"
#include "cpu/gemm.hpp"
#include "cpu/kernels.hpp"
#include "cpu/matrix.hpp"
#include "cpu/thread_pool.hpp"

namespace sluice::cpu {

struct Engine {
  Engine(const detail::Step& step, SimdTarget target) noexcept
      : problem(step.problem),
        schedule(make_schedule(step.problem, step.device, step.threads, target)),
        kernels(cpu::kernels(target)),
        io(kernels.row),
        team{schedule.threads, step.executor},
        payload(static_cast<char*>(step.scratch)) {
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      const auto id = static_cast<Operand>(i);
      if (is_used(problem, id)) matrices[i] = matrix_of(step.spec(id), step.operands);
    }
  }

  [[nodiscard]] const Matrix& matrix(Operand id) const noexcept {
    return matrices[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] int lanes() const noexcept { return kernels.gemm.lanes; }
  [[nodiscard]] int panel_width() const noexcept { return 2 * kernels.gemm.lanes; }
  [[nodiscard]] void* at(std::size_t offset) const noexcept { return payload + offset; }
  [[nodiscard]] Scratch scratch(int worker) const noexcept {
    auto* a = reinterpret_cast<float*>(payload + schedule.panels +
                                       schedule.panels_each * static_cast<std::size_t>(worker));
    float* b = a + schedule.a_floats;
    float* c = b + schedule.b_floats;
    return {a, b, c, c + schedule.c_floats};
  }

  Problem problem;
  Schedule schedule;
  Kernels kernels;
  RowIo io;
  Team team;
  char* payload;
  std::array<Matrix, kOperandCount> matrices;
};

/// r of the norm prologue (sluice::Norm), columns [col, col + n), n <= kChunk: rounded to x's type.
void norm_input(const Engine& e, std::int64_t row, std::int64_t col, std::int64_t n,
                float* out) noexcept;

/// One row of n of the norm prologue, in chunks: put(col, count, values) with values rounded to x's
/// type. Stores x_sum where it is wanted.
template <class Put>
void norm_row(const Engine& e, std::int64_t row, const Put& put) noexcept;

/// out[i] = vector[col + i], or zeros where the vector is not there.
void load_vector(const Engine& e, Operand id, std::int64_t col, std::int64_t n,
                 float* out) noexcept;

/// y[row, col + i] = sum[i] + b_down + residual. `sum` is overwritten; n <= kChunk.
void finish_y(const Engine& e, std::int64_t row, std::int64_t col, std::int64_t n,
              const float* bias, float* sum) noexcept;

// gate_up, down and mlp; see forward_*.cpp.
void forward_dots(const Engine& e) noexcept;
void forward_gemm(const Engine& e) noexcept;
// gate_up_grad and mlp_grad; backward.cpp.
void backward(const Engine& e) noexcept;
// gate_mul and gate_mul_grad; elementwise.cpp.
void elementwise(const Engine& e) noexcept;
// norm; prologue.cpp.
void norm(const Engine& e) noexcept;

/// 1 / sqrt(mean(r^2) + eps) of a row, in fp64. Also stores x_sum.
[[nodiscard]] float norm_scale(const Engine& e, std::int64_t row) noexcept;

/// out = n of columns [col, col + count), count <= kChunk, for a row with this norm_scale.
void norm_output(const Engine& e, std::int64_t row, float scale, std::int64_t col,
                 std::int64_t count, float* out) noexcept;

template <class Put>
void norm_row(const Engine& e, std::int64_t row, const Put& put) noexcept {
  const float scale = norm_scale(e, row);
  alignas(64) float values[kChunk];
  for (std::int64_t col = 0; col < e.problem.d; col += kChunk) {
    const std::int64_t count = std::min(kChunk, e.problem.d - col);
    norm_output(e, row, scale, col, count, values);
    put(col, count, values);
  }
}

}  // namespace sluice::cpu
