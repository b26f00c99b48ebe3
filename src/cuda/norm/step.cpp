// SPDX-License-Identifier: Apache-2.0
// cuda.norm: RMSNorm of x, or of x + x_residual, whose sum is stored where it has a place.
#include <cstdio>

#include "cuda/kernel_rows.hpp"
#include "cuda/norm/norm.hpp"
#include "cuda/operands.hpp"
#include "cuda/refusals.hpp"

namespace sluice::cuda {
namespace {

using detail::Reason;
using detail::refuse;
using detail::Step;
using detail::StepView;

Reason supports(const Problem& p, const Device& device) noexcept {
  if (Reason reason = capability_refusal(device); !reason.empty()) return reason;
  if (Reason reason = half_type_refusal(p); !reason.empty()) return reason;
  if (p.d > norm::kMaxCols || p.d % 8 != 0) {
    return refuse("d is %lld, the norm takes multiples of 8 up to %lld",
                  static_cast<long long>(p.d), static_cast<long long>(norm::kMaxCols));
  }
  constexpr std::int64_t kMaxGrid = (std::int64_t{1} << 31) - 1;
  if (p.m > kMaxGrid) return refuse("m is %lld, one CTA each", static_cast<long long>(p.m));
  if (Reason reason = alignment_refusal(p); !reason.empty()) return reason;
  for (const Operand id : {Operand::kX, Operand::kXSum, Operand::kY}) {
    if (!is_used(p, id)) continue;
    if (Reason reason = stride_refusal(operand_spec(p, id)); !reason.empty()) return reason;
  }
  return {};
}

void name_config(const KernelConfig&, std::span<char> out) noexcept {
  std::snprintf(out.data(), out.size(), "row");
}

Status launch(const Step& step, const Step* /*next*/) noexcept {
  norm::NormParams params;
  params.cols = step.problem.d;
  params.x = row_major(step, Operand::kX);
  params.residual = row_major(step, Operand::kXResidual);
  params.sum = row_major(step, Operand::kXSum);
  params.n = row_major(step, Operand::kY);
  params.weight = step.pointer(Operand::kNormWeight);
  params.weight_offset = step.problem.norm.weight_offset;
  params.eps = step.problem.norm.eps;
  params.prefetches = step.problem.m <= 2 * std::int64_t{step.device.sm_count};
  return norm::launch_norm(step.device, step.problem.m, step.problem.x_dtype, params, step.stream);
}

std::string describe(const StepView& s) {
  return "a CTA a row: " + std::to_string(s.problem.m) + " CTAs on " +
         std::to_string(s.device.sm_count) + " SMs";
}

}  // namespace

const detail::Kernel kNorm = {
    .name = "cuda.norm",
    .ops = {Op::kNorm},
    .supports = supports,
    .name_config = name_config,
    .launch = launch,
    .describe = describe,
};

}  // namespace sluice::cuda
