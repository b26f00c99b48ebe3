// SPDX-License-Identifier: Apache-2.0
// cuda.sm80_gemm: gate_up, down and the products of the backward pass by mma.sync and cp.async,
// from weights as they lie, on Ampere and everything newer. One GEMM a launch (kernel.cuh).
#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <limits>

#include "cuda/kernel_rows.hpp"
#include "cuda/refusals.hpp"
#include "cuda/sm80/launch.hpp"
#include "cuda/sm80/operands.hpp"

namespace sluice::cuda {
namespace {

using detail::Reason;
using detail::refuse;
using detail::Step;
using detail::StepView;
using sm80::GemmKind;
using sm80::GemmLaunch;
using sm80::GemmParams;
using sm80::GemmShape;
using sm80::launch_gemm;
using sm80::Tiling;
using ll = long long;

constexpr std::int64_t kMostTileRows = 256;  // no tiling has more
constexpr int kLeastSmem = sm80::smem_bytes(sm80::kTilings[std::size(sm80::kTilings) - 1]);

// Rows and columns of tiles.
GemmShape shape_of(const Problem& p, const Device& device) {
  GemmShape shape{p.m, p.d, device.sm_count, device.smem_per_block_bytes};
  if (p.op == Op::kGateUp) shape.n = 2 * p.h;
  if (p.op == Op::kGateUpGrad) shape.n = p.h;
  if (p.op == Op::kWeightGrad) shape.m = p.h;
  return shape;
}

// The kernel keeps the distance of a tile's rows from its first one, as 32 bits of 16 bytes.
Reason span_refusal(const OperandSpec& spec) {
  if (spec.access == Access::kUnused || spec.rows == 0) return {};
  const Layout& l = spec.layout;
  constexpr std::int64_t kMost = std::int64_t{1} << 35;
  const std::int64_t rows = std::min(kMostTileRows, spec.rows);
  const std::int64_t run = l.block_rows == 0 ? rows : std::min(l.block_rows, rows);
  const std::int64_t blocks = l.block_rows == 0 ? 0 : rows / l.block_rows + 1;
  if (rows > 1 &&
      (l.row_stride_bytes > kMost / run ||
       blocks * std::min(l.block_stride_bytes, kMost) > kMost - run * l.row_stride_bytes)) {
    return refuse("%s: %lld rows span more than 32 GiB", spec.name, ll{rows});
  }
  return {};
}

// Of launches: rows, weight rows and tiles are counted in 32 bits.
Reason size_refusal(const Problem& p) {
  constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;
  constexpr std::int64_t kMaxWidth = std::int64_t{1} << 25;  // also of the h that mlp keeps
  if (p.m > kMaxRows || p.d > kMaxWidth || p.h > kMaxWidth) {
    return refuse("m, d, h are %lld, %lld, %lld, wanted at most %lld, %lld, %lld", ll{p.m}, ll{p.d},
                  ll{p.h}, ll{kMaxRows}, ll{kMaxWidth}, ll{kMaxWidth});
  }
  constexpr std::int64_t kLeastTile = 64;
  const std::int64_t rows = p.op == Op::kWeightGrad ? p.h : p.m;
  const std::int64_t columns = p.op == Op::kWeightGrad ? p.d : std::max(p.d, p.h);
  const std::int64_t tiles =
      (rows + kLeastTile - 1) / kLeastTile * ((columns + kLeastTile - 1) / kLeastTile);
  if (tiles > std::numeric_limits<std::int32_t>::max()) {
    return refuse("%lld rows of %lld columns are %lld tiles, wanted at most 2^31 - 1", ll{rows},
                  ll{columns}, ll{tiles});
  }
  return {};
}

Reason supports(const Problem& p, const Device& device) noexcept {
  if (Reason reason = sm80::device_refusal(device, kLeastSmem); !reason.empty()) return reason;
  if (Reason reason = sm80::operand_refusal(p); !reason.empty()) return reason;
  for (const OperandSpec& spec : operand_specs(p)) {
    if (Reason reason = span_refusal(spec); !reason.empty()) return reason;
  }
  if (Reason reason = grad_type_refusal(p); !reason.empty()) return reason;
  return size_refusal(p);
}

std::size_t configs(const Problem& p, const Device& device, std::span<KernelConfig> out) noexcept {
  std::array<Tiling, std::size(sm80::kTilings)> tilings;
  const std::size_t count = sm80::ranked(shape_of(p, device), tilings);
  return detail::offer<Tiling>(std::span(tilings).first(count), out);
}

Status forward(const Step& step, const GemmLaunch& to) {
  GemmParams params{};
  sm80::set_operands(step, params);
  if (step.problem.op == Op::kDown) return launch_gemm<GemmKind::kDown>(to, params);
  if (!step.problem.save_g_u) return launch_gemm<GemmKind::kGateUp>(to, params);
  params.g = row_major(step, Operand::kG);
  params.u = row_major(step, Operand::kU);
  return launch_gemm<GemmKind::kGateUpSave>(to, params);
}

GemmParams sized(std::int64_t m, std::int64_t n, std::int64_t k) {
  GemmParams params{};
  params.m = static_cast<int>(m);
  params.n = static_cast<int>(n);
  params.k = static_cast<int>(k);
  return params;
}

void set_out(const Step& step, Operand out, GemmParams& params) {
  params.out = step.pointer(out);
  params.out_row_bytes = step.spec(out).layout.row_stride_bytes;
}

Status gate_up_grad(const Step& step, const GemmLaunch& to) {
  const Problem& p = step.problem;
  GemmParams params = sized(p.m, p.h, p.d);
  params.x = rows_of(step, Operand::kDy);
  params.w[0] = rows_of(step, Operand::kWDown);
  params.gate = p.gate;
  params.g = row_major(step, Operand::kG);
  params.u = row_major(step, Operand::kU);
  params.dg = row_major(step, Operand::kDg);
  params.du = row_major(step, Operand::kDu);
  set_out(step, Operand::kH, params);
  return launch_gemm<GemmKind::kGateUpGrad>(to, params);
}

Status input_grad(const Step& step, const GemmLaunch& to) {
  const Problem& p = step.problem;
  GemmParams params = sized(p.m, p.d, p.h);
  params.x = rows_of(step, Operand::kDg);
  params.x2 = rows_of(step, Operand::kDu);
  params.w[0] = rows_of(step, Operand::kWGate);
  params.w[1] = rows_of(step, Operand::kWUp);
  set_out(step, Operand::kDx, params);
  return launch_gemm<GemmKind::kInputGrad>(to, params);
}

Status weight_grad(const Step& step, const GemmLaunch& to, Operand left, Operand out) {
  if (step.pointer(out) == nullptr) return {};
  const Problem& p = step.problem;
  GemmParams params = sized(p.h, p.d, p.m);
  params.x = rows_of(step, left);
  params.w[0] = rows_of(step, Operand::kX);
  params.grad = rows_of(step, out);
  params.grad_fp32 = p.dw_dtype == DType::kF32 ? 1 : 0;
  params.accumulate = p.accumulate_dw ? 1 : 0;
  return launch_gemm<GemmKind::kWeightGrad>(to, params);
}

Status launch(const Step& step, const Step* /*next*/) noexcept {
  const GemmLaunch to{detail::config_as<Tiling>(step.config), step.problem.x_dtype,
                      step.device.ordinal, step.stream};
  switch (step.problem.op) {
    case Op::kGateUpGrad:
      return gate_up_grad(step, to);
    case Op::kInputGrad:
      return input_grad(step, to);
    case Op::kWeightGrad:
      SLUICE_TRY(weight_grad(step, to, Operand::kDg, Operand::kDwGate));
      return weight_grad(step, to, Operand::kDu, Operand::kDwUp);
    default:
      return forward(step, to);
  }
}

std::string describe(const StepView& s) {
  const auto t = detail::config_as<Tiling>(s.config);
  const GemmShape shape = shape_of(s.problem, s.device);
  const std::int64_t rows = (shape.m + t.tile_m - 1) / t.tile_m;
  const std::int64_t columns = (shape.n + t.tile_n - 1) / t.tile_n;
  const double slots = static_cast<double>(s.device.sm_count) * t.resident;
  char text[200];
  std::snprintf(text, sizeof(text),
                "%lld x %lld tiles of %d rows by %d weight rows, %.2f waves of %d a SM on %d SMs",
                ll{rows}, ll{columns}, t.tile_m, t.tile_n,
                static_cast<double>(rows * columns) / slots, t.resident, s.device.sm_count);
  return text;
}

}  // namespace

const detail::Kernel kSm80Gemm = {
    .name = "cuda.sm80_gemm",
    .ops = {Op::kGateUp, Op::kDown, Op::kGateUpGrad, Op::kInputGrad, Op::kWeightGrad},
    .supports = supports,
    .configs = configs,
    .name_config = detail::name_as<Tiling, sm80::name_tiling>,
    .launch = launch,
    .describe = describe,
};

}  // namespace sluice::cuda
