// SPDX-License-Identifier: Apache-2.0
// gate_mul and gate_mul_grad: bound by memory, in chunks of columns that stay in L1. In place or
// not: a chunk is read whole before it is written.
#include <algorithm>

#include "cpu/engine.hpp"

namespace sluice::cpu {
namespace {

// Elements of a task: some tens of microseconds of work.
constexpr std::int64_t kTaskElems = std::int64_t{64} * 1024;

struct GateMul {
  GateKernels::Mul mul;
  void chunk(const Engine& e, std::int64_t row, std::int64_t col, std::int64_t n) const {
    alignas(64) float g[kChunk];
    alignas(64) float u[kChunk];
    e.io.load(e.matrix(Operand::kG), row, col, n, g);
    e.io.load(e.matrix(Operand::kU), row, col, n, u);
    mul(e.problem.gate, g, u, n, g);
    e.io.store(e.matrix(Operand::kH), row, col, n, g);
  }
};

struct GateMulGrad {
  GateKernels::Grad grad;
  void chunk(const Engine& e, std::int64_t row, std::int64_t col, std::int64_t n) const {
    alignas(64) float g[kChunk];
    alignas(64) float u[kChunk];
    alignas(64) float dh[kChunk];
    e.io.load(e.matrix(Operand::kG), row, col, n, g);
    e.io.load(e.matrix(Operand::kU), row, col, n, u);
    e.io.load(e.matrix(Operand::kDh), row, col, n, dh);
    grad(e.problem.gate, g, u, dh, n, g, u, dh);
    e.io.store(e.matrix(Operand::kDg), row, col, n, g);
    e.io.store(e.matrix(Operand::kDu), row, col, n, u);
    const Matrix& h = e.matrix(Operand::kH);
    if (h.present()) e.io.store(h, row, col, n, dh);
  }
};

template <class Kind>
void all_chunks(const Engine& e, const Kind& kind) {
  const std::int64_t chunks = ceil_div(e.problem.h, kChunk);
  const std::int64_t total = e.problem.m * chunks;
  const std::int64_t each = std::max<std::int64_t>(1, kTaskElems / std::min(kChunk, e.problem.h));
  parallel_for(e.team, ceil_div(total, each), [&](std::int64_t task, int) {
    for (std::int64_t i = task * each; i < std::min((task + 1) * each, total); ++i) {
      const std::int64_t col = i % chunks * kChunk;
      kind.chunk(e, i / chunks, col, std::min(kChunk, e.problem.h - col));
    }
  });
}

}  // namespace

void elementwise(const Engine& e) noexcept {
  const GateKernels& gate = e.kernels.gate;
  const auto type = static_cast<std::size_t>(e.problem.x_dtype);
  const bool rounds = e.problem.round_gate;
  if (e.problem.op == Op::kGateMul) {
    return all_chunks(e, GateMul{rounds ? gate.rounded_mul[type] : gate.mul});
  }
  all_chunks(e, GateMulGrad{rounds ? gate.rounded_grad[type] : gate.grad});
}

}  // namespace sluice::cpu
