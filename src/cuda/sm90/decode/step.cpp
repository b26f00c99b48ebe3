// SPDX-License-Identifier: Apache-2.0
// cuda.sm90_decode: gate_up (with a deferred norm) and down on Hopper for up to 160 tokens. A
// launch of gate_up brings the first weights of the launch of down behind it into L2.
#include <algorithm>
#include <array>
#include <cstdio>

#include "cuda/host/tensor_map.hpp"
#include "cuda/kernel_rows.hpp"
#include "cuda/operands.hpp"
#include "cuda/refusals.hpp"
#include "cuda/sm90/copied_rows.hpp"
#include "cuda/sm90/decode/params.hpp"
#include "cuda/sm90/decode/schedule.hpp"
#include "cuda/sm90/gemm/table.hpp"
#include "cuda/sm90/out_of_reach.hpp"
#include "cuda/sm90/refusals.hpp"
#include "cuda/sm90/tensor_maps.hpp"
#include "math/gate.hpp"

namespace sluice::cuda {
namespace {

using detail::Reason;
using detail::refuse;
using detail::Step;
using detail::StepView;
using sm90::decode::kSpanColumns;
using sm90::decode::Params;
using sm90::decode::Shape;
using sm90::decode::Tiling;
using ll = long long;

bool is_gate_up(const Problem& p) { return p.op == Op::kGateUp; }

Reason feature_refusal(const Problem& p) {
  if (p.save_g_u) return refuse("does not store g and u");
  if (p.m > sm90::decode::kMaxTokens) {
    return refuse("takes up to %d tokens, got %lld", sm90::decode::kMaxTokens, ll{p.m});
  }
  // The schedule multiplies counts of rows, columns and CTAs in 64 bits.
  constexpr std::int64_t kMaxDim = std::int64_t{1} << 24;
  if (p.d >= kMaxDim || p.h >= kMaxDim) {
    return refuse("d and h are %lld and %lld, wanted less than %lld", ll{p.d}, ll{p.h},
                  ll{kMaxDim});
  }
  return {};
}

// Why the weights cannot come by tensor maps.
Reason box_refusal(const Problem& p) {
  return is_gate_up(p) ? pair_view_refusal(operand_spec(p, Operand::kWGate))
                       : matrix_view_refusal(operand_spec(p, Operand::kWDown));
}

Operand input_of(const Problem& p) { return is_gate_up(p) ? Operand::kX : Operand::kH; }

OperandSpec input_spec(const Problem& p) { return operand_spec(p, input_of(p)); }

Shape shape_of(const Problem& p, const Device& device) {
  return {.m = p.m,
          .d = p.d,
          .h = p.h,
          .down = !is_gate_up(p),
          .sm_count = device.sm_count,
          .boxes = box_refusal(p).empty(),
          .norm = p.norm.enabled,
          .pitch = sm90::gemm::pitch_of(input_spec(p).layout.row_stride_bytes),
          .copy_input = sm90::copy_of(input_spec(p)),
          .memory_bytes_per_second = device.memory_bytes_per_second > 0
                                         ? device.memory_bytes_per_second
                                         : Shape{}.memory_bytes_per_second};
}

// Why gate_up cannot multiply r (w + offset) and scale the sums.
Reason deferral_refusal(const Problem& p) {
  if (p.x_dtype != DType::kBF16) {
    return refuse("defers the norm's scale: %s may not hold what is not scaled yet",
                  to_string(p.x_dtype));
  }
  if (p.norm.weight_offset != 0 && p.norm.weight_offset != 1) {
    return refuse("norm.weight_offset: got %g, wanted 0 or 1",
                  static_cast<double>(p.norm.weight_offset));
  }
  if (p.m > sm90::decode::kRowTokens) {
    return refuse("defers the norm's scale for up to %d tokens, got %lld", sm90::decode::kRowTokens,
                  ll{p.m});
  }
  for (const Operand id : {Operand::kX, Operand::kXResidual}) {
    if (!is_used(p, id)) continue;
    if (Reason reason = matrix_view_refusal(operand_spec(p, id)); !reason.empty()) return reason;
  }
  return box_refusal(p);
}

Reason shape_refusal(const Problem& p) {
  // Weights and activations move by bulk copies of rows, and the norm reads its rows by 16 bytes.
  for (const Operand id :
       {Operand::kXResidual, Operand::kXSum, Operand::kWGate, Operand::kWUp, Operand::kWDown}) {
    if (!is_used(p, id)) continue;
    if (Reason reason = stride_refusal(operand_spec(p, id)); !reason.empty()) return reason;
  }
  if (p.m > sm90::decode::kSpanTokens) {
    if (Reason reason = box_refusal(p); !reason.empty()) return reason;
  }
  if (p.norm.enabled) return deferral_refusal(p);
  return sm90::copied_view_refusal(input_spec(p));
}

Reason supports(const Problem& p, const Device& device) noexcept {
  if (Reason reason = sm90::device_refusal(device); !reason.empty()) return reason;
  if (Reason reason = feature_refusal(p); !reason.empty()) return reason;
  if (Reason reason = half_type_refusal(p); !reason.empty()) return reason;
  if (Reason reason = unit_refusal(p); !reason.empty()) return reason;
  return shape_refusal(p);
}

std::size_t configs(const Problem& p, const Device& device, std::span<KernelConfig> out) noexcept {
  std::array<Tiling, detail::kMaxConfigs> tilings;
  const std::size_t count =
      std::min(tilings.size(), sm90::decode::ranked(shape_of(p, device), tilings));
  return detail::offer<Tiling>(std::span(tilings).first(count), out);
}

/// The parameters of one launch.
class Launcher {
 public:
  Launcher(const Step& step) : step_(step), p_(step.problem) {}  // NOLINT: a local

