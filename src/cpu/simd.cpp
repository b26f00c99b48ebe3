// SPDX-License-Identifier: Apache-2.0
// cpu.simd: what it takes, its configs, its scratch, its launch.
#include <array>
#include <cstdio>
#include <span>
#include <utility>

#include "cpu/engine.hpp"
#include "cpu/float_mode.hpp"
#include "cpu/kernel_rows.hpp"

namespace sluice::cpu {
namespace {

// The first two change places where products of bf16 are not the faster ones.
constexpr std::array kHighestFirst = {SimdTarget::kAvx512Bf16, SimdTarget::kAvx512,
                                      SimdTarget::kAvx2, SimdTarget::kEmulated};

bool uses(const std::array<OperandSpec, kOperandCount>& specs, Operand id) {
  return specs[static_cast<std::size_t>(id)].access != Access::kUnused;
}

detail::Reason supports(const Problem& p, const Device& /*device*/) noexcept {
  const auto specs = operand_specs(p);
  const bool forward = p.op == Op::kGateUp || p.op == Op::kDown || p.op == Op::kMlp;
  for (const OperandSpec& spec : specs) {
    if (spec.access == Access::kUnused) continue;
    if (spec.dtype == DType::kF64) {
      return detail::refuse("%s is fp64, the engine computes in fp32", spec.name);
    }
    if (is_block_type(spec.dtype) && !forward) {
      return detail::refuse("%s is in blocks of %s; gate_up, down and mlp alone take blocks",
                            spec.name, to_string(spec.dtype));
    }
  }
  const bool reads_x_type = p.x_dtype == DType::kF32 || is_block_type(p.w_dtype) ||
                            p.op == Op::kGateMul || p.op == Op::kGateMulGrad;
  if (!reads_x_type && p.w_dtype != p.x_dtype) {
    return detail::refuse("weights are %s with x of %s; wanted %s, or x of fp32",
                          to_string(p.w_dtype), to_string(p.x_dtype), to_string(p.x_dtype));
  }
  const bool uses_y = uses(specs, Operand::kY) || uses(specs, Operand::kDy);
  if (uses_y && p.y_dtype != p.x_dtype && p.y_dtype != DType::kF32) {
    return detail::refuse("%s is %s with x of %s; wanted %s or fp32",
                          uses(specs, Operand::kY) ? "y" : "dy", to_string(p.y_dtype),
                          to_string(p.x_dtype), to_string(p.x_dtype));
  }
  if (p.op == Op::kMlpGrad && p.save_dg_du && p.layout.dg_du.block_cols > 0) {
    return detail::refuse("dg has columns in blocks; the products behind it read whole rows");
  }
  return {};
}

std::size_t configs(const Problem& p, const Device& device, std::span<KernelConfig> out) noexcept {
  std::array targets = kHighestFirst;
  if (!prefers_bf16_products(p, device)) std::swap(targets[0], targets[1]);
  std::array<SimdTarget, kSimdTargetCount> offered{};
  std::size_t count = 0;
  for (const SimdTarget target : targets) {
    const bool there = (device.simd_targets >> static_cast<unsigned>(target) & 1U) != 0;
    // Elsewhere it would be kAvx512 by another name, and be timed twice.
    const bool differs = target != SimdTarget::kAvx512Bf16 || multiplies_bf16(p);
    if (there && differs) offered[count++] = target;
  }
  return detail::offer<SimdTarget>(std::span(offered).first(count), out);
}

void name_config(const KernelConfig& config, std::span<char> out) noexcept {
  std::snprintf(out.data(), out.size(), "%s", to_string(detail::config_as<SimdTarget>(config)));
}

std::size_t scratch_bytes(const detail::StepView& s) noexcept {
  return make_schedule(s.problem, s.device, s.threads, detail::config_as<SimdTarget>(s.config))
      .bytes;
}

Status launch(const detail::Step& step, const detail::Step* /*next*/) noexcept {
  const DefaultFloatMode mode;
  const Engine engine(step, detail::config_as<SimdTarget>(step.config));
  switch (step.problem.op) {
    case Op::kGateUp:
    case Op::kDown:
    case Op::kMlp:
      if (engine.schedule.dots) {
        forward_dots(engine);
      } else {
        forward_gemm(engine);
      }
      break;
    case Op::kGateMul:
    case Op::kGateMulGrad:
      elementwise(engine);
      break;
    case Op::kGateUpGrad:
    case Op::kMlpGrad:
      backward(engine);
      break;
    case Op::kNorm:
      norm(engine);
      break;
    case Op::kInputGrad:
    case Op::kWeightGrad:
    case Op::kColumnSum:
    case Op::kAllReduce:
      return make_error(ErrorCode::kInternal, "cpu.simd: has no %s", to_string(step.problem.op));
  }
  return {};
}

}  // namespace

const detail::Kernel kSimd = {
    .name = "cpu.simd",
    .ops = {Op::kGateUp, Op::kDown, Op::kMlp, Op::kGateMul, Op::kGateMulGrad, Op::kGateUpGrad,
            Op::kMlpGrad, Op::kNorm},
    .supports = supports,
    .configs = configs,
    .name_config = name_config,
    .launch = launch,
    .describe = simd_describe,
    .scratch_bytes = scratch_bytes,
};

}  // namespace sluice::cpu
