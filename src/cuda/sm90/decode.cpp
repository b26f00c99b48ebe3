// SPDX-License-Identifier: Apache-2.0
// The variants cuda.sm90_decode_chain (mlp for up to 64 tokens in two launches that overlap their
// neighbours) and cuda.sm90_decode (gate_up, down, or mlp in one launch, with the norm).
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "cuda/device.hpp"
#include "cuda/norm/after_norm.hpp"
#include "cuda/prefill.hpp"
#include "cuda/sm90/decode_params.hpp"
#include "cuda/sm90/decode_schedule.hpp"
#include "cuda/sm90/refusals.hpp"
#include "cuda/tensor_map.hpp"
#include "cuda/variants.hpp"
#include "cuda/workspace.hpp"
#include "math/gate.hpp"

namespace sluice::cuda {
namespace {

using detail::Reason;
using detail::refuse;
using sm90::DecodeLaunch;
using sm90::DecodeNorm;
using sm90::DecodeParams;
using sm90::DecodeTiling;
using sm90::RowMajor;
using ll = long long;

constexpr std::int32_t kBoxColumns = 64;  // 128 bytes: one swizzle span

Reason feature_refusal(const Problem& p) {
  if (p.op != Op::kGateUp && p.op != Op::kDown && p.op != Op::kMlp) {
    return refuse("has no %s", to_string(p.op));
  }
  if (p.save_g_u) return refuse("does not store g and u");
  if (p.m > sm90::kDecodeMaxTokens) {
    return refuse("takes up to %d tokens, got %lld", sm90::kDecodeMaxTokens, ll{p.m});
  }
  // The schedule multiplies counts of rows, columns and CTAs in 64 bits.
  constexpr std::int64_t kMaxDim = std::int64_t{1} << 24;
  if (p.d >= kMaxDim || p.h >= kMaxDim) {
    return refuse("d and h are %lld and %lld, wanted less than %lld", ll{p.d}, ll{p.h},
                  ll{kMaxDim});
  }
  return {};
}

// Weights and activations move by bulk copies of rows, and the norm reads its rows by 16 bytes.
Reason stride_refusal(const OperandSpec& spec) {
  constexpr std::int64_t kUnit = 16;
  for (const std::int64_t stride : {spec.layout.row_stride_bytes, spec.layout.block_stride_bytes}) {
    if (stride % kUnit != 0) {
      return refuse("%s: a stride of %lld bytes is no multiple of %lld", spec.name, ll{stride},
                    ll{kUnit});
    }
  }
  return {};
}

// Tilings by boxes bring weights by tensor maps.
Reason box_refusal(const Problem& p, const std::array<OperandSpec, kOperandCount>& specs) {
  if (has_gate_up(p)) {
    if (const Reason reason = pair_view_refusal(spec_of(specs, Operand::kWGate)); !reason.empty()) {
      return reason;
    }
  }
  return has_down(p) ? matrix_view_refusal(spec_of(specs, Operand::kWDown)) : Reason{};
}

sm90::DecodeShape shape_of(const Problem& p, const Device& device, bool gate_up, bool down) {
  const bool boxes = box_refusal(p, operand_specs(p)).empty();
  return {p.m, p.d, p.h, gate_up, down, device.sm_count, boxes};
}

// Activations of a stage of gate_up with a deferred norm: x, and the residual.
int norm_rows(const Problem& p) {
  return p.norm.enabled ? static_cast<int>((p.norm.add ? 2 : 1) * std::max<std::int64_t>(p.m, 1))
                        : 0;
}

// Why boxes of x and the residual cannot come to gate_up with a deferred norm.
Reason norm_views_refusal(const Problem& p) {
  if (!p.norm.enabled) return {};
  const auto specs = operand_specs(p);
  for (const Operand id : {Operand::kX, Operand::kXResidual}) {
    const OperandSpec& spec = spec_of(specs, id);
    if (spec.access == Access::kUnused) continue;
    if (Reason reason = matrix_view_refusal(spec); !reason.empty()) return reason;
  }
  return {};
}

// Why gate_up cannot multiply r (w + offset) and scale the sums.
Reason deferral_refusal(const Problem& p) {
  if (!p.norm.enabled) return {};
  if (p.x_dtype != DType::kBF16) {
    return refuse("defers the norm's scale: %s may not hold what is not scaled yet",
                  to_string(p.x_dtype));
  }
  if (p.norm.weight_offset != 0 && p.norm.weight_offset != 1) {
    return refuse("norm.weight_offset: got %g, wanted 0 or 1",
                  static_cast<double>(p.norm.weight_offset));
  }
  if (p.m > sm90::kDecodeRowTokens) {
    return refuse("defers the norm's scale for up to %d tokens, got %lld", sm90::kDecodeRowTokens,
                  ll{p.m});
  }
  return {};
}

Reason shape_refusal(const Problem& p) {
  const auto specs = operand_specs(p);
  for (const Operand id : {Operand::kX, Operand::kXResidual, Operand::kXSum, Operand::kWGate,
                           Operand::kWUp, Operand::kWDown}) {
    const OperandSpec& spec = spec_of(specs, id);
    if (spec.access == Access::kUnused) continue;
    if (const Reason reason = stride_refusal(spec); !reason.empty()) return reason;
  }
  if (p.m > sm90::kDecodeSpanTokens) {
    if (const Reason reason = box_refusal(p, specs); !reason.empty()) return reason;
  }
  // Many tokens come by tensor maps: x, or the dense n of the norm; h of down, or the dense one.
  const Operand input = has_gate_up(p) ? Operand::kX : Operand::kH;
  return p.norm.enabled ? Reason{} : matrix_view_refusal(spec_of(specs, input));
}

Reason supports(const Problem& p, const Device& device) {
  if (const Reason reason = sm90::device_refusal(device); !reason.empty()) return reason;
  if (const Reason reason = feature_refusal(p); !reason.empty()) return reason;
  if (const Reason reason = half_type_refusal(p); !reason.empty()) return reason;
  if (const Reason reason = sm90::copy_refusal(p); !reason.empty()) return reason;
  return shape_refusal(p);
}

/// A config's payload: the launch of both has one tiling, each of the chain's its own.
struct Tilings {
  DecodeTiling gate_up;
  DecodeTiling down;
};

// "t16r64k256s5", or of two launches "b64r128k128s4+r64k128s6x2" where both are for as many tokens
// and of a kind (a deferred norm's "n" is gate_up's alone: behind "bn16r64k256s5" "+r64k256s5x2" is
// "b16r64k256s5x2"), "t16r64k256s5+b16r64k256s5x2" where not.
Config make_config(const char* family, const Problem& p, const Tilings& tilings) {
  char gate_up[24];
  char down[24];
  char name[kMaxName];
  sm90::name_decode_tiling(tilings.gate_up, gate_up);
  sm90::name_decode_tiling(tilings.down, down);
  const bool one = tilings.gate_up == tilings.down;
  const bool same_kind =
      tilings.gate_up.tokens == tilings.down.tokens && tilings.gate_up.boxes == tilings.down.boxes;
  std::snprintf(name, sizeof(name), "sm90.%s.%s.%s%s%s", family, to_string(p.op), gate_up,
                one ? "" : "+",
                one         ? ""
                : same_kind ? std::strchr(down, 'r')
                            : down);
  return detail::make_config(name, tilings);
}

/// What lies in the payload; dense rows in x's type.
struct Scratch {
  RowMajor n{};  // norm in a launch with a grid barrier
  RowMajor r{};  // its sum, where y needs it and the caller does not keep it
  RowMajor h{};  // mlp
  std::size_t bytes = 0;
};

enum class Launches : std::uint8_t { kOne, kChain };

Scratch lay_out(const Problem& p, Launches launches, void* payload) {
  PayloadCursor cursor(payload);
  Scratch s;
  const auto take = [&](RowMajor& part, std::int64_t cols) {
    part.row_bytes = cols * size_bytes(p.x_dtype);
    part.base = cursor.take(p.m * part.row_bytes);
  };
  if (p.norm.enabled && launches == Launches::kOne) take(s.n, p.d);
  if (p.norm.enabled && p.norm.add && p.residual == Residual::kNormInput) take(s.r, p.d);
  if (p.op == Op::kMlp) take(s.h, p.h);
  s.bytes = cursor.used();
  return s;
}

// One call of run().
class Launcher {
 public:
  Launcher(const Plan& plan, Launches launches, const Operands& operands, void* payload,
           void* header, Stream stream)
      : p_(plan.problem),
        device_(plan.device),
        tilings_(detail::payload_as<Tilings>(plan.config)),
        specs_(operand_specs(plan.problem)),
        operands_(operands),
        scratch_(lay_out(plan.problem, launches, payload)),
        header_(static_cast<WorkspaceHeader*>(header)),
        stream_(stream) {}

