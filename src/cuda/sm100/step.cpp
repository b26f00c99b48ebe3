// SPDX-License-Identifier: Apache-2.0
// cuda.sm100: gate_up and linear by CUTLASS's GEMMs for tcgen05, on compute capability 10.0. Gate
// and up must lie in turns in one matrix, as `sluice pack` makes it. Compiled, never run.
#include <algorithm>
#include <cstdio>
#include <limits>

#include "cuda/host/tensor_map.hpp"
#include "cuda/kernel_rows.hpp"
#include "cuda/refusals.hpp"
#include "cuda/sm100/gemm.hpp"

namespace sluice::cuda {
namespace {

using detail::Reason;
using detail::refuse;
using detail::Step;
using sm100::kBlockRows;
using ll = long long;

Reason device_refusal(const Device& device) {
  constexpr int kCapability = 100;
  if (device.compute_capability != kCapability) {
    return refuse("needs compute capability 10.0, the device has %d.%d",
                  device.compute_capability / 10, device.compute_capability % 10);
  }
  if (!sm100::kIsBuilt) return refuse("this Sluice was built without SLUICE_CUTLASS");
  return {};
}

// From row to row of the one matrix in which gate's and up's rows take turns.
std::int64_t row_bytes(const OperandSpec& w) {
  return w.layout.block_rows == 1 ? w.layout.block_stride_bytes / 2 : w.layout.row_stride_bytes;
}

Reason rows_refusal(const OperandSpec& spec, std::int64_t stride_bytes) {
  if (stride_bytes % kUnitBytes == 0 && stride_bytes >= bytes_of(spec.dtype, spec.cols) &&
      stride_bytes < kTensorStrideLimit) {
    return {};
  }
  return refuse(
      "%s: rows are %lld bytes apart, wanted a multiple of %lld, not below their width, below %lld",
      spec.name, ll{stride_bytes}, ll{kUnitBytes}, ll{kTensorStrideLimit});
}

Reason weights_refusal(const OperandSpec& w) {
  const Layout& l = w.layout;
  const bool turns = l.block_rows == 1 || (l.block_rows == kBlockRows && blocks_alternate(l));
  if (!turns || w.rows % l.block_rows != 0) {
    return refuse("%s: wanted gate and up in turns of 1 or %d rows: sluice pack, pack_gate_up",
                  w.name, kBlockRows);
  }
  return rows_refusal(w, row_bytes(w));
}

Reason supports(const Problem& p, const Device& device) noexcept {
  if (Reason reason = device_refusal(device); !reason.empty()) return reason;
  if (Reason reason = half_type_refusal(p); !reason.empty()) return reason;
  if (p.x_dtype != DType::kBF16) return refuse("takes bf16, got %s", to_string(p.x_dtype));
  if (Reason reason = unit_refusal(p); !reason.empty()) return reason;
  if (p.op == Op::kGateUp && p.gate.activation != Activation::kSilu) {
    return refuse("gate: takes silu, got %s", to_string(p.gate.activation));
  }
  if (p.norm.enabled) return refuse("has no norm prologue");
  for (const Operand id : {Operand::kBGate, Operand::kBDown, Operand::kResidual, Operand::kG}) {
    if (is_used(p, id)) return refuse("%s: is not added or stored", operand_spec(p, id).name);
  }
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;
  if (std::max({p.m, p.d, p.h}) > kMost) {
    return refuse("m, d, h are %lld, %lld, %lld, wanted at most %lld", ll{p.m}, ll{p.d}, ll{p.h},
                  ll{kMost});
  }
  for (const Operand id : {Operand::kX, Operand::kH, Operand::kY, Operand::kWDown}) {
    if (!is_used(p, id)) continue;
    const OperandSpec spec = operand_spec(p, id);
    if (spec.layout.block_rows != 0 || spec.layout.block_cols != 0) {
      return refuse("%s: rows have several strides", spec.name);
    }
    if (Reason r = rows_refusal(spec, spec.layout.row_stride_bytes); !r.empty()) return r;
  }
  return p.op == Op::kGateUp ? weights_refusal(operand_spec(p, Operand::kWGate)) : Reason{};
}

void name_config(const KernelConfig&, std::span<char> out) noexcept {
  std::snprintf(out.data(), out.size(), "2sm256x256");
}

std::int64_t stride_of(const OperandSpec& spec) {
  return spec.layout.row_stride_bytes / size_bytes(spec.dtype);
}

Status gate_up(const Step& step) {
  const Problem& p = step.problem;
  const OperandSpec w = step.spec(Operand::kWGate);
  const auto* const gate = static_cast<const char*>(step.pointer(Operand::kWGate));
  const auto* const up = static_cast<const char*>(step.pointer(Operand::kWUp));
  const std::int64_t turn = w.layout.block_rows * row_bytes(w);
  if (up - gate != turn && gate - up != turn) {
    return make_error(ErrorCode::kUnsupported,
                      "w_gate, w_up: got %lld bytes from one to the other, cuda.sm100 wants one "
                      "matrix in turns, %lld",
                      ll{up - gate}, ll{turn});
  }
  const sm100::GemmParams params{.m = p.m,
                                 .n = 2 * p.h,
                                 .k = p.d,
                                 .x = step.pointer(Operand::kX),
                                 .x_stride = stride_of(step.spec(Operand::kX)),
                                 .w = std::min(gate, up),
                                 .w_stride = row_bytes(w) / size_bytes(w.dtype),
                                 .out = step.pointer(Operand::kH),
                                 .out_stride = stride_of(step.spec(Operand::kH)),
                                 .gate = p.gate,
                                 .up_first = up < gate};
  return w.layout.block_rows == 1 ? sm100::gated_rows(params, step.device, step.stream)
                                  : sm100::gated_blocks(params, step.device, step.stream);
}

Status linear(const Step& step) {
  const Problem& p = step.problem;
  return sm100::plain({.m = p.m,
                       .n = p.d,
                       .k = p.h,
                       .x = step.pointer(Operand::kH),
                       .x_stride = stride_of(step.spec(Operand::kH)),
                       .w = step.pointer(Operand::kWDown),
                       .w_stride = stride_of(step.spec(Operand::kWDown)),
                       .out = step.pointer(Operand::kY),
                       .out_stride = stride_of(step.spec(Operand::kY))},
                      step.device, step.stream);
}

Status launch(const Step& step, const Step* /*next*/) noexcept {
  return step.problem.op == Op::kGateUp ? gate_up(step) : linear(step);
}

std::string describe(const detail::StepView& s) {
  constexpr std::int64_t kTile = 256;
  const std::int64_t n = s.problem.op == Op::kGateUp ? 2 * s.problem.h : s.problem.d;
  char text[120];
  std::snprintf(text, sizeof(text), "%lld x %lld tiles of 256 x 256 by pairs of CTAs, CUTLASS's",
                ll{(s.problem.m + kTile - 1) / kTile}, ll{(n + kTile - 1) / kTile});
  return text;
}

}  // namespace

const detail::Kernel kSm100 = {
    .name = "cuda.sm100",
    .ops = {Op::kGateUp, Op::kDown},
    .supports = supports,
    .name_config = name_config,
    .launch = launch,
    .describe = describe,
};

}  // namespace sluice::cuda
