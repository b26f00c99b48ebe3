// SPDX-License-Identifier: Apache-2.0
// What a step's problem and operands are.
#include "core/lower.hpp"

#include <algorithm>
#include <iterator>

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

// An operator whose steps are asked for.
struct Whole {
  const Problem& problem;
  bool norm_step;
  const Operands& given;
  bool sum_given;
  const ScratchParts<void*>& scratch;
};

// dg and du where a backward pass keeps them: operands, or the halves of scratch's rows.
struct HiddenGrads {
  Layout layout;
  void* dg;
  void* du;
};

HiddenGrads hidden_grads(const Whole& whole) {
  const Problem& p = whole.problem;
  if (p.save_dg_du) return {p.layout.dg_du, whole.given.dg, whole.given.du};
  constexpr std::int64_t kAlignment = 16;  // of du's rows too
  const std::int64_t half_bytes =
      (p.h * size_bytes(p.x_dtype) + kAlignment - 1) / kAlignment * kAlignment;
  char* const base = static_cast<char*>(whole.scratch.dg_du);
  return {
      {.row_stride_bytes = 2 * half_bytes}, base, base == nullptr ? nullptr : base + half_bytes};
}

void bind_hidden_grads(const Whole& whole, Lowered& step) {
  const auto [layout, dg, du] = hidden_grads(whole);
  step.problem.layout.dg_du = layout;
  step.operands.dg = dg, step.operands.du = du;
}

// dy as the left side of a product or the summand of down's gradients.
void bind_dy(const Whole& whole, Lowered& step) {
  step.problem.h = whole.problem.d;
  step.problem.layout.dg_du = whole.problem.layout.dy;
  step.operands.dg = const_cast<void*>(whole.given.dy);
}

bool keeps_sum(const Problem& p) { return p.norm.add && p.residual == Residual::kNormInput; }

void bind_norm(const Whole& whole, Lowered& step) {
  const auto& [p, norm_step, given, sum_given, scratch] = whole;
  step.problem.norm = p.norm;
  step.operands.x_residual = given.x_residual;
  step.operands.norm_weight = given.norm_weight;
  step.operands.x_sum = given.x_sum;
  if (!sum_given && keeps_sum(p)) {
    step.problem.layout.x_sum = {};
    step.operands.x_sum = scratch.r;
  }
}

void lower_norm(const Whole& whole, Lowered& step) {
  const Problem& p = whole.problem;
  bind_norm(whole, step);
  step.problem.y_dtype = p.x_dtype;
  step.problem.layout.y = scratch_rows(p, p.d);
  step.operands.x = whole.given.x;
  step.operands.y = whole.scratch.n;
}

void lower_gate_up(const Whole& whole, Lowered& step) {
  const auto& [p, norm_step, given, sum_given, scratch] = whole;
  auto& [q, o] = step;
  q.bias_gate_up = p.bias_gate_up;
  o.x = norm_step ? scratch.n : given.x;
  o.w_gate = given.w_gate, o.w_up = given.w_up;
  o.b_gate = given.b_gate, o.b_up = given.b_up;
  o.h = given.h;
  if (p.op != Op::kGateUp) {
    q.layout.h = scratch_rows(p, p.h);
    o.h = scratch.h;
  }
  if (p.op == Op::kMlpGrad) {
    const auto [layout, dg, du] = hidden_grads(whole);
    q.save_g_u = true;
    q.layout.g_u = layout;
    o.g = dg, o.u = du;
    return;
  }
  q.save_g_u = p.save_g_u;
  o.g = given.g, o.u = given.u;
  if (norm_step) {
    q.layout.x = scratch_rows(p, p.d);
  } else if (p.norm.enabled) {
    bind_norm(whole, step);
  }
}