  // All of the operator.
  Status run() const {
    DecodeParams params{};
    fill_common(params);
    if (has_gate_up(p_)) SLUICE_TRY(fill_gate_up(params));
    if (has_down(p_)) SLUICE_TRY(fill_down(params));
    return start(params, has_down(p_) ? tilings_.down : tilings_.gate_up);
  }

  Status run_chain() const {
    DecodeParams first{};
    fill_common(first);
    SLUICE_TRY(fill_gate_up(first));
    first.w_down = weights(Operand::kWDown);
    first.next =
        sm90::decode_prefetch(tilings_.gate_up, tilings_.down, first.d, first.h, device_.sm_count);
    SLUICE_TRY(start(first, tilings_.gate_up));
    DecodeParams second{};
    fill_common(second);
    SLUICE_TRY(fill_down(second));
    fill_deferred_sum(second);
    return start(second, tilings_.down);
  }

 private:
  // Null for operands that the operator does not use.
  [[nodiscard]] RowMajor matrix(Operand id) const {
    const OperandSpec& spec = spec_of(specs_, id);
    if (spec.access == Access::kUnused) return {};
    return {const_cast<void*>(address(operands_, id)), spec.layout.row_stride_bytes};
  }

  [[nodiscard]] sm90::WeightRows weights(Operand id) const {
    const OperandSpec& spec = spec_of(specs_, id);
    const Layout& l = spec.layout;
    const bool blocks = l.block_rows > 0 && l.block_rows < spec.rows;
    return {static_cast<const char*>(address(operands_, id)), l.row_stride_bytes,
            l.block_stride_bytes, blocks ? static_cast<int>(l.block_rows) : 0};
  }

