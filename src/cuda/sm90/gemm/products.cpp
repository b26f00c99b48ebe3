// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/gemm/products.hpp"

#include <algorithm>

#include "cuda/host/tensor_map.hpp"
#include "cuda/host/workspace.hpp"
#include "cuda/sm90/gemm/launch.hpp"
#include "cuda/sm90/gemm/split_k/params.hpp"
#include "cuda/sm90/gemm/stream_k/params.hpp"

namespace sluice::cuda::sm90::gemm {
namespace {

using detail::Step;

/// A matrix of a step. Without a base it is absent.
struct Matrix {
  OperandSpec spec;
  void* base = nullptr;
};

Matrix at(const Step& step, Operand id) { return {step.spec(id), step.pointer(id)}; }

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
  const int rows = tiling.is_stream_k() ? tiling.rows : kTileM;
  if (matrix.spec.rows >= rows) SLUICE_TRY(encode_boxes(matrix, {kTileK, rows}, whole));
  const auto left = static_cast<int>(matrix.spec.rows % rows);
  return left == 0 ? Status{} : encode_boxes(matrix, {kTileK, left}, tail);
}

OutputRows rows_of(const Matrix& matrix) {
  return {static_cast<char*>(matrix.base), matrix.spec.layout.row_stride_bytes};
}

SplitKParams split_k_params(const GemmParams& gemm, const Matrix& out) {
  SplitKParams params{};
  params.gemm = gemm;
  params.out = rows_of(out);
  return params;
}

GemmParams params_of(const Step& step, std::int64_t n, std::int64_t k) {
  GemmParams params{};
  params.m = static_cast<int>(step.problem.m);
  params.n = static_cast<int>(n);
  params.k = static_cast<int>(k);
  params.weights_static = step.problem.weights_static ? 1 : 0;
  params.gate = step.problem.gate;
  return params;
}

GemmLaunch launch_of(const Step& step, const Tiling& tiling) {
  return {tiling, step.problem.x_dtype, step.device.ordinal, step.device.sm_count, step.stream};
}

// A B operand with k along its rows: each CTA of a cluster brings its share of them.
Box column_box(const Tiling& tiling) { return {kColumnBox, kTileK / tiling.cluster}; }

}  // namespace

Status encode_gate_up(const Step& step, const Tiling& tiling, GemmParams& params) noexcept {
  const Problem& p = step.problem;
  params = params_of(step, p.h, p.d);
  params.save = p.save_g_u ? 1 : 0;
  const Matrix w_gate = at(step, Operand::kWGate);
  const Matrix w_up = at(step, Operand::kWUp);
  const auto pair = make_pair_view(w_gate.spec, w_gate.base, w_up.base, kTileK,
                                   tiling.tile_n / 16 / tiling.cluster, longest_run(tiling));
  if (!pair) return pair.error();
  const auto w =
      encode(pair->view, pair->up_first ? w_up.base : w_gate.base, TensorSwizzle::kSwizzle128);
  if (!w) return w.error();
  params.w = *w;
  params.pair = {pair->view.rank, static_cast<int>(pair->groups_a_block), pair->groups_a_copy,
                 pair->groups_a_run};
  params.up_first = pair->up_first ? 1 : 0;
  params.bias0 = step.pointer(Operand::kBGate);
  params.bias1 = step.pointer(Operand::kBUp);
  SLUICE_TRY(encode_input(at(step, Operand::kX), tiling, params.x, params.x_tail));
  if (tiling.stores_rows()) return {};
  const Box box = out_box(tiling, GemmKind::kGateUp);
  SLUICE_TRY(encode_boxes(at(step, Operand::kH), box, params.out));
  if (params.save == 0) return {};
  SLUICE_TRY(encode_boxes(at(step, Operand::kG), box, params.g));
  return encode_boxes(at(step, Operand::kU), box, params.u);
}

Status gate_up(const Step& step, const Tiling& tiling) noexcept {
  GemmParams params;
  SLUICE_TRY(encode_gate_up(step, tiling, params));
  if (tiling.is_stream_k()) {
    StreamKParams streamed{};
    streamed.gemm = params;
    streamed.out = rows_of(at(step, Operand::kH));
    streamed.partials = static_cast<float*>(step.scratch);
    streamed.header = static_cast<WorkspaceHeader*>(step.header);
    streamed.g = rows_of(at(step, Operand::kG));
    streamed.u = rows_of(at(step, Operand::kU));
    return launch_stream_k(launch_of(step, tiling), streamed);
  }
  if (tiling.is_split_k()) {
    SplitKParams split = split_k_params(params, at(step, Operand::kH));
    split.g = rows_of(at(step, Operand::kG));
    split.u = rows_of(at(step, Operand::kU));
    return launch_split_k(launch_of(step, tiling), GemmKind::kGateUp, split);
  }
  return launch_waves<GemmKind::kGateUp>(launch_of(step, tiling), params);
}

