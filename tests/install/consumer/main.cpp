// SPDX-License-Identifier: Apache-2.0
// A consumer of the installed C++ API: plans and runs one operator.
#include <cstdio>
#include <sluice/sluice.hpp>

int main() {
  const sluice::Problem problem{.op = sluice::Op::kGateMul,
                                .m = 1,
                                .h = 4,
                                .x_dtype = sluice::DType::kF32,
                                .gate = {.activation = sluice::Activation::kRelu}};
  const auto plan = sluice::plan(problem, sluice::cpu_device(), {.variant = "cpu.reference"});
  if (!plan || plan->workspace_bytes != 0) return std::puts("no plan"), 1;
  alignas(16) float g[4] = {-1, 0, 2, 3};
  alignas(16) float u[4] = {5, 6, 7, 8};
  alignas(16) float h[4] = {};
  sluice::Operands operands;
  operands.g = g;
  operands.u = u;
  operands.h = h;
  if (const auto status = sluice::run(*plan, operands, {}, nullptr); !status) {
    return std::puts(status.error().message), 1;
  }
  return h[0] == 0 && h[1] == 0 && h[2] == 14 && h[3] == 24 ? 0 : 1;
}
