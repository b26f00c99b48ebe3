// SPDX-License-Identifier: Apache-2.0
#include "harness/unfused.hpp"

#include <algorithm>
#include <bit>

#include "harness/verify.hpp"
#include "sluice/operands.hpp"

namespace sluice::harness {
namespace {

// How the two projections see the weights.
struct Projection {
  bool merged = false;
  Layout weights{};                      // of [2H, D] or of each [H, D]
  Layout pre_activations{};              // of g and u, each
  std::int64_t second_offset_bytes = 0;  // of the second half in the merged output
};

Error no_gemm(const Layout& layout) {
  return make_error(
      ErrorCode::kUnsupported,
      "own_unfused: w_gate, w_up in blocks of %lld rows are no matrix of a plain GEMM",
      static_cast<long long>(layout.block_rows));
}

Expected<Projection> projection(const Problem& p, std::int64_t pair_offset_bytes) {
  const Layout w = operand_specs(p)[static_cast<std::size_t>(Operand::kWGate)].layout;
  const std::int64_t element = size_bytes(p.x_dtype);
  const std::int64_t offset = std::abs(pair_offset_bytes);
  const bool blocked = w.block_rows != 0 && w.block_rows < p.h;
  Projection out;
  // Rows of both halves at one even distance?
  const bool concat = !blocked && offset == p.h * w.row_stride_bytes;
  const bool even = blocked && p.h % w.block_rows == 0 &&
                    w.block_stride_bytes == 2 * w.block_rows * w.row_stride_bytes &&
                    offset == w.block_rows * w.row_stride_bytes;
  if ((concat || even) && offset != 0 && !p.bias_gate_up) {
    out.merged = true;
    out.weights.row_stride_bytes = w.row_stride_bytes;
    out.pre_activations = even ? interleaved_cols(w.block_rows, p.h, p.x_dtype) : Layout{};
    out.pre_activations.row_stride_bytes = 2 * p.h * element;
    out.second_offset_bytes = (even ? w.block_rows : p.h) * element;
    return out;
  }
  if (blocked && w.block_rows != 1) return no_gemm(w);
  // Single rows in turn are an ordinary matrix with a longer stride.
  out.weights.row_stride_bytes = blocked ? w.block_stride_bytes : w.row_stride_bytes;
  return out;
}

// The promise that holds for a pointer this many bytes behind an aligned one.
std::int64_t alignment_at(std::int64_t offset_bytes, std::int64_t promised) {
  if (offset_bytes == 0) return promised;
  const auto low = std::int64_t{1} << std::countr_zero(static_cast<std::uint64_t>(offset_bytes));
  return std::min(low, promised);
}

Problem base_problem(const Problem& p, Op op) {
  Problem out;
  out.op = op;
  out.m = p.m;
  out.d = p.d;
  out.h = p.h;
  out.x_dtype = p.x_dtype;
  out.w_dtype = p.w_dtype;
  out.y_dtype = p.y_dtype;
  out.alignment_bytes = p.alignment_bytes;
  out.weights_static = p.weights_static;
  return out;
}

Status allocate(Rig& rig, std::int64_t bytes, RigBuffer& out) {
  auto buffer = RigBuffer::make(rig, static_cast<std::size_t>(bytes));
  if (!buffer) return buffer.error();
  out = std::move(*buffer);
  return {};
}

}  // namespace

Status UnfusedMlp::plan_all(const Problem& p, std::int64_t pair_offset_bytes, Rig& rig, int threads,
                            const char* variant) {
  const auto shape = projection(p, pair_offset_bytes);
  if (!shape) return shape.error();
  op_ = p.op;
  merged_ = shape->merged;
  up_first_ = pair_offset_bytes < 0;
  second_offset_bytes_ = shape->second_offset_bytes;

  Problem project = base_problem(p, Op::kDown);
  project.d = merged_ ? 2 * p.h : p.h;
  project.h = p.d;
  project.y_dtype = p.x_dtype;
  project.bias_down = p.bias_gate_up;
  project.layout.h = p.layout.x;
  project.layout.w_down = shape->weights;

  Problem gate = base_problem(p, Op::kGateMul);
  gate.gate = p.gate;
  gate.layout.g_u = shape->pre_activations;
  if (p.op == Op::kGateUp) gate.layout.h = p.layout.h;
  gate.alignment_bytes = alignment_at(second_offset_bytes_, p.alignment_bytes);

  Problem down = base_problem(p, Op::kDown);
  down.bias_down = p.bias_down;
  down.residual = p.residual;
  down.layout.w_down = p.layout.w_down;
  down.layout.y = p.layout.y;
  down.layout.residual = p.layout.residual;

  std::size_t workspace_bytes = 0;
  const auto make_plan = [&](const Problem& problem, Plan& out) -> Status {
    auto made = plan(problem, rig.device(), {.variant = variant, .threads = threads});
    if (!made && variant != nullptr) made = plan(problem, rig.device(), {.threads = threads});
    if (!made) return made.error();
    out = *made;
    workspace_bytes = std::max(workspace_bytes, out.workspace_bytes);
    return {};
  };
  SLUICE_TRY(make_plan(project, project_));
  SLUICE_TRY(make_plan(gate, gate_));
  if (p.op == Op::kMlp) SLUICE_TRY(make_plan(down, down_));

  const std::int64_t half = p.m * p.h * size_bytes(p.x_dtype);
  SLUICE_TRY(allocate(rig, merged_ ? 2 * half : half, g_));
  if (!merged_) SLUICE_TRY(allocate(rig, half, u_));
  if (p.op == Op::kMlp) SLUICE_TRY(allocate(rig, half, h_));
  if (workspace_bytes == 0) return {};
  SLUICE_TRY(allocate(rig, static_cast<std::int64_t>(workspace_bytes), workspace_memory_));
  workspace_ = {workspace_memory_.data(), workspace_bytes};
  return workspace_init(workspace_, rig.device(), rig.stream());
}

Expected<std::unique_ptr<UnfusedMlp>> UnfusedMlp::make(const Problem& problem,
                                                       std::int64_t pair_offset_bytes, Rig& rig,
                                                       int threads, const char* variant) {
  if (problem.op != Op::kMlp && problem.op != Op::kGateUp) {
    return make_error(ErrorCode::kUnsupported, "own_unfused: %s is not made of other operators",
                      to_string(problem.op));
  }
  if (problem.norm.enabled) {
    return make_error(ErrorCode::kUnsupported, "own_unfused: no operator is a norm alone");
  }
  if (problem.save_g_u) {
    return make_error(ErrorCode::kUnsupported, "own_unfused: does not save g and u");
  }
  SLUICE_TRY(validate(problem));
  std::unique_ptr<UnfusedMlp> out(new UnfusedMlp);
  SLUICE_TRY(out->plan_all(problem, pair_offset_bytes, rig, threads, variant));
  return out;
}

std::int64_t UnfusedMlp::extra_bytes() const {
  return static_cast<std::int64_t>(g_.bytes() + u_.bytes() + h_.bytes() + workspace_.bytes);
}

Run UnfusedMlp::bind(const Operands& operands) {
  return [this, operands](Stream stream) { return enqueue(operands, stream); };
}

Status UnfusedMlp::enqueue(const Operands& o, Stream stream) const {
  char* g = g_.data();
  char* u = merged_ ? g + second_offset_bytes_ : u_.data();
  if (merged_ && up_first_) std::swap(g, u);

  Operands project;
  project.h = const_cast<void*>(o.x);  // read only: the input of `down`
  if (merged_) {
    project.w_down = up_first_ ? o.w_up : o.w_gate;
    project.y = g_.data();
    SLUICE_TRY(run(project_, project, workspace_, stream));
  } else {
    project.w_down = o.w_gate;
    project.b_down = o.b_gate;
    project.y = g;
    SLUICE_TRY(run(project_, project, workspace_, stream));
    project.w_down = o.w_up;
    project.b_down = o.b_up;
    project.y = u;
    SLUICE_TRY(run(project_, project, workspace_, stream));
  }
  Operands gate;
  gate.g = g;
  gate.u = u;
  gate.h = op_ == Op::kMlp ? h_.data() : o.h;
  SLUICE_TRY(run(gate_, gate, workspace_, stream));
  if (op_ == Op::kGateUp) return {};

  Operands down;
  down.h = h_.data();
  down.w_down = o.w_down;
  down.b_down = o.b_down;
  down.residual = o.residual;
  down.y = o.y;
  return run(down_, down, workspace_, stream);
}

}  // namespace sluice::harness
