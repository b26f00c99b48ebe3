// SPDX-License-Identifier: Apache-2.0
// The row cpu.simd of the variant table: what it takes, its configs, its workspace, its launch.
#include <array>
#include <cstdio>
#include <utility>

#include "cpu/engine.hpp"
#include "cpu/float_mode.hpp"
#include "cpu/variants.hpp"

namespace sluice::cpu {
namespace {

// The payload of a Config.
struct SimdConfig {
  SimdTarget target = SimdTarget::kEmulated;
};

// The first two change places where products of bf16 are not the faster ones.
constexpr std::array kHighestFirst = {SimdTarget::kAvx512Bf16, SimdTarget::kAvx512,
                                      SimdTarget::kAvx2, SimdTarget::kEmulated};

bool uses(const std::array<OperandSpec, kOperandCount>& specs, Operand id) {
  return specs[static_cast<std::size_t>(id)].access != Access::kUnused;
}

}  // namespace

SimdTarget target_of(const Plan& plan) noexcept {
  return detail::payload_as<SimdConfig>(plan.config).target;
}

detail::Reason simd_supports(const Problem& p, const Device& /*device*/) noexcept {
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

std::size_t simd_configs(const Problem& p, const Device& device, std::span<Config> out) noexcept {
  std::array targets = kHighestFirst;
  if (!prefers_bf16_products(p, device)) std::swap(targets[0], targets[1]);
  std::size_t count = 0;
  for (const SimdTarget target : targets) {
    const bool there = (device.simd_targets >> static_cast<unsigned>(target) & 1U) != 0;
    // Elsewhere it would be kAvx512 by another name, and be timed twice.
    const bool differs = target != SimdTarget::kAvx512Bf16 || multiplies_bf16(p);
    if (!there || !differs) continue;
    if (count < out.size()) {
      char name[kMaxName];
      std::snprintf(name, sizeof(name), "cpu.simd.%s", to_string(target));
      out[count] = detail::make_config(name, SimdConfig{target});
    }
    ++count;
  }
  return count;
}

std::size_t simd_payload_bytes(const Plan& plan) noexcept {
  return make_schedule(plan, target_of(plan)).bytes;
}

Status simd_launch(const Plan& plan, const Operands& operands, void* payload, void* /*header*/,
                   Stream /*stream*/) noexcept {
  const DefaultFloatMode mode;
  const Engine engine(plan, target_of(plan), operands, payload);
  switch (plan.problem.op) {
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
  }
  return {};
}

}  // namespace sluice::cpu