  Status gate_up(const Step* next) {
    if (tiling_.boxes && !sm90::pairs_in_reach(step_)) return sm90::gate_up_out_of_reach(step_);
    SLUICE_TRY(set_input(Operand::kX, params_.x, params_.x_map));
    params_.w_gate = rows_of(step_, Operand::kWGate);
    params_.w_up = rows_of(step_, Operand::kWUp);
    if (tiling_.boxes) SLUICE_TRY(set_pair_boxes());
    params_.h_out = row_major(step_, Operand::kH);
    params_.b_gate = step_.pointer(Operand::kBGate);
    params_.b_up = step_.pointer(Operand::kBUp);
    if (p_.norm.enabled) SLUICE_TRY(set_norm());
    if (next != nullptr && next->kernel == step_.kernel && next->problem.op == Op::kDown) {
      params_.w_down = rows_of(*next, Operand::kWDown);
      params_.next = sm90::decode::prefetch_of(tiling_, detail::config_as<Tiling>(next->config),
                                               static_cast<int>(p_.d), static_cast<int>(p_.h),
                                               step_.device.sm_count);
    }
    return start();
  }

  Status down() {
    SLUICE_TRY(set_input(Operand::kH, params_.h_in, params_.h_map));
    params_.w_down = rows_of(step_, Operand::kWDown);
    if (tiling_.boxes) {
      SLUICE_TRY(sm90::encode_boxes(step_, Operand::kWDown, {kSpanColumns, tile::kMmaRows},
                                    params_.w_down_map));
    }
    params_.y = row_major(step_, Operand::kY);
    params_.b_down = step_.pointer(Operand::kBDown);
    if (p_.residual == Residual::kOperand) params_.residual = row_major(step_, Operand::kResidual);
    return start();
  }

 private:
  // Many tokens come by boxes; columns outside the matrix read as 0.
  Status set_input(Operand id, tile::RowMajor& rows, CUtensorMap& map) const {
    rows = row_major(step_, id);
    if (!tiling_.boxes && tiling_.tokens <= sm90::decode::kRowTokens) return {};
    return sm90::encode_boxes(step_, id, {kSpanColumns, static_cast<int>(p_.m)}, map);
  }

  // Boxes of eight gate and eight up rows.
  Status set_pair_boxes() {
    const auto pairs = sm90::encode_pairs(step_, 1, 1);
    if (!pairs) return pairs.error();
    params_.w_pair_map = pairs->map;
    params_.pair = pairs->walk;
    params_.up_first = pairs->up_first;
    return {};
  }

