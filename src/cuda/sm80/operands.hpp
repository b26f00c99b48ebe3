// SPDX-License-Identifier: Apache-2.0
// What the mma.sync kernels ask of a device and of operands alike. Pure.
#pragma once

#include "core/kernel.hpp"
#include "cuda/operands.hpp"

namespace sluice::cuda::sm80 {

/// A GPU before 8.0, or with less than `least_smem` bytes of shared memory a block.
[[nodiscard]] detail::Reason device_refusal(const Device& device, int least_smem) noexcept;

/// What copies of 16 bytes cannot move, types without tensor cores, and a norm, which no kernel of
/// this folder does.
[[nodiscard]] detail::Reason operand_refusal(const Problem& problem) noexcept;

/// What the launches of gate_up and of down have alike: sizes, gate, and where operands lie.
template <class Params>
void set_operands(const detail::Step& step, Params& params) noexcept {
  const Problem& p = step.problem;
  const bool gate_up = p.op == Op::kGateUp;
  const Operand out = gate_up ? Operand::kH : Operand::kY;
  params.x = rows_of(step, gate_up ? Operand::kX : Operand::kH);
  params.w[0] = rows_of(step, gate_up ? Operand::kWGate : Operand::kWDown);
  if (gate_up) params.w[1] = rows_of(step, Operand::kWUp);
  params.out = step.pointer(out);
  params.out_row_bytes = step.spec(out).layout.row_stride_bytes;
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(gate_up ? p.h : p.d);
  params.k = static_cast<int>(gate_up ? p.d : p.h);
  params.gate = p.gate;
  params.bias[0] = step.pointer(gate_up ? Operand::kBGate : Operand::kBDown);
  params.bias[1] = step.pointer(Operand::kBUp);
  params.residual = rows_of(step, Operand::kResidual);
}

}  // namespace sluice::cuda::sm80
