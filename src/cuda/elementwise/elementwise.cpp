// SPDX-License-Identifier: Apache-2.0
// The variant cuda.elementwise: gate_mul and its gradient by 16-byte accesses, on any GPU from
// sm_75, for any width, row stride and alignment. docs/kernels/gate_mul.md.
#include <algorithm>

#include "cuda/device.hpp"
#include "cuda/elementwise/gate_mul.hpp"
#include "cuda/variants.hpp"
#include "math/gate.hpp"

namespace sluice::cuda {
namespace {

using detail::refuse;
using elementwise::GateMulParams;
using elementwise::Rows;
using elementwise::Walk;

constexpr Operand kOperands[] = {Operand::kG, Operand::kU,  Operand::kDh,
                                 Operand::kH, Operand::kDg, Operand::kDu};

// Blocks of columns, of which there is more than one.
bool in_col_blocks(const OperandSpec& spec) {
  return spec.layout.block_cols != 0 && spec.layout.block_cols < spec.cols;
}

}  // namespace

detail::Reason elementwise_supports(const Problem& p, const Device& device) noexcept {
  if (device.compute_capability < 75) {
    return refuse("needs compute capability 7.5, the device has %d.%d",
                  device.compute_capability / 10, device.compute_capability % 10);
  }
  if (p.op != Op::kGateMul && p.op != Op::kGateMulGrad) return refuse("has no %s", to_string(p.op));
  if (p.x_dtype == DType::kF64) return refuse("x_dtype is fp64; computes in fp32");
  const auto specs = operand_specs(p);
  for (const Operand id : kOperands) {
    const OperandSpec& spec = specs[static_cast<std::size_t>(id)];
    if (spec.access != Access::kUnused && in_col_blocks(spec)) {
      return refuse("%s: columns in blocks of %lld, wanted contiguous ones", spec.name,
                    static_cast<long long>(spec.layout.block_cols));
    }
  }
  return {};
}

std::size_t elementwise_configs(const Problem& p, const Device& device,
                                std::span<Config> out) noexcept {
  const Walk first = elementwise::preferred_walk(device.arch, p.h);
  const Walk second = first == Walk::kRow ? Walk::kTiled : Walk::kRow;
  const Walk walks[elementwise::kWalkCount] = {first, second};
  for (std::size_t i = 0; i < std::min(out.size(), std::size(walks)); ++i) {
    out[i] = detail::make_config(elementwise::to_string(walks[i]), walks[i]);
  }
  return std::size(walks);
}

std::size_t elementwise_payload_bytes(const Plan& /*plan*/) noexcept { return 0; }

Status elementwise_launch(const Plan& plan, const Operands& operands, void* /*payload*/,
                          void* /*header*/, Stream stream) noexcept {
  const DeviceGuard guard(plan.device.ordinal);
  SLUICE_TRY(guard.status());
  const Problem& p = plan.problem;
  const auto walk = detail::payload_as<Walk>(plan.config);
  const auto specs = operand_specs(p);
  const std::int64_t elem = size_bytes(p.x_dtype);
  bool dense = true;  // every operand's rows follow each other without a gap
  std::uintptr_t addresses = 0;
  const auto rows = [&](Operand id) {
    const OperandSpec& spec = specs[static_cast<std::size_t>(id)];
    Rows m;
    if (spec.access == Access::kUnused) return m;
    m.base = const_cast<char*>(static_cast<const char*>(address(operands, id)));
    m.row_stride_bytes = spec.layout.row_stride_bytes;
    if (m.base != nullptr) dense = dense && m.row_stride_bytes == p.h * elem;
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
  if (walk == Walk::kTiled && dense) {
    params.rows = 1;
    params.cols = p.m * p.h;
  }
  const auto grid =
      elementwise::grid_of(walk,
                           {.rows = params.rows,
                            .cols = params.cols,
                            .elems = static_cast<int>(elementwise::kChunkBytes / elem),
                            .grad = params.dh.base != nullptr},
                           addresses);
  return elementwise::launch_gate_mul(plan.device, grid, p.x_dtype, params, stream);
}

}  // namespace sluice::cuda
