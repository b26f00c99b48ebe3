// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/backward.hpp"

#include "cuda/simt/kernels.hpp"
#include "cuda/sm90/library_products.hpp"
#include "cuda/tensor_map.hpp"
#include "cuda/workspace.hpp"

namespace sluice::cuda::sm90 {
namespace {

using detail::Reason;
using detail::refuse;

// In x's type.
struct Scratch {
  void* h;      // [M, H]
  void* dg_du;  // [M, 2H]: dg, then du, in each row; null where they are operands
  std::size_t bytes;
};

Scratch lay_out(const Problem& p, void* payload) {
  PayloadCursor cursor(payload);
  const std::int64_t bytes = p.m * p.h * size_bytes(p.x_dtype);
  Scratch s{};
  s.h = cursor.take(bytes);
  if (!p.save_dg_du) s.dg_du = cursor.take(2 * bytes);
  s.bytes = cursor.used();
  return s;
}

// dg or du: the operand, or one half of the rows of dg_du.
Matrix hidden_grad(const Call& call, Operand id, void* dg_du) {
  if (call.problem.save_dg_du) return call.at(id);
  Matrix matrix = call.dense(id, dg_du);
  const std::int64_t row_bytes = matrix.spec.layout.row_stride_bytes;
  matrix.spec.layout.row_stride_bytes = 2 * row_bytes;
  if (id == Operand::kDu && dg_du != nullptr) {
    matrix.base = static_cast<char*>(dg_du) + row_bytes;
  }
  return matrix;
}

// dWg and dWu from dg and du, dWd from dy and h: by cuBLASLt where the call says so and the rows
// have one stride, both of the first in one product where they lie in one matrix.
Status weight_grads(const Call& call, const Tiling& own, const Matrix& dg, const Matrix& du,
                    const Matrix& h) {
  const Matrix x = call.at(Operand::kX);
  const Matrix dw_gate = call.at(Operand::kDwGate);
  const Matrix dw_up = call.at(Operand::kDwUp);
  const auto one = [&](const Matrix& left, const Matrix& right, const Matrix& out) -> Status {
    if (out.base == nullptr) return {};
    return call.library != nullptr && library_takes_weight_grad(call, out)
               ? library_weight_grad(call, left, right, out, false)
               : weight_grad(call, own, left, right, out);
  };
  if (call.library != nullptr && dw_gate.base != nullptr && stacked(dw_gate, dw_up) &&
      side_by_side(dg, du) && library_takes_weight_grad(call, dw_gate)) {
    SLUICE_TRY(library_weight_grad(call, dg, x, dw_gate, true));
  } else {
    SLUICE_TRY(one(dg, x, dw_gate));
    SLUICE_TRY(one(du, x, dw_up));
  }
  return one(call.at(Operand::kDy), h, call.at(Operand::kDwDown));
}

// Pairs of neighbouring columns are stored at once.
Reason grad_rows_refusal(const Problem& p, const OperandSpec& spec) {
  if (spec.dtype != DType::kF32 && spec.dtype != p.x_dtype) {
    return refuse("%s: is %s, wanted fp32 or %s", spec.name, to_string(spec.dtype),
                  to_string(p.x_dtype));
  }
  const std::int64_t pair = 2 * size_bytes(spec.dtype);
  const Layout& l = spec.layout;
  if (l.row_stride_bytes % pair != 0 || l.block_stride_bytes % pair != 0) {
    return refuse(
        "%s: strides of rows and blocks are %lld and %lld bytes, wanted multiples of %lld",
        spec.name, static_cast<long long>(l.row_stride_bytes),
        static_cast<long long>(l.block_stride_bytes), static_cast<long long>(pair));
  }
  return {};
}

Status bias_grad(const Call& call, Operand id, const Matrix& in) {
  const Matrix out = call.at(id);
  if (out.spec.access == Access::kUnused || out.base == nullptr) return {};
  const auto view = [](const Matrix& m) {
    simt::View v;
    v.base = static_cast<char*>(m.base);
    v.layout = m.spec.layout;
    v.dtype = m.spec.dtype;
    return v;
  };
  simt::ColumnSumParams params;
  params.rows = in.spec.rows;
  params.cols = in.spec.cols;
  params.accumulate = call.problem.accumulate_dw;
  params.in = view(in);
  params.out = view(out);
  return simt::launch_column_sum(call.device, params, call.stream);
}

Tiling best_gate_up(const Call& call) {
  const Problem& p = call.problem;
  return best_tiling({p.m, 2 * p.h, p.d, GemmKind::kGateUp, call.device.sm_count, false});
}

}  // namespace

Reason mlp_grad_refusal(const Problem& p) noexcept {
  const auto specs = operand_specs(p);
  const auto spec = [&](Operand id) -> const OperandSpec& {
    return specs[static_cast<std::size_t>(id)];
  };
  // dx reads the weights as two plain matrices.
  for (const Operand id : {Operand::kWGate, Operand::kDx}) {
    if (const Reason reason = matrix_view_refusal(spec(id)); !reason.empty()) return reason;
  }
  for (const Operand id : {Operand::kDwGate, Operand::kDwDown}) {
    if (const Reason reason = grad_rows_refusal(p, spec(id)); !reason.empty()) return reason;
  }
  return p.recompute ? pair_view_refusal(spec(Operand::kWGate)) : Reason{};
}

std::size_t mlp_grad_payload_bytes(const Problem& p) noexcept { return lay_out(p, nullptr).bytes; }

Status mlp_grad(const Call& call, const Tiling& grad_tiling, const Tiling& weight_grad_tiling,
                void* payload) noexcept {
  const Problem& p = call.problem;
  const Scratch s = lay_out(p, payload);
  const Matrix dg = hidden_grad(call, Operand::kDg, s.dg_du);
  const Matrix du = hidden_grad(call, Operand::kDu, s.dg_du);
  Matrix h = call.dense(Operand::kH, s.h);
  if (p.recompute) {
    SLUICE_TRY(gate_up(call, best_gate_up(call), h, dg, du));
    SLUICE_TRY(gate_up_grad(call, grad_tiling, dg, du, dg, du, Matrix{h.spec, nullptr}));
  } else {
    if (call.operands.dw_down == nullptr) h.base = nullptr;
    SLUICE_TRY(
        gate_up_grad(call, grad_tiling, call.at(Operand::kG), call.at(Operand::kU), dg, du, h));
  }
  if (call.operands.dx != nullptr) {
    SLUICE_TRY(
        call.library != nullptr && library_takes_input_grad(call, dg, du)
            ? library_input_grad(call, dg)
            : input_grad(call, best_input_grad(p.m, p.d, p.h, call.device.sm_count), dg, du));
  }
  SLUICE_TRY(weight_grads(call, weight_grad_tiling, dg, du, h));
  SLUICE_TRY(bias_grad(call, Operand::kDbGate, dg));
  SLUICE_TRY(bias_grad(call, Operand::kDbUp, du));
  return bias_grad(call, Operand::kDbDown, call.at(Operand::kDy));
}

}  // namespace sluice::cuda::sm90
