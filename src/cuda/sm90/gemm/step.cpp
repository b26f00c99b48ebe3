// SPDX-License-Identifier: Apache-2.0
// cuda.sm90_gemm: gate_up, down and the products of the backward pass on Hopper's tensor cores,
// from weights as they lie. One persistent GEMM a launch (kernel.cuh, stream_k/kernel.cuh), between
// copies of its input, residual and output where those pay or tensor maps do not walk them.
#include <algorithm>
#include <array>
#include <cstdio>

#include "cuda/host/tensor_map.hpp"
#include "cuda/kernel_rows.hpp"
#include "cuda/refusals.hpp"
#include "cuda/sm90/copied_rows.hpp"
#include "cuda/sm90/gemm/products.hpp"
#include "cuda/sm90/out_of_reach.hpp"
#include "cuda/sm90/refusals.hpp"

namespace sluice::cuda {
namespace {

using detail::Reason;
using detail::refuse;
using detail::Step;
using detail::StepView;
using sm90::gemm::GemmKind;
using sm90::gemm::GemmShape;
using sm90::gemm::Tiling;
using ll = long long;

sm90::gemm::Pitch pitch_of(const Problem& p, Operand id) {
  return sm90::gemm::pitch_of(operand_spec(p, id).layout.row_stride_bytes);
}

bool is_forward(const Problem& p) { return p.op == Op::kGateUp || p.op == Op::kDown; }

// gate_up's x, or linear's h.
Operand input_of(const Problem& p) { return p.op == Op::kGateUp ? Operand::kX : Operand::kH; }

Operand output_of(const Problem& p) { return p.op == Op::kGateUp ? Operand::kH : Operand::kY; }

bool copies_output(const Problem& p) {
  return is_forward(p) &&
         sm90::copy_of(operand_spec(p, output_of(p))) == sm90::gemm::CopyRows::kMust;
}

GemmShape forward_shape(const Problem& p, const Device& device) {
  const bool gate_up = p.op == Op::kGateUp;
  const Operand weights = gate_up ? Operand::kWGate : Operand::kWDown;
  GemmShape shape = gate_up ? GemmShape{p.m, 2 * p.h, p.d, GemmKind::kGateUp, device.sm_count}
                            : GemmShape{p.m, p.d, p.h, GemmKind::kDown, device.sm_count};
  shape.narrow_l2 = sm90::gemm::has_narrow_l2(device.l2_bytes);
  shape.x_pitch = pitch_of(p, input_of(p));
  shape.copy_x = sm90::copy_of(operand_spec(p, input_of(p)));
  shape.w_pitch = pitch_of(p, weights);
  if (!gate_up) {
    shape.long_epilogue = p.residual == Residual::kOperand;
    return shape;
  }
  const Layout w = operand_spec(p, weights).layout;
  if (w.block_rows < p.h) shape.block_groups = w.block_rows / kPairGroupRows;
  shape.turns = blocks_alternate(w);
  shape.long_epilogue = p.gate.activation == Activation::kGeluErf;
  return shape;
}

GemmShape shape_of(const Problem& p, const Device& device) {
  switch (p.op) {
    case Op::kGateUpGrad:
      return {p.m, p.h, p.d, GemmKind::kGateUpGrad, device.sm_count};
    case Op::kInputGrad:
      return {p.m, p.d, 2 * p.h, GemmKind::kInputGrad, device.sm_count};
    case Op::kWeightGrad:
      return {p.h, p.d, p.m, GemmKind::kWeightGrad, device.sm_count};
    default:
      return forward_shape(p, device);
  }
}

// A residual is read by words. Rows that split them are copied first.
bool copies_residual(const Problem& p) {
  return is_used(p, Operand::kResidual) &&
         operand_spec(p, Operand::kResidual).layout.row_stride_bytes % 4 != 0;
}

// Sizes and strides that the copy engine cannot walk.
Reason shape_refusal(const Problem& p) {
  if (Reason reason = size_refusal(p); !reason.empty()) return reason;
  // g and du share the layouts of u and dg.
  for (const Operand id : {Operand::kX, Operand::kDy, Operand::kH, Operand::kWDown, Operand::kY,
                           Operand::kG, Operand::kDg, Operand::kDx}) {
    if (!is_used(p, id)) continue;
    const OperandSpec spec = operand_spec(p, id);
    const bool may_copy = is_forward(p) && (id == input_of(p) || id == output_of(p));
    Reason reason = may_copy ? sm90::copied_view_refusal(spec) : matrix_view_refusal(spec);
    if (!reason.empty()) return reason;
  }
  if (!is_used(p, Operand::kWGate)) return {};
  const OperandSpec w_gate = operand_spec(p, Operand::kWGate);
  // dx reads the weights as two plain matrices.
  return p.op == Op::kGateUp ? pair_view_refusal(w_gate) : matrix_view_refusal(w_gate);
}

// Pairs of neighbouring columns of a weight's gradient are stored at once.
Reason grad_rows_refusal(const Problem& p) {
  if (p.op != Op::kWeightGrad) return {};
  if (Reason reason = grad_type_refusal(p); !reason.empty()) return reason;
  const OperandSpec spec = operand_spec(p, Operand::kDwGate);
  return stride_refusal(spec, 2 * size_bytes(spec.dtype));
}

Reason supports(const Problem& p, const Device& device) noexcept {
  if (Reason reason = sm90::device_refusal(device); !reason.empty()) return reason;
  if (p.norm.enabled) return refuse("has no norm prologue");
  if (Reason reason = half_type_refusal(p); !reason.empty()) return reason;
  if (Reason reason = unit_refusal(p); !reason.empty()) return reason;
  if (Reason reason = shape_refusal(p); !reason.empty()) return reason;
  return grad_rows_refusal(p);
}

std::size_t configs(const Problem& p, const Device& device, std::span<KernelConfig> out) noexcept {
  std::array<Tiling, detail::kMaxConfigs> tilings;
  const GemmShape shape = shape_of(p, device);
  std::size_t count = sm90::gemm::ranked(shape, tilings);
  std::array<Tiling, 2> orders;
  const std::size_t more = sm90::gemm::loop_orders(shape, orders);
  std::copy_n(orders.begin(), more, tilings.begin() + count);
  count += more;
  return detail::offer<Tiling>(std::span(tilings).first(count), out);
}

std::size_t scratch_bytes(const StepView& s) noexcept {
  const auto tiling = detail::config_as<Tiling>(s.config);
  const GemmShape shape = shape_of(s.problem, s.device);
  std::int64_t bytes = tiling.is_stream_k() ? sm90::gemm::stream_k_partial_bytes(shape, tiling) : 0;
  if (sm90::gemm::copies_x(shape, tiling)) {
    bytes += sm90::copy_bytes(operand_spec(s.problem, input_of(s.problem)));
  }
  if (copies_residual(s.problem)) {
    bytes += sm90::copy_bytes(operand_spec(s.problem, Operand::kResidual));
  }
  if (copies_output(s.problem)) {
    bytes += sm90::copy_bytes(operand_spec(s.problem, output_of(s.problem)));
  }
  return static_cast<std::size_t>(bytes);
}

// Of a forward GEMM.
bool copies_input(const Step& step, const Tiling& tiling) {
  return !sm90::lies_in_whole_lines(step.spec(input_of(step.problem))) &&
         sm90::gemm::copies_x(shape_of(step.problem, step.device), tiling);
}

Status forward(const Step& step, const Tiling& tiling) {
  if (step.problem.op == Op::kDown) return sm90::gemm::down(step, tiling);
  return sm90::pairs_in_reach(step) ? sm90::gemm::gate_up(step, tiling)
                                    : sm90::gate_up_out_of_reach(step);
}

// The step with its input, residual and output in scratch, as far as they must or should be.
Status forward_by_copies(const Step& step, const Tiling& tiling) {
  const Problem& p = step.problem;
  sm90::CopiedRows copied(step);
  if (copies_input(step, tiling)) SLUICE_TRY(copied.copy(input_of(p)));
  if (copies_residual(p)) SLUICE_TRY(copied.copy(Operand::kResidual));
  if (!copies_output(p)) return forward(copied.step(), tiling);
  copied.hold(output_of(p));
  SLUICE_TRY(forward(copied.step(), tiling));
  return copied.copy_back(output_of(p));
}

Status launch(const Step& step, const Step* /*next*/) noexcept {
  const auto tiling = detail::config_as<Tiling>(step.config);
  switch (step.problem.op) {
    case Op::kGateUp:
    case Op::kDown:
      return forward_by_copies(step, tiling);
    case Op::kGateUpGrad:
      return sm90::gemm::gate_up_grad(step, tiling);
    case Op::kInputGrad:
      return sm90::gemm::input_grad(step, tiling);
    default:
      SLUICE_TRY(sm90::gemm::weight_grad(step, tiling, Operand::kDg, Operand::kDwGate));
      return sm90::gemm::weight_grad(step, tiling, Operand::kDu, Operand::kDwUp);
  }
}

std::string describe(const StepView& s) {
  const auto t = detail::config_as<Tiling>(s.config);
  const GemmShape shape = shape_of(s.problem, s.device);
  const std::int64_t rows = sm90::gemm::ceil_div(shape.m, t.rows);
  const std::int64_t columns = sm90::gemm::ceil_div(shape.n, t.tile_n);
  char text[320];
  int size = std::snprintf(
      text, sizeof(text), "%lld x %lld tiles of %d rows by %d weight rows, clusters of %d, %s; ",
      ll{rows}, ll{columns}, t.rows, t.tile_n, t.cluster * t.split,
      t.is_split_k()                                     ? "split K"
      : t.swaps_ab()                                     ? "swap-AB"
      : t.schedule == sm90::gemm::Schedule::kPingpong    ? "pingpong"
      : t.schedule == sm90::gemm::Schedule::kCooperative ? "cooperative"
                                                         : "cooperative stages");
  const auto room = sizeof(text) - static_cast<std::size_t>(size);
  if (t.is_stream_k()) {
    const sm90::gemm::StreamK k = sm90::gemm::stream_k_schedule(shape, t);
    const char* workers = t.cluster > 1 ? "pairs" : "workers";
    if (k.rest == 0) {
      std::snprintf(text + size, room, "stream-K: %d %s of %d stages of 64 columns", k.workers,
                    workers, k.each);
    } else {
      std::snprintf(text + size, room, "stream-K: %d %s of %d or %d stages of 64 columns",
                    k.workers, workers, k.each, k.each + 1);
    }
  } else if (t.is_split_k()) {
    std::snprintf(text + size, room, "%lld parts of k of %lld stages of 64 columns at most",
                  ll{t.split}, ll{((shape.k + 63) / 64 + t.split - 1) / t.split});
  } else {
    const std::int64_t slots = std::max(1, s.device.sm_count / t.cluster);
    const std::int64_t tiles = (rows + t.cluster - 1) / t.cluster * columns;
    std::snprintf(text + size, room, "%.2f waves on %d SMs",
                  static_cast<double>(tiles) / static_cast<double>(slots), s.device.sm_count);
  }
  std::string copied = sm90::gemm::copies_x(shape, t) ? "input" : "";
  if (copies_residual(s.problem)) copied += copied.empty() ? "residual" : " and residual";
  if (!copied.empty()) copied = "rows of the " + copied + " copied to whole lines of L2 first; ";
  return copied + text + (copies_output(s.problem) ? "; rows of the output copied last" : "");
}

}  // namespace

const detail::Kernel kSm90Gemm = {
    .name = "cuda.sm90_gemm",
    .ops = {Op::kGateUp, Op::kDown, Op::kGateUpGrad, Op::kInputGrad, Op::kWeightGrad},
    .supports = supports,
    .configs = configs,
    .name_config = detail::name_as<Tiling, sm90::gemm::name_tiling>,
    .launch = launch,
    .describe = describe,
    .scratch_bytes = scratch_bytes,
};

double sm90_gemm_us(const Problem& step, const Device& device) noexcept {
  const GemmShape shape = shape_of(step, device);
  return sm90::gemm::cost(shape, sm90::gemm::best_tiling(shape));
}

}  // namespace sluice::cuda
