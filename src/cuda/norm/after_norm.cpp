// SPDX-License-Identifier: Apache-2.0
#include "cuda/norm/after_norm.hpp"

#include "cuda/device.hpp"
#include "cuda/norm/norm.hpp"
#include "cuda/workspace.hpp"
#include "sluice/operands.hpp"

namespace sluice::cuda {
namespace {

using detail::refuse;
using norm::NormParams;
using norm::Rows;

// Does y take r, which exists nowhere but in the workspace?
bool keeps_sum(const Problem& p) { return p.norm.add && p.residual == Residual::kNormInput; }

struct Scratch {
  Rows n;
  Rows sum;
  std::size_t bytes = 0;
};

Scratch lay_out(const Problem& p, void* payload) {
  PayloadCursor cursor(payload);
  const std::int64_t row_bytes = p.d * size_bytes(p.x_dtype);
  Scratch s;
  s.n = {static_cast<char*>(cursor.take(p.m * row_bytes)), row_bytes};
  if (keeps_sum(p)) s.sum = {static_cast<char*>(cursor.take(p.m * row_bytes)), row_bytes};
  s.bytes = cursor.used();
  return s;
}

}  // namespace

Problem without_norm(const Problem& p) noexcept {
  Problem rest = p;
  rest.norm = {};
  rest.layout.x = {};
  rest.layout.x_sum = {};
  if (p.residual == Residual::kNormInput) {
    rest.residual = Residual::kOperand;
    rest.layout.residual = p.norm.add ? Layout{} : p.layout.x;
  }
  return rest;
}

detail::Reason norm_refusal(const Problem& p) noexcept {
  constexpr std::int64_t kUnit = 16;  // bytes of an access
  if (!p.norm.enabled) return refuse("is for problems with a norm");
  if (p.d > norm::kMaxCols || p.d % 8 != 0) {
    return refuse("d is %lld, the norm takes multiples of 8 up to %lld",
                  static_cast<long long>(p.d), static_cast<long long>(norm::kMaxCols));
  }
  constexpr std::int64_t kMaxGrid = (std::int64_t{1} << 31) - 1;
  if (p.m > kMaxGrid) return refuse("m is %lld, one CTA each", static_cast<long long>(p.m));
  const auto specs = operand_specs(p);
  for (const Operand id : {Operand::kX, Operand::kXSum}) {
    const OperandSpec& spec = specs[static_cast<std::size_t>(id)];
    if (spec.access != Access::kUnused && spec.layout.row_stride_bytes % kUnit != 0) {
      return refuse("%s: a stride of %lld bytes is no multiple of %lld", spec.name,
                    static_cast<long long>(spec.layout.row_stride_bytes),
                    static_cast<long long>(kUnit));
    }
  }
  return {};
}

std::size_t norm_payload_bytes(const Problem& p) noexcept { return lay_out(p, nullptr).bytes; }

Status launch_after_norm(const detail::Variant& inner, const Plan& plan, const Operands& operands,
                         void* payload, void* header, Stream stream) noexcept {
  const DeviceGuard guard(plan.device.ordinal);
  SLUICE_TRY(guard.status());
  const Problem& p = plan.problem;
  const auto specs = operand_specs(p);
  const Scratch scratch = lay_out(p, payload);
  const auto rows = [&](Operand id) {
    const OperandSpec& spec = specs[static_cast<std::size_t>(id)];
    if (spec.access == Access::kUnused) return Rows{};
    return Rows{const_cast<char*>(static_cast<const char*>(address(operands, id))),
                spec.layout.row_stride_bytes};
  };
  NormParams params;
  params.cols = p.d;
  params.x = rows(Operand::kX);
  params.residual = rows(Operand::kXResidual);
  params.sum = rows(Operand::kXSum);
  params.kept = scratch.sum;
  params.n = scratch.n;
  params.weight = operands.norm_weight;
  params.weight_offset = p.norm.weight_offset;
  params.eps = p.norm.eps;
  SLUICE_TRY(norm::launch_norm(plan.device, p.m, p.x_dtype, params, stream));

  Plan rest = plan;
  rest.problem = without_norm(p);
  Operands given = operands;
  given.x = scratch.n.base;
  given.x_residual = given.norm_weight = nullptr;
  given.x_sum = nullptr;
  if (p.residual == Residual::kNormInput) {
    given.residual = keeps_sum(p) ? scratch.sum.base : operands.x;
  }
  void* const behind = static_cast<char*>(payload) + scratch.bytes;
  return inner.launch(rest, given, behind, header, stream);
}

}  // namespace sluice::cuda
