// SPDX-License-Identifier: Apache-2.0
// The variant cuda.sm90: gate_up, down and mlp on Hopper's tensor cores from weights as they lie.
// One persistent GEMM a launch (gemm.cuh); mlp chains two by programmatic dependent launch.
#include "cuda/prefill.hpp"

#include <array>

#include "cuda/device.hpp"
#include "cuda/sm90/gemm.hpp"
#include "cuda/sm90/refusals.hpp"
#include "cuda/tensor_map.hpp"
#include "cuda/variants.hpp"

namespace sluice::cuda {
namespace {

using detail::Reason;
using detail::refuse;
using sm90::GemmLaunch;
using sm90::GemmParams;
using sm90::GemmShape;
using sm90::Tiling;

using Tilings = TilingPair<Tiling>;

GemmShape gate_up_shape(const Problem& p, const Device& device) {
  return {p.m, 2 * p.h, p.d, true, device.sm_count};
}
GemmShape down_shape(const Problem& p, const Device& device) {
  return {p.m, p.d, p.h, false, device.sm_count};
}

Reason feature_refusal(const Problem& p) {
  if (p.op != Op::kGateUp && p.op != Op::kDown && p.op != Op::kMlp) {
    return refuse("has no %s", to_string(p.op));
  }
  if (p.norm.enabled) return refuse("has no norm prologue");
  if (p.save_g_u) return refuse("does not store g and u");
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
  for (const Operand id : {Operand::kX, Operand::kH, Operand::kWDown, Operand::kY}) {
    const OperandSpec& spec = spec_of(specs, id);
    if (spec.access == Access::kUnused) continue;
    if (const Reason reason = matrix_view_refusal(spec); !reason.empty()) return reason;
  }
  if (has_gate_up(p)) {
    if (const Reason reason = pair_view_refusal(spec_of(specs, Operand::kWGate)); !reason.empty()) {
      return reason;
    }
  }
  return {};
}

// One call of run().
class Launcher {
 public:
  Launcher(const Plan& plan, const Operands& operands, void* payload, Stream stream)
      : p_(plan.problem),
        device_(plan.device),
        tilings_(detail::payload_as<Tilings>(plan.config)),
        specs_(operand_specs(plan.problem)),
        operands_(operands),
        payload_(payload),
        stream_(stream) {}

  Status run() const {
    if (has_gate_up(p_)) SLUICE_TRY(gate_up());
    if (has_down(p_)) SLUICE_TRY(down());
    return {};
  }

 private:
  // h of kMlp lies densely in the workspace; else where the caller keeps it.
  [[nodiscard]] OperandSpec h_spec() const {
    OperandSpec spec = spec_of(specs_, Operand::kH);
    if (p_.op == Op::kMlp) spec.layout = {.row_stride_bytes = p_.h * size_bytes(p_.x_dtype)};
    return spec;
  }
  [[nodiscard]] const void* h_base() const { return p_.op == Op::kMlp ? payload_ : operands_.h; }

  [[nodiscard]] GemmLaunch launch_of(const Tiling& tiling, bool programmatic) const {
    return {tiling, p_.x_dtype, device_.ordinal, device_.sm_count, programmatic, stream_};
  }

  // x (or h) by tiles of 128 x 64.
  static Status encode_input(const OperandSpec& spec, const void* base, CUtensorMap& out) {
    const auto view = make_matrix_view(spec, base, sm90::kTileK, sm90::kTileM);
    if (!view) return view.error();
    const auto map = encode(*view, base, TensorSwizzle::kSwizzle128);
    if (!map) return map.error();
    out = *map;
    return {};
  }

  static Status encode_output(const OperandSpec& spec, const void* base, const Tiling& tiling,
                              bool gated, CUtensorMap& out) {
    const sm90::OutBox box = sm90::out_box(tiling, gated);
    const auto view = make_matrix_view(spec, base, box.cols, box.rows);
    if (!view) return view.error();
    const auto swizzle = box.cols == 64 ? TensorSwizzle::kSwizzle128 : TensorSwizzle::kSwizzle64;
    const auto map = encode(*view, base, swizzle);
    if (!map) return map.error();
    out = *map;
    return {};
  }