// What is added to the product, in the step that writes the operator's y.
void bind_y(const Whole& whole, Lowered& step) {
  const auto& [p, norm_step, given, sum_given, scratch] = whole;
  auto& [q, o] = step;
  q.bias_down = p.bias_down;
  q.residual = p.residual;
  o.b_down = given.b_down;
  o.residual = given.residual;
  o.y = given.y;
  if (p.residual != Residual::kNormInput) return;
  // r: the sum, where its owner or scratch keeps it, or x itself.
  q.residual = Residual::kOperand;
  q.layout.residual = !p.norm.add ? p.layout.x : sum_given ? p.layout.x_sum : Layout{};
  o.residual = !p.norm.add ? given.x : sum_given ? given.x_sum : scratch.r;
}

void lower_down(const Whole& whole, Lowered& step) {
  const Problem& p = whole.problem;
  auto& [q, o] = step;
  o.h = whole.given.h;
  if (p.op != Op::kDown) {
    o.h = whole.scratch.h;
    q.layout.h = scratch_rows(p, p.h);
  }
  o.w_down = whole.given.w_down;
  if (reduces(p)) {  // n is read by now
    o.y = whole.scratch.n;
    q.layout.y = {};
  } else {
    bind_y(whole, step);
  }
}

void lower_all_reduce(const Whole& whole, Lowered& step) {
  step.problem.reduce = whole.problem.reduce;
  step.problem.layout.x = {};
  step.operands.x = whole.scratch.n;
  step.operands.next_norm_weight = whole.given.next_norm_weight;
  step.operands.y_norm = whole.given.y_norm;
  bind_y(whole, step);
}

void lower_gate_up_grad(const Whole& whole, Lowered& step) {
  const auto& [p, norm_step, given, sum_given, scratch] = whole;
  auto& [q, o] = step;
  bind_hidden_grads(whole, step);
  q.layout.h = scratch_rows(p, p.h);
  o.dy = given.dy;
  o.w_down = given.w_down;
  o.g = given.g, o.u = given.u;
  o.h = given.dw_down == nullptr ? nullptr : scratch.h;
  if (p.recompute) {  // gate_up left them there, and h
    q.layout.g_u = q.layout.dg_du;
    o.g = o.dg, o.u = o.du;
    o.h = nullptr;
  }
}

void lower_input_grad(const Whole& whole, Lowered& step) {
  bind_hidden_grads(whole, step);
  step.operands.w_gate = whole.given.w_gate, step.operands.w_up = whole.given.w_up;
  step.operands.dx = whole.given.dx;
}

void lower_weight_grad(const Whole& whole, Lowered& step) {
  bind_hidden_grads(whole, step);
  step.problem.accumulate_dw = whole.problem.accumulate_dw;
  step.operands.x = whole.given.x;
  step.operands.dw_gate = whole.given.dw_gate, step.operands.dw_up = whole.given.dw_up;
}

// The left side is dy, the right one h.
void lower_weight_grad_down(const Whole& whole, Lowered& step) {
  const Problem& p = whole.problem;
  auto& [q, o] = step;
  bind_dy(whole, step);
  q.accumulate_dw = p.accumulate_dw;
  q.d = p.h;
  q.layout.x = scratch_rows(p, p.h);
  q.layout.dw_gate_up = p.layout.dw_down;
  o.x = whole.scratch.h;
  o.dw_gate = whole.given.dw_down;
}

void lower_column_sum_gate(const Whole& whole, Lowered& step) {
  bind_hidden_grads(whole, step);
  step.problem.accumulate_dw = whole.problem.accumulate_dw;
  step.operands.db_gate = whole.given.db_gate;
}

void lower_column_sum_up(const Whole& whole, Lowered& step) {
  bind_hidden_grads(whole, step);
  step.problem.accumulate_dw = whole.problem.accumulate_dw;
  step.operands.dg = step.operands.du;
  step.operands.db_gate = whole.given.db_up;
}

void lower_column_sum_down(const Whole& whole, Lowered& step) {
  bind_dy(whole, step);
  step.problem.accumulate_dw = whole.problem.accumulate_dw;
  step.operands.db_gate = whole.given.db_down;
}

