// SPDX-License-Identifier: Apache-2.0
// What a step's problem and operands are.
#include "core/lower.hpp"

#include <algorithm>

namespace sluice::detail {
namespace {

// Rows of h and n in scratch, which begin at a line of L2: a GEMM's stages then read whole ones.
std::int64_t scratch_row_bytes(const Problem& p, std::int64_t cols) {
  constexpr std::int64_t kLineBytes = 128;
  return (cols * size_bytes(p.x_dtype) + kLineBytes - 1) / kLineBytes * kLineBytes;
}

Layout scratch_rows(const Problem& p, std::int64_t cols) {
  return {.row_stride_bytes = scratch_row_bytes(p, cols)};
}

// dg and du where a backward pass keeps them: operands, or the halves of scratch's rows.
Layout hidden_grad_layout(const Problem& p) {
  if (p.save_dg_du) return p.layout.dg_du;
  return {.row_stride_bytes = 2 * p.h * size_bytes(p.x_dtype)};
}

struct HiddenGrads {
  void* dg;
  void* du;
};

HiddenGrads hidden_grads(const Problem& p, const Operands& given, void* scratch) {
  if (p.save_dg_du) return {given.dg, given.du};
  char* const base = static_cast<char*>(scratch);
  return {base, base == nullptr ? nullptr : base + p.h * size_bytes(p.x_dtype)};
}

bool reduces(const Problem& p) { return p.reduce.kind != ReduceKind::kNone; }

bool keeps_sum(const Problem& p) { return p.norm.add && p.residual == Residual::kNormInput; }

// What all steps have of the whole; flags that only some operators know are off.
Problem part_of(const Problem& p, Op op) {
  Problem q = p;
  q.op = op;
  q.norm = {};
  q.residual = Residual::kNone;
  q.reduce = {};
  q.bias_gate_up = q.bias_down = false;
  q.save_g_u = q.recompute = q.accumulate_dw = q.save_dg_du = false;
  // Parts of scratch keep no promise beyond this.
  q.alignment_bytes = std::min<std::int64_t>(p.alignment_bytes, 16);
  return q;
}

Lowered lower_norm(const Problem& p, const Operands& given, bool sum_given,
                   const ScratchParts<void*>& scratch) {
  Lowered step{part_of(p, Op::kNorm), {}};
  step.problem.norm = p.norm;
  step.problem.y_dtype = p.x_dtype;
  step.problem.layout.y = scratch_rows(p, p.d);
  step.operands.x = given.x;
  step.operands.x_residual = given.x_residual;
  step.operands.norm_weight = given.norm_weight;
  step.operands.y = scratch.n;
  step.operands.x_sum = given.x_sum;
  if (!sum_given && keeps_sum(p)) {
    step.problem.layout.x_sum = {};
    step.operands.x_sum = scratch.r;
  }
  return step;
}

Lowered lower_gate_up(const Problem& p, bool norm_step, const Operands& given, bool sum_given,
                      const ScratchParts<void*>& scratch) {
  Lowered step{part_of(p, Op::kGateUp), {}};
  Problem& q = step.problem;
  q.bias_gate_up = p.bias_gate_up;
  Operands& o = step.operands;
  o.x = norm_step ? scratch.n : given.x;
  o.w_gate = given.w_gate, o.w_up = given.w_up;
  o.b_gate = given.b_gate, o.b_up = given.b_up;
  o.h = given.h;
  if (p.op != Op::kGateUp) {
    q.layout.h = scratch_rows(p, p.h);
    o.h = scratch.h;
  }
  if (p.op == Op::kMlpGrad) {
    q.save_g_u = true;
    q.layout.g_u = hidden_grad_layout(p);
    const auto [dg, du] = hidden_grads(p, given, scratch.dg_du);
    o.g = dg, o.u = du;
    return step;
  }
  q.save_g_u = p.save_g_u;
  o.g = given.g, o.u = given.u;
  if (norm_step) q.layout.x = scratch_rows(p, p.d);
  if (norm_step || !p.norm.enabled) return step;
  q.norm = p.norm;
  o.x_residual = given.x_residual;
  o.norm_weight = given.norm_weight;
  o.x_sum = given.x_sum;
  if (!sum_given && keeps_sum(p)) {
    q.layout.x_sum = {};
    o.x_sum = scratch.r;
  }
  return step;
}

// What is added to the product, in the step that writes the operator's y.
void bind_y(const Problem& p, const Operands& given, bool sum_given,
            const ScratchParts<void*>& scratch, Lowered& step) {
  Problem& q = step.problem;
  q.bias_down = p.bias_down;
  q.residual = p.residual;
  Operands& o = step.operands;
  o.b_down = given.b_down;
  o.residual = given.residual;
  o.y = given.y;
  if (p.residual != Residual::kNormInput) return;
  // r: the sum, where its owner or scratch keeps it, or x itself.
  q.residual = Residual::kOperand;
  q.layout.residual = !p.norm.add ? p.layout.x : sum_given ? p.layout.x_sum : Layout{};
  o.residual = !p.norm.add ? given.x : sum_given ? given.x_sum : scratch.r;
}

Lowered lower_down(const Problem& p, const Operands& given, bool sum_given,
                   const ScratchParts<void*>& scratch) {
  Lowered step{part_of(p, Op::kDown), {}};
  Operands& o = step.operands;
  o.h = given.h;
  if (p.op != Op::kDown) {
    o.h = scratch.h;
    step.problem.layout.h = scratch_rows(p, p.h);
  }
  o.w_down = given.w_down;
  if (reduces(p)) {  // n is read by now
    o.y = scratch.n;
    step.problem.layout.y = {};
  } else {
    bind_y(p, given, sum_given, scratch, step);
  }
  return step;
}

Lowered lower_all_reduce(const Problem& p, const Operands& given, bool sum_given,
                         const ScratchParts<void*>& scratch) {
  Lowered step{part_of(p, Op::kAllReduce), {}};
  step.problem.reduce = p.reduce;
  step.problem.layout.x = {};
  step.operands.x = scratch.n;
  step.operands.next_norm_weight = given.next_norm_weight;
  step.operands.y_norm = given.y_norm;
  bind_y(p, given, sum_given, scratch, step);
  return step;
}

Lowered lower_gate_up_grad(const Problem& p, const Operands& given,
                           const ScratchParts<void*>& scratch) {
  Lowered step{part_of(p, Op::kGateUpGrad), {}};
  step.problem.layout.dg_du = hidden_grad_layout(p);
  step.problem.layout.h = scratch_rows(p, p.h);
  const auto [dg, du] = hidden_grads(p, given, scratch.dg_du);
  Operands& o = step.operands;
  o.dy = given.dy;
  o.w_down = given.w_down;
  o.dg = dg, o.du = du;
  o.g = given.g, o.u = given.u;
  o.h = given.dw_down == nullptr ? nullptr : scratch.h;
  if (p.recompute) {  // gate_up left them there, and h
    step.problem.layout.g_u = step.problem.layout.dg_du;
    o.g = dg, o.u = du;
    o.h = nullptr;
  }
  return step;
}

Lowered lower_input_grad(const Problem& p, const Operands& given,
                         const ScratchParts<void*>& scratch) {
  Lowered step{part_of(p, Op::kInputGrad), {}};
  step.problem.layout.dg_du = hidden_grad_layout(p);
  const auto [dg, du] = hidden_grads(p, given, scratch.dg_du);
  Operands& o = step.operands;
  o.dg = dg, o.du = du;
  o.w_gate = given.w_gate, o.w_up = given.w_up;
  o.dx = given.dx;
  return step;
}

Lowered lower_weight_grad(const Problem& p, bool down, const Operands& given,
                          const ScratchParts<void*>& scratch) {
  Lowered step{part_of(p, Op::kWeightGrad), {}};
  Problem& q = step.problem;
  q.accumulate_dw = p.accumulate_dw;
  Operands& o = step.operands;
  if (down) {  // the left side is dy, the right one h
    q.h = p.d, q.d = p.h;
    q.layout.dg_du = p.layout.dy;
    q.layout.x = scratch_rows(p, p.h);
    q.layout.dw_gate_up = p.layout.dw_down;
    o.dg = const_cast<void*>(given.dy);
    o.x = scratch.h;
    o.dw_gate = given.dw_down;
    return step;
  }
  q.layout.dg_du = hidden_grad_layout(p);
  const auto [dg, du] = hidden_grads(p, given, scratch.dg_du);
  o.dg = dg, o.du = du;
  o.x = given.x;
  o.dw_gate = given.dw_gate, o.dw_up = given.dw_up;
  return step;
}

Lowered lower_column_sum(const Problem& p, Role role, const Operands& given,
                         const ScratchParts<void*>& scratch) {
  Lowered step{part_of(p, Op::kColumnSum), {}};
  Problem& q = step.problem;
  q.accumulate_dw = p.accumulate_dw;
  Operands& o = step.operands;
  if (role == Role::kColumnSumDown) {
    q.h = p.d;
    q.layout.dg_du = p.layout.dy;
    o.dg = const_cast<void*>(given.dy);
    o.db_gate = given.db_down;
    return step;
  }
  q.layout.dg_du = hidden_grad_layout(p);
  const auto [dg, du] = hidden_grads(p, given, scratch.dg_du);
  o.dg = role == Role::kColumnSumGate ? dg : du;
  o.db_gate = role == Role::kColumnSumGate ? given.db_gate : given.db_up;
  return step;
}

// Whether the step is all of the operator.
bool is_all(const Problem& p, Role role, bool norm_step) {
  switch (role) {
    case Role::kWhole:
      return true;
    case Role::kNorm:
      return p.op == Op::kNorm;
    case Role::kGateUp:
      return p.op == Op::kGateUp && !norm_step;
    case Role::kDown:
      return p.op == Op::kDown && !reduces(p);
    case Role::kAllReduce:
      return false;
    default:
      return p.op != Op::kMlpGrad;
  }
}

}  // namespace

const char* name_of(Role role, Op op) noexcept {
  switch (role) {
    case Role::kWhole:
      return to_string(op);
    case Role::kNorm:
      return "norm";
    case Role::kGateUp:
      return "gate_up";
    case Role::kDown:
      return "down";
    case Role::kGateUpGrad:
      return "gate_up_grad";
    case Role::kInputGrad:
      return "input_grad";
    case Role::kWeightGrad:
      return "weight_grad";
    case Role::kWeightGradDown:
      return "weight_grad_down";
    case Role::kColumnSumGate:
      return op == Op::kColumnSum ? "column_sum" : "column_sum_gate";
    case Role::kColumnSumUp:
      return "column_sum_up";
    case Role::kColumnSumDown:
      return "column_sum_down";
    case Role::kAllReduce:
      return "all_reduce";
  }
  return "invalid role";
}

Lowered lower(const Problem& p, Role role, bool norm_step, const Operands* given,
              const ScratchParts<void*>& scratch) noexcept {
  static constexpr Operands kNone{};
  const Operands& operands = given == nullptr ? kNone : *given;
  if (is_all(p, role, norm_step)) return {p, operands};
  const bool sum_given = given == nullptr || given->x_sum != nullptr;
  switch (role) {
    case Role::kNorm:
      return lower_norm(p, operands, sum_given, scratch);
    case Role::kGateUp:
      return lower_gate_up(p, norm_step, operands, sum_given, scratch);
    case Role::kDown:
      return lower_down(p, operands, sum_given, scratch);
    case Role::kGateUpGrad:
      return lower_gate_up_grad(p, operands, scratch);
    case Role::kInputGrad:
      return lower_input_grad(p, operands, scratch);
    case Role::kWeightGrad:
    case Role::kWeightGradDown:
      return lower_weight_grad(p, role == Role::kWeightGradDown, operands, scratch);
    case Role::kAllReduce:
      return lower_all_reduce(p, operands, sum_given, scratch);
    default:
      return lower_column_sum(p, role, operands, scratch);
  }
}

bool has_norm_step(std::span<const PlannedStep> steps) noexcept {
  return !steps.empty() && steps.front().role == Role::kNorm;
}

ScratchParts<std::size_t> scratch_bytes(const Problem& p, const Device& device, int threads,
                                        std::span<const PlannedStep> steps) noexcept {
  ScratchParts<std::size_t> bytes;
  const bool norm_step = has_norm_step(steps);
  const auto matrix = [&](std::int64_t cols) {
    return static_cast<std::size_t>(p.m * scratch_row_bytes(p, cols));
  };
  const bool whole = steps.front().role == Role::kWhole;
  const bool grad = p.op == Op::kMlpGrad;
  if (!whole) {
    if ((norm_step && p.op != Op::kNorm) || reduces(p)) bytes.n = matrix(p.d);
    if (p.norm.enabled && keeps_sum(p)) bytes.r = matrix(p.d);
    if (p.op == Op::kMlp || grad) bytes.h = matrix(p.h);
    if (grad && !p.save_dg_du) bytes.dg_du = matrix(2 * p.h);
  }
  for (const PlannedStep& step : steps) {
    if (step.kernel->scratch_bytes == nullptr) continue;
    const Problem q = lower(p, step.role, norm_step, nullptr, {}).problem;
    bytes.kernel =
        std::max(bytes.kernel, step.kernel->scratch_bytes({q, device, step.config, threads}));
  }
  return bytes;
}

}  // namespace sluice::detail
