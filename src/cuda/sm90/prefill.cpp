// SPDX-License-Identifier: Apache-2.0
// The variant cuda.sm90: gate_up, down, mlp and the gradients on Hopper's tensor cores from weights
// as they lie. One persistent GEMM a launch (gemm.cuh); mlp is two of them, mlp_grad a sequence
// (backward.cpp). Whether a launch starts before the one before it ends: starts_early().
#include "cuda/prefill.hpp"

#include <algorithm>
#include <array>

#include "cuda/device.hpp"
#include "cuda/sm90/backward.hpp"
#include "cuda/sm90/products.hpp"
#include "cuda/sm90/refusals.hpp"
#include "cuda/tensor_map.hpp"
#include "cuda/variants.hpp"
#include "cuda/workspace.hpp"

namespace sluice::cuda {
namespace {

using detail::Reason;
using detail::refuse;
using sm90::GemmKind;
using sm90::GemmShape;
using sm90::Tiling;

using Tilings = TilingPair<Tiling>;

GemmShape gate_up_shape(const Problem& p, const Device& device) {
  GemmShape shape{p.m, 2 * p.h, p.d, GemmKind::kGateUp, device.sm_count};
  const auto specs = operand_specs(p);
  const Layout& w = spec_of(specs, Operand::kWGate).layout;
  if (w.block_rows < p.h) shape.block_groups = w.block_rows / kPairGroupRows;
  shape.turns = blocks_take_turns(w);
  return shape;
}
GemmShape down_shape(const Problem& p, const Device& device) {
  GemmShape shape{p.m, p.d, p.h, GemmKind::kDown, device.sm_count};
  shape.narrow_l2 = sm90::has_narrow_l2(device.l2_bytes);
  return shape;
}
GemmShape gate_up_grad_shape(const Problem& p, const Device& device) {
  return {p.m, p.h, p.d, GemmKind::kGateUpGrad, device.sm_count};
}
// The larger of the weights' gradients stands for all of them.
GemmShape weight_grad_shape(const Problem& p, const Device& device) {
  return {p.h, p.d, p.m, GemmKind::kWeightGrad, device.sm_count};
}

bool has_gate_up_grad(const Problem& p) { return p.op == Op::kGateUpGrad || p.op == Op::kMlpGrad; }

Reason feature_refusal(const Problem& p) {
  if (!has_gate_up(p) && !has_down(p) && !has_gate_up_grad(p)) {
    return refuse("has no %s", to_string(p.op));
  }
  if (p.norm.enabled) return refuse("has no norm prologue");
  return {};
}

// Sizes and strides that the copy engine cannot walk.
Reason shape_refusal(const Problem& p) {
  const auto specs = operand_specs(p);
  // The kernels count rows, weight rows (2 H) and columns in 32 bits.
  constexpr std::int64_t kMaxDim = std::int64_t{1} << 29;
  if (p.m > kMaxDim || p.d > kMaxDim || p.h > kMaxDim) {
    return refuse("m, d, h are %lld, %lld, %lld, wanted at most %lld each",
                  static_cast<long long>(p.m), static_cast<long long>(p.d),
                  static_cast<long long>(p.h), static_cast<long long>(kMaxDim));
  }
  // g and du share the layouts of u and dg.
  for (const Operand id : {Operand::kX, Operand::kDy, Operand::kH, Operand::kWDown, Operand::kY,
                           Operand::kG, Operand::kDg}) {
    const OperandSpec& spec = spec_of(specs, id);
    if (spec.access == Access::kUnused) continue;
    if (const Reason reason = matrix_view_refusal(spec); !reason.empty()) return reason;
  }
  if (has_gate_up(p)) {
    if (const Reason reason = pair_view_refusal(spec_of(specs, Operand::kWGate)); !reason.empty()) {
      return reason;
    }
  }
  return p.op == Op::kMlpGrad ? sm90::mlp_grad_refusal(p) : Reason{};
}

// What lies in the payload of a forward operator.
struct Scratch {
  void* h = nullptr;         // mlp, dense in x's type
  void* partials = nullptr;  // of one launch after the other
  std::size_t bytes = 0;
};

Scratch lay_out(const Plan& plan, void* payload) {
  const Problem& p = plan.problem;
  const auto tilings = detail::payload_as<Tilings>(plan.config);
  PayloadCursor cursor(payload);
  Scratch s;
  if (p.op == Op::kMlp) s.h = cursor.take(p.m * p.h * size_bytes(p.x_dtype));
  std::int64_t partials = 0;
  const auto reserve = [&](const GemmShape& shape, const Tiling& tiling) {
    if (tiling.stream_k) {
      partials = std::max(partials, sm90::stream_k_partial_bytes(shape, tiling));
    }
  };
  if (has_gate_up(p)) reserve(gate_up_shape(p, plan.device), tilings.gate_up);
  if (has_down(p)) reserve(down_shape(p, plan.device), tilings.down);
  if (partials > 0) s.partials = cursor.take(partials);
  s.bytes = cursor.used();
  return s;
}

Status run_forward(const Plan& plan, sm90::Call& call, void* payload, void* header) {
  const auto tilings = detail::payload_as<Tilings>(plan.config);
  const Scratch scratch = lay_out(plan, payload);
  call.partials = static_cast<float*>(scratch.partials);
  call.header = static_cast<WorkspaceHeader*>(header);
  const bool chain = plan.problem.op == Op::kMlp;
  const sm90::Matrix h = chain ? call.dense(Operand::kH, scratch.h) : call.at(Operand::kH);
  if (has_gate_up(plan.problem)) {
    sm90::Matrix g = call.at(Operand::kG);
    sm90::Matrix u = call.at(Operand::kU);
    if (!plan.problem.save_g_u) g.base = u.base = nullptr;
    SLUICE_TRY(sm90::gate_up(call, tilings.gate_up, h, g, u));
  }
  return has_down(plan.problem) ? sm90::down(call, tilings.down, h) : Status{};
}

}  // namespace

Reason sm90_supports(const Problem& p, const Device& device) noexcept {
  if (const Reason reason = sm90::device_refusal(device); !reason.empty()) return reason;
  if (const Reason reason = feature_refusal(p); !reason.empty()) return reason;
  if (const Reason reason = half_type_refusal(p); !reason.empty()) return reason;
  if (const Reason reason = sm90::copy_refusal(p); !reason.empty()) return reason;
  return shape_refusal(p);
}

// "sm90.gate_up.pp128x192c2g8", "sm90.mlp.pp128x192c2g8+pp128x192c1g16"; of mlp_grad gate_up_grad's
// tiling, then that of the weights' gradients.
std::size_t sm90_configs(const Problem& p, const Device& device, std::span<Config> out) noexcept {
  if (has_gate_up_grad(p)) {
    std::array<Tiling, 16> grad;
    std::array<Tiling, 16> product;
    const std::size_t grads = sm90::ranked(gate_up_grad_shape(p, device), grad);
    const std::size_t products =
        p.op == Op::kMlpGrad ? sm90::ranked(weight_grad_shape(p, device), product) : 0;
    return offer_tilings<Tiling>("sm90", p, std::span(grad).first(grads),
                                 std::span(product).first(products), sm90::name_tiling, out);
  }
  std::array<Tiling, 16> gate_up;
  std::array<Tiling, 16> down;
  const std::size_t gate_ups = has_gate_up(p) ? sm90::ranked(gate_up_shape(p, device), gate_up) : 0;
  const std::size_t downs = has_down(p) ? sm90::ranked(down_shape(p, device), down) : 0;
  return offer_tilings<Tiling>("sm90", p, std::span(gate_up).first(gate_ups),
                               std::span(down).first(downs), sm90::name_tiling, out);
}

std::size_t sm90_payload_bytes(const Plan& plan) noexcept {
  const Problem& p = plan.problem;
  if (p.op == Op::kMlpGrad) return sm90::mlp_grad_payload_bytes(p);
  return lay_out(plan, nullptr).bytes;
}

Status sm90_launch(const Plan& plan, const Operands& operands, void* payload, void* header,
                   Stream stream) noexcept {
  const DeviceGuard guard(plan.device.ordinal);
  SLUICE_TRY(guard.status());
  sm90::Call call{plan.problem, plan.device, operands, stream, operand_specs(plan.problem)};
  if (plan.problem.op == Op::kGateUpGrad) {
    const Tiling tiling = detail::payload_as<Tilings>(plan.config).gate_up;
    return sm90::gate_up_grad(call, tiling, call.at(Operand::kG), call.at(Operand::kU),
                              call.at(Operand::kDg), call.at(Operand::kDu), call.at(Operand::kH));
  }
  if (plan.problem.op == Op::kMlpGrad) {
    const auto tilings = detail::payload_as<Tilings>(plan.config);
    return sm90::mlp_grad(call, tilings.gate_up, tilings.down, payload);
  }
  return run_forward(plan, call, payload, header);
}

}  // namespace sluice::cuda