  Status gate_up() const {
    const Tiling& tiling = tilings_.gate_up;
    GemmParams params{};
    SLUICE_TRY(encode_input(spec_of(specs_, Operand::kX), operands_.x, params.x));
    SLUICE_TRY(encode_output(h_spec(), h_base(), tiling, true, params.out));
    const auto pair =
        make_pair_view(spec_of(specs_, Operand::kWGate), operands_.w_gate, operands_.w_up,
                       sm90::kTileK, tiling.tile_n / 16 / tiling.cluster);
    if (!pair) return pair.error();
    const auto w = encode(pair->view, pair->up_first ? operands_.w_up : operands_.w_gate,
                          TensorSwizzle::kSwizzle128);
    if (!w) return w.error();
    params.w = *w;
    params.pair = {pair->view.rank, static_cast<int>(pair->groups_a_block), pair->groups_a_copy};
    params.up_first = pair->up_first ? 1 : 0;
    params.m = static_cast<int>(p_.m);
    params.n = static_cast<int>(p_.h);
    params.k = static_cast<int>(p_.d);
    params.weights_static = p_.weights_static ? 1 : 0;
    params.gate = p_.gate;
    if (p_.bias_gate_up) {
      params.bias0 = operands_.b_gate;
      params.bias1 = operands_.b_up;
    }
    return sm90::launch_gate_up(launch_of(tiling, false), params);
  }

  Status down() const {
    const Tiling& tiling = tilings_.down;
    GemmParams params{};
    SLUICE_TRY(encode_input(h_spec(), h_base(), params.x));
    SLUICE_TRY(encode_output(spec_of(specs_, Operand::kY), operands_.y, tiling, false, params.out));
    const OperandSpec& w_spec = spec_of(specs_, Operand::kWDown);
    const auto view =
        make_matrix_view(w_spec, operands_.w_down, sm90::kTileK, tiling.tile_n / tiling.cluster);
    if (!view) return view.error();
    const auto w = encode(*view, operands_.w_down, TensorSwizzle::kSwizzle128);
    if (!w) return w.error();
    params.w = *w;
    params.m = static_cast<int>(p_.m);
    params.n = static_cast<int>(p_.d);
    params.k = static_cast<int>(p_.h);
    params.weights_static = p_.weights_static ? 1 : 0;
    if (p_.bias_down) params.bias0 = operands_.b_down;
    if (p_.residual == Residual::kOperand) {
      params.residual = operands_.residual;
      params.residual_row_bytes = spec_of(specs_, Operand::kResidual).layout.row_stride_bytes;
    }
    return sm90::launch_down(launch_of(tiling, p_.op == Op::kMlp), params);
  }

  const Problem& p_;
  const Device& device_;
  Tilings tilings_;
  std::array<OperandSpec, kOperandCount> specs_;
  const Operands& operands_;
  void* payload_;
  Stream stream_;
};

}  // namespace

Reason sm90_supports(const Problem& p, const Device& device) noexcept {
  if (const Reason reason = sm90::device_refusal(device); !reason.empty()) return reason;
  if (const Reason reason = feature_refusal(p); !reason.empty()) return reason;
  if (const Reason reason = half_type_refusal(p); !reason.empty()) return reason;
  if (const Reason reason = sm90::copy_refusal(p); !reason.empty()) return reason;
  return shape_refusal(p);
}

// "sm90.gate_up.pp128x192c2g8", "sm90.mlp.pp128x192c2g8+pp128x192c1g16".
std::size_t sm90_configs(const Problem& p, const Device& device, std::span<Config> out) noexcept {
  std::array<Tiling, 8> gate_up;
  std::array<Tiling, 8> down;
  const std::size_t gate_ups = has_gate_up(p) ? sm90::ranked(gate_up_shape(p, device), gate_up) : 0;
  const std::size_t downs = has_down(p) ? sm90::ranked(down_shape(p, device), down) : 0;
  return offer_tilings<Tiling>("sm90", p, std::span(gate_up).first(gate_ups),
                               std::span(down).first(downs), sm90::name_tiling, out);
}

std::size_t sm90_payload_bytes(const Plan& plan) noexcept {
  const Problem& p = plan.problem;
  return p.op == Op::kMlp ? static_cast<std::size_t>(p.m * p.h * size_bytes(p.x_dtype)) : 0;
}

Status sm90_launch(const Plan& plan, const Operands& operands, void* payload, void* /*header*/,
                   Stream stream) noexcept {
  const DeviceGuard guard(plan.device.ordinal);
  SLUICE_TRY(guard.status());
  return Launcher(plan, operands, payload, stream).run();
}

}  // namespace sluice::cuda
