// SPDX-License-Identifier: Apache-2.0
// From a step's operands to the views that the SIMT kernels take.
#pragma once

#include "core/kernel.hpp"
#include "cuda/simt/kernels.hpp"

namespace sluice::cuda::simt {

/// An operand. Without a base where it is absent.
[[nodiscard]] inline View view_of(const detail::Step& step, Operand id) noexcept {
  const OperandSpec spec = step.spec(id);
  View view;
  view.dtype = spec.dtype;
  view.layout = spec.layout;
  view.base = static_cast<char*>(step.pointer(id));
  return view;
}

/// db_gate from dg.
[[nodiscard]] inline ColumnSumParams column_sum(const detail::Step& step) noexcept {
  ColumnSumParams params;
  params.rows = step.problem.m;
  params.cols = step.problem.h;
  params.accumulate = step.problem.accumulate_dw;
  params.in = view_of(step, Operand::kDg);
  params.out = view_of(step, Operand::kDbGate);
  return params;
}

/// Of all SIMT kernels: what has no type of bf16, fp16 or fp32.
[[nodiscard]] detail::Reason type_refusal(const Problem& problem, const Device& device) noexcept;

}  // namespace sluice::cuda::simt
