// SPDX-License-Identifier: Apache-2.0
// cuda.elementwise: gate_mul and its gradient by 16-byte accesses, on any GPU from
// sm_75, for any width, row stride and alignment. docs/kernels/gate_mul.md.
#include "cuda/elementwise/gate_mul.hpp"
#include "cuda/kernel_rows.hpp"
#include "cuda/operands.hpp"
#include "cuda/refusals.hpp"
#include "math/gate.hpp"

namespace sluice::cuda {
namespace {

using detail::refuse;
using elementwise::GateMulParams;
using elementwise::Tiling;
using elementwise::Walk;

constexpr Operand kOperands[] = {Operand::kG, Operand::kU,  Operand::kDh,
                                 Operand::kH, Operand::kDg, Operand::kDu};

// Blocks of columns, of which there is more than one.
bool in_col_blocks(const OperandSpec& spec) {
  return spec.layout.block_cols != 0 && spec.layout.block_cols < spec.cols;
}

detail::Reason supports(const Problem& p, const Device& device) noexcept {
  if (detail::Reason reason = capability_refusal(device); !reason.empty()) return reason;
  if (p.x_dtype == DType::kF64) return refuse("x_dtype is fp64; computes in fp32");
  for (const Operand id : kOperands) {
    const OperandSpec spec = operand_spec(p, id);
    if (spec.access != Access::kUnused && in_col_blocks(spec)) {
      return refuse("%s: columns in blocks of %lld, wanted contiguous ones", spec.name,
                    static_cast<long long>(spec.layout.block_cols));
    }
  }
  return {};
}

std::size_t configs(const Problem& p, const Device& device, std::span<KernelConfig> out) noexcept {
  const auto all = elementwise::tilings(device.arch, p.h, p.op == Op::kGateMulGrad);
  return detail::offer<Tiling>(all, out);
}

std::string describe(const detail::StepView& s) {
  return detail::config_as<Tiling>(s.config).walk == Walk::kRow
             ? "a CTA a row, by 16-byte accesses"
             : "tiles of chunks of 16 bytes, whole matrices as one row where they are dense";
}

Status launch(const detail::Step& step, const detail::Step* /*next*/) noexcept {
  const Problem& p = step.problem;
  const auto tiling = detail::config_as<Tiling>(step.config);
  const std::int64_t elem = size_bytes(p.x_dtype);
  bool dense = true;  // every operand's rows follow each other without a gap
  std::uintptr_t addresses = 0;
  const auto rows = [&](Operand id) {
    const tile::RowMajor m = row_major(step, id);
    if (m.base == nullptr) return m;
    dense = dense && m.row_bytes == p.h * elem;
    addresses |= reinterpret_cast<std::uintptr_t>(m.base);
    return m;
  };
  GateMulParams params;
  params.rows = p.m;
  params.cols = p.h;
  params.gate = p.gate;
  Gate unscaled = p.gate;
  unscaled.gate_multiplier = 1;
  params.plain_gate = math::is_plain(unscaled);
  params.g = rows(Operand::kG);
  params.u = rows(Operand::kU);
  params.dh = rows(Operand::kDh);
  params.h = rows(Operand::kH);
  params.dg = rows(Operand::kDg);
  params.du = rows(Operand::kDu);
  if (tiling.walk == Walk::kTiled && dense) {
    params.rows = 1;
    params.cols = p.m * p.h;
  }
  const auto grid =
      elementwise::grid_of(tiling,
                           {.rows = params.rows,
                            .cols = params.cols,
                            .elems = static_cast<int>(elementwise::kChunkBytes / elem),
                            .grad = params.dh.base != nullptr},
                           addresses);
  return elementwise::launch_gate_mul(step.device, grid, p.x_dtype, p.round_gate, params,
                                      step.stream);
}

}  // namespace

const detail::Kernel kElementwise = {
    .name = "cuda.elementwise",
    .ops = {Op::kGateMul, Op::kGateMulGrad},
    .supports = supports,
    .configs = configs,
    .name_config = detail::name_as<Tiling, elementwise::name_tiling>,
    .launch = launch,
    .describe = describe,
};

}  // namespace sluice::cuda
