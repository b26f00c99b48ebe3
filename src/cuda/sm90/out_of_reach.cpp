// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/out_of_reach.hpp"

#include <cstdint>
#include <span>

#include "cuda/host/tensor_map.hpp"
#include "cuda/kernel_rows.hpp"
#include "cuda/sm90/gemm/table.hpp"

namespace sluice::cuda::sm90 {
namespace {

// A part of the step by another kernel.
Status launch_by(const detail::Kernel& kernel, const Problem& problem, const Operands& operands,
                 const detail::Step& step) {
  if (const detail::Reason reason = kernel.supports(problem, step.device); !reason.empty()) {
    return make_error(
        ErrorCode::kUnsupported,
        "w_gate and w_up: are one, or 2^40 bytes or more apart; %s, which serves those, %s",
        kernel.name, reason.text);
  }
  KernelConfig config{};
  if (kernel.configs != nullptr) {
    static_cast<void>(kernel.configs(problem, step.device, std::span(&config, 1)));
  }
  return kernel.launch({.kernel = &kernel,
                        .problem = problem,
                        .operands = operands,
                        .device = step.device,
                        .config = config,
                        .stream = step.stream},
                       nullptr);
}

// Of n, whose rows begin at a line of L2.
Layout normed_rows(const Problem& p) {
  return {.row_stride_bytes = gemm::whole_line_stride(bytes_of(p.x_dtype, p.d))};
}

Status launch_norm_inside(const detail::Step& step) {
  const Problem& p = step.problem;
  Problem norm{.op = Op::kNorm, .m = p.m, .d = p.d};
  norm.x_dtype = norm.y_dtype = p.x_dtype;
  norm.w_dtype = p.w_dtype;
  norm.norm = p.norm;
  norm.layout.x = p.layout.x;
  norm.layout.x_sum = p.layout.x_sum;
  norm.layout.y = normed_rows(p);
  norm.alignment_bytes = p.alignment_bytes;
  Operands operands = step.operands;
  operands.y = step.scratch;
  return launch_by(kNorm, norm, operands, step);
}

}  // namespace

bool pairs_in_reach(const detail::Step& step) noexcept {
  const auto gate = reinterpret_cast<std::uintptr_t>(step.pointer(Operand::kWGate));
  const auto up = reinterpret_cast<std::uintptr_t>(step.pointer(Operand::kWUp));
  const std::uintptr_t apart = gate > up ? gate - up : up - gate;
  return apart > 0 && apart < static_cast<std::uintptr_t>(kTensorStrideLimit);
}

Status gate_up_out_of_reach(const detail::Step& step) noexcept {
  Problem problem = step.problem;
  Operands operands = step.operands;
  if (problem.norm.enabled) {
    SLUICE_TRY(launch_norm_inside(step));
    problem.norm = {};
    problem.layout.x = normed_rows(problem);
    operands.x = step.scratch;
  }
  const bool by_tensor_cores = kSm80Gemm.supports(problem, step.device).empty();
  return launch_by(by_tensor_cores ? kSm80Gemm : kSimt, problem, operands, step);
}

std::size_t out_of_reach_bytes(const Problem& gate_up) noexcept {
  if (gate_up.op != Op::kGateUp || !gate_up.norm.enabled) return 0;
  return static_cast<std::size_t>(gate_up.m * normed_rows(gate_up).row_stride_bytes);
}

}  // namespace sluice::cuda::sm90
