// SPDX-License-Identifier: Apache-2.0
// The variant cuda.sm90_cublaslt: the fused kernels of cuda.sm90, the plain products beside them by
// cuBLASLt: down, the second half of mlp, the weights' and x's gradients of mlp_grad.
#include <array>
#include <cstdio>

#include "cuda/cublaslt.hpp"
#include "cuda/cublaslt_api.hpp"
#include "cuda/device.hpp"
#include "cuda/prefill.hpp"
#include "cuda/sm90/backward.hpp"
#include "cuda/sm90/library_products.hpp"
#include "cuda/variants.hpp"
#include "cuda/workspace.hpp"

namespace sluice::cuda {
namespace {

using detail::Reason;
using detail::refuse;
using sm90::Tiling;

// The payload of a config.
struct Choice {
  TilingPair<Tiling> own;  // gate_up or gate_up_grad, and of mlp_grad what cuBLASLt does not take
  int rank;
};

bool has_own_kernel(Op op) { return op != Op::kDown; }

struct Scratch {
  void* library = nullptr;
  void* h = nullptr;         // mlp
  void* partials = nullptr;  // mlp, where gate_up is stream-K
  void* backward = nullptr;  // mlp_grad
  std::size_t bytes = 0;
};

Scratch lay_out(const Plan& plan, void* payload) {
  const Problem& p = plan.problem;
  const Tiling gate_up = detail::payload_as<Choice>(plan.config).own.gate_up;
  PayloadCursor cursor(payload);
  Scratch s;
  s.library = cursor.take(kCublasLtScratchBytes);
  if (p.op == Op::kMlp) {
    s.h = cursor.take(p.m * p.h * size_bytes(p.x_dtype));
    const sm90::GemmShape shape{p.m, 2 * p.h, p.d, sm90::GemmKind::kGateUp, plan.device.sm_count};
    if (gate_up.stream_k) s.partials = cursor.take(sm90::stream_k_partial_bytes(shape, gate_up));
  }
  if (p.op == Op::kMlpGrad) {
    s.backward = cursor.take(static_cast<std::int64_t>(sm90::mlp_grad_payload_bytes(p)));
  }
  s.bytes = cursor.used();
  return s;
}

}  // namespace

Reason sm90_cublaslt_supports(const Problem& p, const Device& device) noexcept {
  if (p.op != Op::kDown && p.op != Op::kMlp && p.op != Op::kMlpGrad) {
    return refuse("%s has no plain product", to_string(p.op));
  }
  if (const Reason reason = sm90_supports(p, device); !reason.empty()) return reason;
  if (const Reason reason = sm90::library_products_refusal(p); !reason.empty()) return reason;
  if (device.cublaslt_version == 0) return refuse("%s", kCublasLtAbsent);
  return {};
}

Reason sm90_cublaslt_yields(const Problem& p, const Device& device) noexcept {
  return sm90::library_yields(p, device);
}

// "sm90_cublaslt.down.lt0", "sm90_cublaslt.mlp.pp128x192c2g8+lt0": cuda.sm90's own best tiling and
// each rank of cuBLASLt's heuristic.
std::size_t sm90_cublaslt_configs(const Problem& p, const Device& device,
                                  std::span<Config> out) noexcept {
  std::array<Config, 1> best;
  if (sm90_configs(p, device, best) == 0) return 0;
  const auto own = detail::payload_as<TilingPair<Tiling>>(best[0]);
  std::array<char, 24> tiling{};
  sm90::name_tiling(own.gate_up, tiling);
  for (int rank = 0; rank < kCublasLtRanks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    if (at >= out.size()) break;
    char name[kMaxName];
    std::snprintf(name, sizeof(name), "sm90_cublaslt.%s.%s%slt%d", to_string(p.op),
                  has_own_kernel(p.op) ? tiling.data() : "", has_own_kernel(p.op) ? "+" : "", rank);
    out[at] = detail::make_config(name, Choice{own, rank});
  }
  return kCublasLtRanks;
}

std::size_t sm90_cublaslt_payload_bytes(const Plan& plan) noexcept {
  return lay_out(plan, nullptr).bytes;
}

Status sm90_cublaslt_launch(const Plan& plan, const Operands& operands, void* payload, void* header,
                            Stream stream) noexcept {
  const DeviceGuard guard(plan.device.ordinal);
  SLUICE_TRY(guard.status());
  const auto choice = detail::payload_as<Choice>(plan.config);
  const Scratch scratch = lay_out(plan, payload);
  const sm90::LibraryChoice library{choice.rank, scratch.library};
  sm90::Call call{plan.problem, plan.device, operands, stream, operand_specs(plan.problem)};
  call.header = static_cast<WorkspaceHeader*>(header);
  call.partials = static_cast<float*>(scratch.partials);
  call.library = &library;
  if (plan.problem.op == Op::kMlpGrad) {
    return sm90::mlp_grad(call, choice.own.gate_up, choice.own.down, scratch.backward);
  }
  if (plan.problem.op == Op::kDown) return sm90::library_down(call, call.at(Operand::kH));
  const sm90::Matrix h = call.dense(Operand::kH, scratch.h);
  sm90::Matrix g = call.at(Operand::kG);
  sm90::Matrix u = call.at(Operand::kU);
  if (!plan.problem.save_g_u) g.base = u.base = nullptr;
  SLUICE_TRY(sm90::gate_up(call, choice.own.gate_up, h, g, u));
  return sm90::library_down(call, h);
}

}  // namespace sluice::cuda
