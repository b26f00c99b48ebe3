// SPDX-License-Identifier: Apache-2.0
// The variant cuda.sm80: gate_up, down and mlp by mma.sync and cp.async, from weights as they lie,
// on Ampere and everything newer. One GEMM a launch (gemm.cuh); mlp is two.
#include "cuda/prefill.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>

#include "cuda/device.hpp"
#include "cuda/sm80/gemm.hpp"
#include "cuda/variants.hpp"

namespace sluice::cuda {
namespace {

using detail::Reason;
using detail::refuse;
using sm80::GemmLaunch;
using sm80::GemmParams;
using sm80::GemmShape;
using sm80::Rows;
using sm80::Tiling;

using Tilings = TilingPair<Tiling>;

constexpr std::int64_t kUnitBytes = 16;      // of a copy
constexpr std::int64_t kUnit = 8;            // elements of it
constexpr std::int64_t kMostTileRows = 256;  // no tiling has more
constexpr int kLeastSmem = sm80::smem_bytes(sm80::kTilings[std::size(sm80::kTilings) - 1]);

GemmShape gate_up_shape(const Problem& p, const Device& device) {
  return {p.m, 2 * p.h, device.sm_count, device.smem_per_block_bytes};
}
GemmShape down_shape(const Problem& p, const Device& device) {
  return {p.m, p.d, device.sm_count, device.smem_per_block_bytes};
}

// Strides that would move a row's start off a multiple of 16 bytes.
Reason stride_refusal(const OperandSpec& spec) {
  if (spec.access == Access::kUnused || spec.rows == 0) return {};
  const Layout& l = spec.layout;
  if (l.row_stride_bytes % kUnitBytes != 0 || l.block_stride_bytes % kUnitBytes != 0) {
    return refuse(
        "%s: strides of rows and blocks are %lld and %lld bytes, wanted multiples of %lld",
        spec.name, static_cast<long long>(l.row_stride_bytes),
        static_cast<long long>(l.block_stride_bytes), static_cast<long long>(kUnitBytes));
  }
  if (l.block_cols != 0) return refuse("%s: has blocks of columns", spec.name);
  // The kernel keeps the distance of a tile's rows from its first one, as 32 bits of 16 bytes.
  constexpr std::int64_t kMost = std::int64_t{1} << 35;
  const std::int64_t rows = std::min(kMostTileRows, spec.rows);
  const std::int64_t run = l.block_rows == 0 ? rows : std::min(l.block_rows, rows);
  const std::int64_t blocks = l.block_rows == 0 ? 0 : rows / l.block_rows + 1;
  if (rows > 1 &&
      (l.row_stride_bytes > kMost / run ||
       blocks * std::min(l.block_stride_bytes, kMost) > kMost - run * l.row_stride_bytes)) {
    return refuse("%s: %lld rows span more than 32 GiB", spec.name, static_cast<long long>(rows));
  }
  return {};
}

// Of launches: rows, weight rows and tiles are counted in 32 bits.
Reason size_refusal(const Problem& p) {
  constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;
  constexpr std::int64_t kMaxWidth = std::int64_t{1} << 25;  // also of the h that mlp keeps
  if (p.m > kMaxRows || p.d > kMaxWidth || p.h > kMaxWidth) {
    return refuse("m, d, h are %lld, %lld, %lld, wanted at most %lld, %lld, %lld",
                  static_cast<long long>(p.m), static_cast<long long>(p.d),
                  static_cast<long long>(p.h), static_cast<long long>(kMaxRows),
                  static_cast<long long>(kMaxWidth), static_cast<long long>(kMaxWidth));
  }
  constexpr std::int64_t kLeastTile = 64;
  const std::int64_t columns = std::max(p.d, p.h);
  const std::int64_t tiles =
      (p.m + kLeastTile - 1) / kLeastTile * ((columns + kLeastTile - 1) / kLeastTile);
  if (tiles > std::numeric_limits<std::int32_t>::max()) {
    return refuse("m by the wider of d and h is %lld tiles, wanted at most 2^31 - 1",
                  static_cast<long long>(tiles));
  }
  return {};
}

Rows rows_of(const OperandSpec& spec, const void* base) {
  const Layout& l = spec.layout;
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();  // more than there are rows
  return {base, l.row_stride_bytes, l.block_stride_bytes,
          static_cast<int>(std::min(l.block_rows, kMost))};
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
  [[nodiscard]] void* h() const { return p_.op == Op::kMlp ? payload_ : operands_.h; }
  [[nodiscard]] std::int64_t h_row_bytes() const {
    return p_.op == Op::kMlp ? p_.h * size_bytes(p_.x_dtype)
                             : spec_of(specs_, Operand::kH).layout.row_stride_bytes;
  }

  Status gate_up() const {
    GemmParams params{};
    params.x = rows_of(spec_of(specs_, Operand::kX), operands_.x);
    params.w[0] = rows_of(spec_of(specs_, Operand::kWGate), operands_.w_gate);
    params.w[1] = rows_of(spec_of(specs_, Operand::kWUp), operands_.w_up);
    params.out = h();
    params.out_row_bytes = h_row_bytes();
    params.m = static_cast<int>(p_.m);
    params.n = static_cast<int>(p_.h);
    params.k = static_cast<int>(p_.d);
    params.gate = p_.gate;
    if (p_.bias_gate_up) {
      params.bias[0] = operands_.b_gate;
      params.bias[1] = operands_.b_up;
    }
    return sm80::launch_gate_up(launch_of(tilings_.gate_up), params);
  }

  Status down() const {
    GemmParams params{};
    params.x = {h(), h_row_bytes(), 0, 0};
    params.w[0] = rows_of(spec_of(specs_, Operand::kWDown), operands_.w_down);
    params.out = operands_.y;
    params.out_row_bytes = spec_of(specs_, Operand::kY).layout.row_stride_bytes;
    params.m = static_cast<int>(p_.m);
    params.n = static_cast<int>(p_.d);
    params.k = static_cast<int>(p_.h);
    if (p_.bias_down) params.bias[0] = operands_.b_down;
    if (p_.residual == Residual::kOperand) {
      params.residual = rows_of(spec_of(specs_, Operand::kResidual), operands_.residual);
    }
    return sm80::launch_down(launch_of(tilings_.down), params);
  }

  [[nodiscard]] GemmLaunch launch_of(const Tiling& tiling) const {
    return {tiling, p_.x_dtype, device_.ordinal, stream_};
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

Reason sm80_supports(const Problem& p, const Device& device) noexcept {
  if (device.compute_capability < 80 || device.smem_per_block_bytes < kLeastSmem) {
    return refuse(
        "needs an Ampere or newer GPU (8.0) with %d bytes of shared memory a block, "
        "the device is %d.%d with %d",
        kLeastSmem, device.compute_capability / 10, device.compute_capability % 10,
        device.smem_per_block_bytes);
  }
  if (p.op != Op::kGateUp && p.op != Op::kDown && p.op != Op::kMlp) {
    return refuse("has no %s", to_string(p.op));
  }
  if (p.norm.enabled) return refuse("has no norm prologue");
  if (p.save_g_u) return refuse("does not store g and u");
  if (const Reason reason = half_type_refusal(p); !reason.empty()) return reason;
  if (p.alignment_bytes < kUnitBytes) {
    return refuse("alignment_bytes is %lld, copies need %lld",
                  static_cast<long long>(p.alignment_bytes), static_cast<long long>(kUnitBytes));
  }
  if (p.d % kUnit != 0 || p.h % kUnit != 0) {
    return refuse("d is %lld and h %lld, wanted multiples of %lld (16 bytes)",
                  static_cast<long long>(p.d), static_cast<long long>(p.h),
                  static_cast<long long>(kUnit));
  }
  for (const OperandSpec& spec : operand_specs(p)) {
    if (const Reason reason = stride_refusal(spec); !reason.empty()) return reason;
  }
  return size_refusal(p);
}

std::size_t sm80_configs(const Problem& p, const Device& device, std::span<Config> out) noexcept {
  std::array<Tiling, 4> gate_up;
  std::array<Tiling, 4> down;
  const std::size_t gate_ups = has_gate_up(p) ? sm80::ranked(gate_up_shape(p, device), gate_up) : 0;
  const std::size_t downs = has_down(p) ? sm80::ranked(down_shape(p, device), down) : 0;
  return offer_tilings<Tiling>("sm80", p, std::span(gate_up).first(gate_ups),
                               std::span(down).first(downs), sm80::name_tiling, out);
}

std::size_t sm80_payload_bytes(const Plan& plan) noexcept {
  const Problem& p = plan.problem;
  return p.op == Op::kMlp ? static_cast<std::size_t>(p.m * p.h * size_bytes(p.x_dtype)) : 0;
}

Status sm80_launch(const Plan& plan, const Operands& operands, void* payload, void* /*header*/,
                   Stream stream) noexcept {
  const DeviceGuard guard(plan.device.ordinal);
  SLUICE_TRY(guard.status());
  return Launcher(plan, operands, payload, stream).run();
}

}  // namespace sluice::cuda