  // An input of the kernel: the operand, or the dense one of the payload. Many tokens come by
  // boxes of 64 columns; columns outside the matrix read as 0.
  Status set_input(Operand id, const RowMajor& dense, const DecodeTiling& tiling, RowMajor& rows,
                   CUtensorMap& map) const {
    rows = dense.base != nullptr ? dense : matrix(id);
    if (!tiling.boxes && tiling.tokens <= sm90::kDecodeRowTokens) return {};
    OperandSpec spec = spec_of(specs_, id);
    spec.layout = {.row_stride_bytes = rows.row_bytes};
    const auto view =
        make_matrix_view(spec, rows.base, kBoxColumns, static_cast<std::int32_t>(p_.m));
    if (!view) return view.error();
    const auto encoded = encode(*view, rows.base, TensorSwizzle::kSwizzle128);
    if (!encoded) return encoded.error();
    map = *encoded;
    return {};
  }

  // Boxes of 64 columns of eight gate and eight up rows.
  Status set_pair_boxes(DecodeParams& params) const {
    const auto pair = make_pair_view(spec_of(specs_, Operand::kWGate), operands_.w_gate,
                                     operands_.w_up, kBoxColumns, 1);
    if (!pair) return pair.error();
    const auto encoded = encode(pair->view, pair->up_first ? operands_.w_up : operands_.w_gate,
                                TensorSwizzle::kSwizzle128);
    if (!encoded) return encoded.error();
    params.w_pair_map = *encoded;
    params.pair = {pair->view.rank, static_cast<int>(pair->groups_a_block), pair->groups_a_copy,
                   pair->groups_a_turn};
    params.up_first = pair->up_first ? 1 : 0;
    return {};
  }

  Status set_down_boxes(DecodeParams& params) const {
    const auto view = make_matrix_view(spec_of(specs_, Operand::kWDown), operands_.w_down,
                                       kBoxColumns, sm90::kMmaRows);
    if (!view) return view.error();
    const auto encoded = encode(*view, operands_.w_down, TensorSwizzle::kSwizzle128);
    if (!encoded) return encoded.error();
    params.w_down_map = *encoded;
    return {};
  }

  void fill_common(DecodeParams& params) const {
    params.m = static_cast<int>(p_.m);
    params.d = static_cast<int>(p_.d);
    params.h = static_cast<int>(p_.h);
    params.gate = p_.gate;
    params.plain_gate = math::is_plain(p_.gate) ? 1 : 0;
    params.split = 1;
    params.weights_static = p_.weights_static ? 1 : 0;
    params.header = header_;
  }

  // The sum that the norm normalises, where somebody reads it.
  [[nodiscard]] RowMajor norm_sum() const {
    if (!p_.norm.add) return {};
    const RowMajor kept = matrix(Operand::kXSum);
    return kept.base != nullptr ? kept : scratch_.r;
  }