  Status set_norm() {
    params_.norm.weight = step_.pointer(Operand::kNormWeight);
    params_.norm.weight_offset = p_.norm.weight_offset;
    params_.norm.eps = p_.norm.eps;
    if (!p_.norm.add) return {};
    params_.norm.r = row_major(step_, Operand::kXSum);
    return set_input(Operand::kXResidual, params_.norm.residual, params_.x_residual_map);
  }

  Status start() {
    const bool down = !is_gate_up(p_);
    params_.m = static_cast<int>(p_.m);
    params_.d = static_cast<int>(p_.d);
    params_.h = static_cast<int>(p_.h);
    params_.gate = p_.gate;
    params_.plain_gate = math::is_plain(p_.gate) ? 1 : 0;
    params_.split = tiling_.split;
    params_.weights_static = p_.weights_static ? 1 : 0;
    params_.gate_up = down ? 0 : 1;
    sm90::decode::Launch launch;
    launch.tiling = tiling_;
    launch.dtype = p_.x_dtype;
    launch.device = step_.device.ordinal;
    launch.ctas = sm90::decode::ctas_of(tiling_, shape_of(p_, step_.device));
    params_.shares = sm90::decode::launch_shares(tiling_, down, params_.d, params_.h, launch.ctas);
    launch.stream = step_.stream;
    return sm90::decode::launch_decode(launch, params_);
  }