Status down(const Step& step, const Tiling& tiling) noexcept {
  const Problem& p = step.problem;
  GemmParams params = params_of(step, p.d, p.h);
  SLUICE_TRY(
      encode_boxes(at(step, Operand::kWDown), {kTileK, tiling.tile_n / tiling.cluster}, params.w));
  params.bias0 = step.pointer(Operand::kBDown);
  if (p.residual == Residual::kOperand) {
    const Matrix residual = at(step, Operand::kResidual);
    params.residual = residual.base;
    params.residual_row_bytes = residual.spec.layout.row_stride_bytes;
  }
  const Matrix y = at(step, Operand::kY);
  SLUICE_TRY(encode_input(at(step, Operand::kH), tiling, params.x, params.x_tail));
  if (tiling.is_split_k()) {
    SplitKParams split = split_k_params(params, y);
    return launch_split_k(launch_of(step, tiling), GemmKind::kDown, split);
  }
  SLUICE_TRY(encode_boxes(y, out_box(tiling, GemmKind::kDown), params.out));
  return launch_waves<GemmKind::kDown>(launch_of(step, tiling), params);
}

Status gate_up_grad(const Step& step, const Tiling& tiling) noexcept {
  GemmParams params = params_of(step, step.problem.h, step.problem.d);
  SLUICE_TRY(encode_input(at(step, Operand::kDy), tiling, params.x, params.x_tail));
  // W_down [D, H] is the B operand as it lies, one row of k after the other.
  SLUICE_TRY(encode_boxes(at(step, Operand::kWDown), column_box(tiling), params.w));
  const Box box = out_box(tiling, GemmKind::kGateUpGrad);
  SLUICE_TRY(encode_boxes(at(step, Operand::kG), box, params.g));
  SLUICE_TRY(encode_boxes(at(step, Operand::kU), box, params.u));
  SLUICE_TRY(encode_boxes(at(step, Operand::kDg), box, params.dg));
  SLUICE_TRY(encode_boxes(at(step, Operand::kDu), box, params.du));
  if (const Matrix h = at(step, Operand::kH); h.base != nullptr) {
    params.writes_h = 1;
    SLUICE_TRY(encode_boxes(h, box, params.out));
  }
  return launch_waves<GemmKind::kGateUpGrad>(launch_of(step, tiling), params);
}

Status input_grad(const Step& step, const Tiling& tiling) noexcept {
  GemmParams params = params_of(step, step.problem.d, step.problem.h);
  SLUICE_TRY(encode_input(at(step, Operand::kDg), tiling, params.x, params.x_tail));
  SLUICE_TRY(encode_input(at(step, Operand::kDu), tiling, params.x2, params.x2_tail));
  SLUICE_TRY(encode_boxes(at(step, Operand::kWGate), column_box(tiling), params.w));
  SLUICE_TRY(encode_boxes(at(step, Operand::kWUp), column_box(tiling), params.w2));
  SLUICE_TRY(
      encode_boxes(at(step, Operand::kDx), out_box(tiling, GemmKind::kInputGrad), params.out));
  return launch_waves<GemmKind::kInputGrad>(launch_of(step, tiling), params);
}

Status weight_grad(const Step& step, const Tiling& tiling, Operand left, Operand out) noexcept {
  const Matrix to = at(step, out);
  if (to.base == nullptr) return {};
  GemmParams params = params_of(step, to.spec.cols, step.problem.m);
  params.m = static_cast<int>(to.spec.rows);
  params.weights_static = 0;  // no operand is a weight
  SLUICE_TRY(encode_boxes(at(step, left), {kColumnBox, kTileK}, params.x));
  SLUICE_TRY(encode_boxes(at(step, Operand::kX), column_box(tiling), params.w));
  const Layout& layout = to.spec.layout;
  params.grad = {.base = static_cast<char*>(to.base),
                 .row_stride_bytes = layout.row_stride_bytes,
                 .block_rows = layout.block_rows,
                 .block_stride_bytes = layout.block_stride_bytes,
                 .fp32 = to.spec.dtype == DType::kF32 ? 1 : 0,
                 .accumulate = step.problem.accumulate_dw ? 1 : 0};
  return launch_waves<GemmKind::kWeightGrad>(launch_of(step, tiling), params);
}

}  // namespace sluice::cuda::sm90::gemm