  Status fill_gate_up(DecodeParams& params) const {
    SLUICE_TRY(set_input(Operand::kX, scratch_.n, tilings_.gate_up, params.x, params.x_map));
    params.w_gate = weights(Operand::kWGate);
    params.w_up = weights(Operand::kWUp);
    if (tilings_.gate_up.boxes) SLUICE_TRY(set_pair_boxes(params));
    params.split = tilings_.gate_up.split;
    params.h_out = p_.op == Op::kMlp ? scratch_.h : matrix(Operand::kH);
    if (p_.bias_gate_up) {
      params.b_gate = operands_.b_gate;
      params.b_up = operands_.b_up;
    }
    return p_.norm.enabled ? fill_norm(params) : Status{};
  }

  Status fill_norm(DecodeParams& params) const {
    DecodeNorm& norm = params.norm;
    norm.x = matrix(Operand::kX);
    norm.weight = operands_.norm_weight;
    norm.weight_offset = p_.norm.weight_offset;
    norm.eps = p_.norm.eps;
    norm.n = scratch_.n;
    if (!p_.norm.add) return {};
    norm.residual = matrix(Operand::kXResidual);
    const bool deferred = norm.n.base == nullptr;
    if (deferred && !tilings_.gate_up.boxes) return {};  // down stores r
    norm.r = norm_sum();
    if (!deferred) return {};
    return set_input(Operand::kXResidual, {}, tilings_.gate_up, norm.residual,
                     params.x_residual_map);
  }

  // Where weights come by rows nobody in gate_up has the time to store r.
  void fill_deferred_sum(DecodeParams& params) const {
    const bool to_y = p_.residual == Residual::kNormInput;
    if (tilings_.gate_up.boxes || !p_.norm.add || (!to_y && operands_.x_sum == nullptr)) return;
    params.norm.x = matrix(Operand::kX);
    params.norm.residual = matrix(Operand::kXResidual);
    params.norm.r = matrix(Operand::kXSum);
    params.norm.r_to_y = to_y ? 1 : 0;
    if (to_y) params.residual = {};
  }

  Status fill_down(DecodeParams& params) const {
    SLUICE_TRY(set_input(Operand::kH, scratch_.h, tilings_.down, params.h_in, params.h_map));
    params.w_down = weights(Operand::kWDown);
    if (tilings_.down.boxes) SLUICE_TRY(set_down_boxes(params));
    params.y = matrix(Operand::kY);
    params.split = tilings_.down.split;
    if (p_.bias_down) params.b_down = operands_.b_down;
    if (p_.residual == Residual::kOperand) params.residual = matrix(Operand::kResidual);
    if (p_.residual == Residual::kNormInput) {
      params.residual = p_.norm.add ? norm_sum() : matrix(Operand::kX);
    }
    return {};
  }

  Status start(DecodeParams& params, const DecodeTiling& tiling) const {
    const bool gate_up = params.h_out.base != nullptr;
    const bool down = params.y.base != nullptr;
    DecodeLaunch launch;
    launch.tiling = tiling;
    launch.dtype = p_.x_dtype;
    launch.device = device_.ordinal;
    const bool has_prologue = params.norm.n.base != nullptr;
    launch.ctas = sm90::decode_ctas(tiling, {.d = p_.d,
                                             .h = p_.h,
                                             .gate_up = gate_up,
                                             .down = down,
                                             .sm_count = device_.sm_count,
                                             .norm = has_prologue});
    params.shares = sm90::decode_launch_shares(tiling, down, params.d, params.h, launch.ctas);
    params.gate_up = gate_up ? 1 : 0;
    launch.meets = (gate_up && down) || has_prologue;
    launch.stream = stream_;
    return sm90::launch_decode(launch, params);
  }