  const Step& step_;
  const Problem& p_;
  Tiling tiling_ = detail::config_as<Tiling>(step_.config);
  Params params_{};
};

bool copies_input(const Problem& p, const Device& device) {
  return !sm90::lies_in_whole_lines(input_spec(p)) &&
         sm90::decode::copies_input(shape_of(p, device));
}

Status launch_as_it_lies(const Step& step, const Step* next) {
  Launcher launcher(step);
  return is_gate_up(step.problem) ? launcher.gate_up(next) : launcher.down();
}

Status launch(const Step& step, const Step* next) noexcept {
  if (!copies_input(step.problem, step.device)) return launch_as_it_lies(step, next);
  sm90::CopiedRows copied(step);
  SLUICE_TRY(copied.copy(input_of(step.problem)));
  return launch_as_it_lies(copied.step(), next);
}

std::size_t scratch_bytes(const StepView& s) noexcept {
  if (copies_input(s.problem, s.device)) {
    return static_cast<std::size_t>(sm90::copy_bytes(input_spec(s.problem)));
  }
  return sm90::out_of_reach_bytes(s.problem);
}

std::string describe(const StepView& s) {
  const auto t = detail::config_as<Tiling>(s.config);
  const bool down = !is_gate_up(s.problem);
  const int ctas = sm90::decode::ctas_of(t, shape_of(s.problem, s.device));
  const auto d = static_cast<int>(s.problem.d);
  const auto h = static_cast<int>(s.problem.h);
  const sm90::decode::Shares shares = sm90::decode::launch_shares(t, down, d, h, ctas);
  char text[320];
  std::snprintf(
      text, sizeof(text),
      "%d CTAs on %d SMs, %d on the same rows; each streams %d weight rows in %d blocks, "
      "stages of %d x %d, %d deep, by %s",
      ctas, s.device.sm_count, t.split,
      shares.units.part(0).size() * sm90::decode::unit_size(t.boxes, !down) * (down ? 1 : 2),
      shares.blocks, t.rows, t.depth, t.stages,
      t.boxes ? "TMA tiles and wgmma" : "bulk copies of rows and mma.sync");
  if (copies_input(s.problem, s.device)) {
    return std::string("rows of the input copied to whole lines of L2 first; ") + text;
  }
  return std::string(text) +
         (s.problem.norm.enabled ? "; the norm's scale comes after the sums" : "");
}

}  // namespace

const detail::Kernel kSm90Decode = {
    .name = "cuda.sm90_decode",
    .ops = {Op::kGateUp, Op::kDown},
    .supports = supports,
    .configs = configs,
    .name_config = detail::name_as<Tiling, sm90::decode::name_tiling>,
    .launch = launch,
    .describe = describe,
    .scratch_bytes = scratch_bytes,
};

Reason deferred_norm_yields(const Problem& p, const Device& device) noexcept {
  if (sm90::decode::defers_norm(p.d, p.h, device.sm_count)) return {};
  return refuse("a launch of the norm costs less than to defer it where weights are %lld MB",
                6 * ll{p.d} * ll{p.h} / 1'000'000);
}

// Up to 96 tokens the stream of weights is ahead nearly everywhere. Then the tensor cores take as
// long, and a share that is no whole number of blocks costs products. Of linears own tiles, and
// cuBLASLt's with a residual, which is a launch more, take 1.1 of the estimate.
Reason decode_outrun(std::span<const Problem> steps, const Device& device) noexcept {
  constexpr std::int64_t kAheadTokens = 96;
  // At the power limit long launches take longer than the model says, 12 % at 1.4 GB. Half as much
  // again spares two of three losses.
  constexpr double kLongerAByte = 1 / 8e9;
  constexpr double kOwnLinear = 1.1;  // of the estimate
  if (steps.front().m <= kAheadTokens) return {};
  const bool library =
      kCublasLt.supports(steps.back(), device).empty() && steps.back().residual == Residual::kNone;
  double own = 0;
  double tiles = 0;
  double bytes = 0;
  for (const Problem& step : steps) {
    const Shape shape = shape_of(step, device);
    std::array<Tiling, 1> best;
    sm90::decode::ranked(shape, best);
    own += sm90::decode::model_us(best[0], shape);
    tiles += sm90::decode::tiles_us(shape) * (shape.down && !library ? kOwnLinear : 1);
    bytes += static_cast<double>(step.d * step.h) * (shape.down ? 2 : 4);
  }
  own *= 1 + bytes * kLongerAByte;
  if (own <= tiles) return {};
  return refuse("estimated at %.4g us, tiles at %.4g us", own, tiles);
}

// The first pair; then every tiling with the best of the other launch; then the other pairs, those
// of good tilings before those of bad ones, as many as there is room for.
std::size_t decode_pairs(const Problem& first, const Problem& second, const Device& device,
                         std::span<std::array<KernelConfig, 2>> out) noexcept {
  std::array<Tiling, detail::kMaxConfigs> gate_up;
  std::array<Tiling, detail::kMaxConfigs> down;
  Shape first_shape = shape_of(first, device);
  Shape second_shape = shape_of(second, device);
  // One kind for both: what feeds the one by rows feeds the other so.
  first_shape.boxes = second_shape.boxes = first_shape.boxes && second_shape.boxes;
  const std::size_t firsts = sm90::decode::ranked(first_shape, gate_up);
  const std::size_t seconds = sm90::decode::ranked(second_shape, down);
  if (firsts == 0 || seconds == 0) return 0;
  const sm90::decode::TilingPair best = sm90::decode::first_pair(
      std::span(gate_up).first(firsts), first_shape, std::span(down).first(seconds), second_shape);
  std::size_t count = 0;
  const auto put = [&](const sm90::decode::TilingPair& pair) {
    if (count == detail::kMaxConfigs) return;
    if (count < out.size()) {
      out[count] = {detail::to_config(gate_up[pair.gate_up]), detail::to_config(down[pair.down])};
    }
    ++count;
  };
  const auto offer = [&](std::size_t i, std::size_t j) {
    const sm90::decode::TilingPair pair{i, j};
    if (i < firsts && j < seconds && pair != best) put(pair);
  };
  put(best);
  offer(0, 0);
  const std::size_t longest = std::max(firsts, seconds);
  for (std::size_t i = 1; i < longest; ++i) {
    offer(i, 0);
    offer(0, i);
  }
  for (std::size_t sum = 2; sum < firsts + seconds; ++sum) {
    for (std::size_t i = 1; i < sum; ++i) offer(i, sum - i);
  }
  return count;
}

}  // namespace sluice::cuda