// What a part of an operator is by itself.
struct RoleRow {
  Role role;
  Op op;
  const char* name;
  void (*lower)(const Whole&, Lowered&);
};
constexpr RoleRow kRoles[] = {
    {Role::kNorm, Op::kNorm, "norm", lower_norm},
    {Role::kGateUp, Op::kGateUp, "gate_up", lower_gate_up},
    {Role::kDown, Op::kDown, "down", lower_down},
    {Role::kGateUpGrad, Op::kGateUpGrad, "gate_up_grad", lower_gate_up_grad},
    {Role::kInputGrad, Op::kInputGrad, "input_grad", lower_input_grad},
    {Role::kWeightGrad, Op::kWeightGrad, "weight_grad", lower_weight_grad},
    {Role::kWeightGradDown, Op::kWeightGrad, "weight_grad_down", lower_weight_grad_down},
    {Role::kColumnSumGate, Op::kColumnSum, "column_sum_gate", lower_column_sum_gate},
    {Role::kColumnSumUp, Op::kColumnSum, "column_sum_up", lower_column_sum_up},
    {Role::kColumnSumDown, Op::kColumnSum, "column_sum_down", lower_column_sum_down},
    {Role::kAllReduce, Op::kAllReduce, "all_reduce", lower_all_reduce},
};

// kWhole, which is 0, has no row.
constexpr const RoleRow& row_of(Role role) { return kRoles[static_cast<std::size_t>(role) - 1]; }

constexpr bool in_order() {
  return std::all_of(std::begin(kRoles), std::end(kRoles),
                     [](const RoleRow& row) { return &row == &row_of(row.role); });
}
static_assert(in_order() && std::size(kRoles) == static_cast<std::size_t>(Role::kAllReduce),
              "kRoles is indexed by Role");

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

// Whether the step is all of the operator.
bool is_all(const Problem& p, Role role, bool norm_step) {
  if (role == Role::kWhole) return true;
  if (row_of(role).op != p.op) return false;
  return !(role == Role::kGateUp && norm_step) && !(role == Role::kDown && reduces(p));
}

}  // namespace

Role role_of(Op op) noexcept {
  const auto* const row = std::find_if(std::begin(kRoles), std::end(kRoles),
                                       [op](const RoleRow& r) { return r.op == op; });
  return row == std::end(kRoles) ? Role::kWhole : row->role;
}

const char* name_of(Role role, Op op) noexcept {
  // Of column_sum the step is the whole.
  return role == Role::kWhole || row_of(role).op == op ? to_string(op) : row_of(role).name;
}

Lowered lower(const Problem& p, Role role, bool norm_step, const Operands* given,
              const ScratchParts<void*>& scratch) noexcept {
  static constexpr Operands kNone{};
  const Operands& operands = given == nullptr ? kNone : *given;
  if (is_all(p, role, norm_step)) return {p, operands};
  const bool sum_given = given == nullptr || given->x_sum != nullptr;
  const RoleRow& row = row_of(role);
  Lowered step{part_of(p, row.op), {}};
  row.lower({p, norm_step, operands, sum_given, scratch}, step);
  return step;
}

bool reduces(const Problem& p) noexcept { return p.reduce.kind != ReduceKind::kNone; }

Problem step_problem(const Problem& p, Role role, bool norm_step) noexcept {
  return lower(p, role, norm_step, nullptr, {}).problem;
}

std::span<const PlannedStep> steps_of(const Plan& plan) noexcept {
  return std::span(plan.steps).first(static_cast<std::size_t>(plan.step_count));
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
    const Problem q = step_problem(p, step.role, norm_step);
    bytes.kernel =
        std::max(bytes.kernel, step.kernel->scratch_bytes({q, device, step.config, threads}));
  }
  return bytes;
}

}  // namespace sluice::detail