  const Problem& p_;
  const Device& device_;
  Tilings tilings_;
  std::array<OperandSpec, kOperandCount> specs_;
  const Operands& operands_;
  Scratch scratch_;
  WorkspaceHeader* header_;
  Stream stream_;
};

}  // namespace

Reason sm90_decode_supports(const Problem& p, const Device& device) noexcept {
  if (const Reason reason = supports(p, device); !reason.empty()) return reason;
  if ((p.op == Op::kMlp || p.norm.enabled) && !device.cooperative_launch) {
    return refuse("%s meets at a grid barrier, the device has no cooperative launch",
                  p.norm.enabled ? "the norm" : "one launch of mlp");
  }
  return {};
}

Reason sm90_decode_chain_supports(const Problem& p, const Device& device) noexcept {
  if (p.op != Op::kMlp) return refuse("is for mlp; %s is one launch anyway", to_string(p.op));
  if (const Reason reason = supports(p, device); !reason.empty()) return reason;
  return deferral_refusal(p);
}

Reason sm90_decode_chain_yields(const Problem& p, const Device& device) noexcept {
  if (!p.norm.enabled || sm90::decode_defers_norm(p.d, p.h, device.sm_count)) return {};
  if (!norm_refusal(p).empty()) return {};
  return refuse("a launch of the norm costs less than to defer it where weights are %lld MB",
                6 * ll{p.d} * ll{p.h} / 1'000'000);
}

// "sm90.decode.down.b32r64k128s9x2": tokens, weight rows and columns of a stage, stages, and how
// many CTAs divide K.
std::size_t sm90_decode_configs(const Problem& p, const Device& device,
                                std::span<Config> out) noexcept {
  std::array<DecodeTiling, detail::kMaxConfigs> tilings;
  sm90::DecodeShape shape = shape_of(p, device, has_gate_up(p), has_down(p));
  shape.norm = p.norm.enabled;
  const std::size_t count = sm90::decode_ranked(shape, tilings);
  for (std::size_t i = 0; i < std::min(count, out.size()); ++i) {
    out[i] = make_config("decode", p, {tilings[i], tilings[i]});
  }
  return count;
}

// The first pair; then every tiling with the best of the other launch; then the other pairs, those
// of good tilings before those of bad ones, as many as there is room for.
std::size_t sm90_decode_chain_configs(const Problem& p, const Device& device,
                                      std::span<Config> out) noexcept {
  std::array<DecodeTiling, detail::kMaxConfigs> gate_up;
  std::array<DecodeTiling, detail::kMaxConfigs> down;
  sm90::DecodeShape first_shape = shape_of(p, device, true, false);
  first_shape.norm_rows = norm_rows(p);
  first_shape.boxes = first_shape.boxes && norm_views_refusal(p).empty();
  const std::size_t firsts = sm90::decode_ranked(first_shape, gate_up);
  sm90::DecodeShape second_shape = shape_of(p, device, false, true);
  second_shape.boxes = first_shape.boxes;  // gate_up by rows admits down by rows alone
  const std::size_t seconds = sm90::decode_ranked(second_shape, down);
  if (firsts == 0 || seconds == 0) return 0;
  const sm90::DecodePair best = sm90::decode_first_pair(
      std::span(gate_up).first(firsts), first_shape, std::span(down).first(seconds), second_shape);
  std::size_t count = 0;
  const auto put = [&](const sm90::DecodePair& pair) {
    if (count == detail::kMaxConfigs) return;
    // Behind a norm by rows down stores the norm's sum, which by boxes it does not.
    const DecodeTiling& first = gate_up[pair.gate_up];
    if (first.norm_rows > 0 && !first.boxes && down[pair.down].boxes) return;
    if (count < out.size()) {
      out[count] = make_config("decode_chain", p, {gate_up[pair.gate_up], down[pair.down]});
    }
    ++count;
  };
  const auto offer = [&](std::size_t first, std::size_t second) {
    const sm90::DecodePair pair{first, second};
    if (first < firsts && second < seconds && pair != best) put(pair);
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

std::size_t sm90_decode_payload_bytes(const Plan& plan) noexcept {
  return lay_out(plan.problem, Launches::kOne, nullptr).bytes;
}

std::size_t sm90_decode_chain_payload_bytes(const Plan& plan) noexcept {
  return lay_out(plan.problem, Launches::kChain, nullptr).bytes;
}

Status sm90_decode_launch(const Plan& plan, const Operands& operands, void* payload, void* header,
                          Stream stream) noexcept {
  const DeviceGuard guard(plan.device.ordinal);
  SLUICE_TRY(guard.status());
  return Launcher(plan, Launches::kOne, operands, payload, header, stream).run();
}

Status sm90_decode_chain_launch(const Plan& plan, const Operands& operands, void* payload,
                                void* header, Stream stream) noexcept {
  const DeviceGuard guard(plan.device.ordinal);
  SLUICE_TRY(guard.status());
  return Launcher(plan, Launches::kChain, operands, payload, header, stream).run_chain();
}

}  // namespace sluice::cuda
