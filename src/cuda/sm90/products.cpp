// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/products.hpp"

#include <algorithm>

#include "cuda/sm90/gemm.hpp"
#include "cuda/sm90/stream_k_params.hpp"
#include "cuda/tensor_map.hpp"

namespace sluice::cuda::sm90 {
namespace {

// The widest swizzle that a box's rows fill.
TensorSwizzle swizzle_of(const Box& box) {
  switch (box.cols) {
    case 64:
      return TensorSwizzle::kSwizzle128;
    case 32:
      return TensorSwizzle::kSwizzle64;
    default:
      return TensorSwizzle::kSwizzle32;
  }
}

Status encode_boxes(const Matrix& matrix, const Box& box, CUtensorMap& out) {
  const auto view = make_matrix_view(matrix.spec, matrix.base, box.cols, box.rows);
  if (!view) return view.error();
  const auto map = encode(*view, matrix.base, swizzle_of(box));
  if (!map) return map.error();
  out = *map;
  return {};
}

// The A operand, x, h, dy or dg: whole row tiles, and the last one if it is not (InputTile). Tiles
// have kTileM rows whatever the tiling says, but under stream-K.
Status encode_input(const Matrix& matrix, const Tiling& tiling, CUtensorMap& whole,
                    CUtensorMap& tail) {
  const int rows = tiling.stream_k ? tiling.rows : kTileM;
  if (matrix.spec.rows >= rows) SLUICE_TRY(encode_boxes(matrix, {kTileK, rows}, whole));
  const auto left = static_cast<int>(matrix.spec.rows % rows);
  return left == 0 ? Status{} : encode_boxes(matrix, {kTileK, left}, tail);
}

OutputRows rows_of(const Matrix& matrix) {
  return {static_cast<char*>(matrix.base), matrix.spec.layout.row_stride_bytes};
}

StreamKParams stream_k_params(const Call& call, const GemmParams& gemm, const Matrix& out) {
  StreamKParams params{};
  params.gemm = gemm;
  params.out = rows_of(out);
  params.partials = call.partials;
  params.header = call.header;
  return params;
}

GemmParams params_of(const Call& call, std::int64_t n, std::int64_t k) {
  GemmParams params{};
  params.m = static_cast<int>(call.problem.m);
  params.n = static_cast<int>(n);
  params.k = static_cast<int>(k);
  params.weights_static = call.problem.weights_static ? 1 : 0;
  params.gate = call.problem.gate;
  return params;
}

GemmLaunch launch_of(const Call& call, const Tiling& tiling) {
  return {tiling, call.problem.x_dtype, call.device.ordinal, call.device.sm_count, call.stream};
}

// A B operand with k along its rows: each CTA of a cluster brings its share of them.
Box column_box(const Tiling& tiling) { return {kColumnBox, kTileK / tiling.cluster}; }

}  // namespace

Matrix Call::at(Operand id) const noexcept {
  return {specs[static_cast<std::size_t>(id)], const_cast<void*>(address(operands, id))};
}

Matrix Call::dense(Operand id, void* base) const noexcept {
  Matrix matrix{specs[static_cast<std::size_t>(id)], base};
  matrix.spec.layout = {.row_stride_bytes = matrix.spec.cols * size_bytes(matrix.spec.dtype)};
  return matrix;
}

Status gate_up(const Call& call, const Tiling& tiling, const Matrix& h, const Matrix& g,
               const Matrix& u) noexcept {
  const Problem& p = call.problem;
  GemmParams params = params_of(call, p.h, p.d);
  params.save = g.base != nullptr ? 1 : 0;
  const Matrix w_gate = call.at(Operand::kWGate);
  const Matrix w_up = call.at(Operand::kWUp);
  const auto pair = make_pair_view(w_gate.spec, w_gate.base, w_up.base, kTileK,
                                   tiling.tile_n / 16 / tiling.cluster, longest_turn(tiling));
  if (!pair) return pair.error();
  const auto w =
      encode(pair->view, pair->up_first ? w_up.base : w_gate.base, TensorSwizzle::kSwizzle128);
  if (!w) return w.error();
  params.w = *w;
  params.pair = {pair->view.rank, static_cast<int>(pair->groups_a_block), pair->groups_a_copy,
                 pair->groups_a_turn};
  params.up_first = pair->up_first ? 1 : 0;
  if (p.bias_gate_up) {
    params.bias0 = call.operands.b_gate;
    params.bias1 = call.operands.b_up;
  }
  SLUICE_TRY(encode_input(call.at(Operand::kX), tiling, params.x, params.x_tail));
  if (!tiling.stream_k || tiling.swapped) {
    const Box box = out_box(tiling, GemmKind::kGateUp);
    SLUICE_TRY(encode_boxes(h, box, params.out));
    if (params.save != 0) {
      SLUICE_TRY(encode_boxes(g, box, params.g));
      SLUICE_TRY(encode_boxes(u, box, params.u));
    }
  }
  if (tiling.stream_k) {
    StreamKParams streamed = stream_k_params(call, params, h);
    streamed.g = rows_of(g);
    streamed.u = rows_of(u);
    return launch_stream_k(launch_of(call, tiling), GemmKind::kGateUp, streamed);
  }
  return launch_gate_up(launch_of(call, tiling), params);
}

Status down(const Call& call, const Tiling& tiling, const Matrix& h) noexcept {
  const Problem& p = call.problem;
  GemmParams params = params_of(call, p.d, p.h);
  SLUICE_TRY(
      encode_boxes(call.at(Operand::kWDown), {kTileK, tiling.tile_n / tiling.cluster}, params.w));
  if (p.bias_down) params.bias0 = call.operands.b_down;
  if (p.residual == Residual::kOperand) {
    const Matrix residual = call.at(Operand::kResidual);
    params.residual = residual.base;
    params.residual_row_bytes = residual.spec.layout.row_stride_bytes;
  }
  const Matrix y = call.at(Operand::kY);
  SLUICE_TRY(encode_input(h, tiling, params.x, params.x_tail));
  if (tiling.stream_k) {
    StreamKParams streamed = stream_k_params(call, params, y);
    return launch_stream_k(launch_of(call, tiling), GemmKind::kDown, streamed);
  }
  SLUICE_TRY(encode_boxes(y, out_box(tiling, GemmKind::kDown), params.out));
  return launch_down(launch_of(call, tiling), params);
}

Status gate_up_grad(const Call& call, const Tiling& tiling, const Matrix& g, const Matrix& u,
                    const Matrix& dg, const Matrix& du, const Matrix& h) noexcept {
  GemmParams params = params_of(call, call.problem.h, call.problem.d);
  SLUICE_TRY(encode_input(call.at(Operand::kDy), tiling, params.x, params.x_tail));
  // W_down [D, H] is the B operand as it lies, one row of k after the other.
  SLUICE_TRY(encode_boxes(call.at(Operand::kWDown), column_box(tiling), params.w));
  const Box box = out_box(tiling, GemmKind::kGateUpGrad);
  SLUICE_TRY(encode_boxes(g, box, params.g));
  SLUICE_TRY(encode_boxes(u, box, params.u));
  SLUICE_TRY(encode_boxes(dg, box, params.dg));
  SLUICE_TRY(encode_boxes(du, box, params.du));
  if (h.base != nullptr) {
    params.writes_h = 1;
    SLUICE_TRY(encode_boxes(h, box, params.out));
  }
  return launch_gate_up_grad(launch_of(call, tiling), params);
}

Status input_grad(const Call& call, const Tiling& tiling, const Matrix& dg,
                  const Matrix& du) noexcept {
  GemmParams params = params_of(call, call.problem.d, call.problem.h);
  SLUICE_TRY(encode_input(dg, tiling, params.x, params.x_tail));
  SLUICE_TRY(encode_input(du, tiling, params.x2, params.x2_tail));
  SLUICE_TRY(encode_boxes(call.at(Operand::kWGate), column_box(tiling), params.w));
  SLUICE_TRY(encode_boxes(call.at(Operand::kWUp), column_box(tiling), params.w2));
  SLUICE_TRY(
      encode_boxes(call.at(Operand::kDx), out_box(tiling, GemmKind::kInputGrad), params.out));
  return launch_input_grad(launch_of(call, tiling), params);
}

Status weight_grad(const Call& call, const Tiling& tiling, const Matrix& left, const Matrix& right,
                   const Matrix& out) noexcept {
  GemmParams params = params_of(call, out.spec.cols, call.problem.m);
  params.m = static_cast<int>(out.spec.rows);
  params.weights_static = 0;  // no operand is a weight
  SLUICE_TRY(encode_boxes(left, {kColumnBox, kTileK}, params.x));
  SLUICE_TRY(encode_boxes(right, column_box(tiling), params.w));
  const Layout& layout = out.spec.layout;
  params.grad = {.base = static_cast<char*>(out.base),
                 .row_stride_bytes = layout.row_stride_bytes,
                 .block_rows = layout.block_rows,
                 .block_stride_bytes = layout.block_stride_bytes,
                 .fp32 = out.spec.dtype == DType::kF32 ? 1 : 0,
                 .accumulate = call.problem.accumulate_dw ? 1 : 0};
  return launch_weight_grad(launch_of(call, tiling), params);
}

}  // namespace sluice::cuda::sm90
