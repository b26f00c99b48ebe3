// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/gemm/products.hpp"

#include "cuda/host/workspace.hpp"
#include "cuda/operands.hpp"
#include "cuda/sm90/gemm/launch.hpp"
#include "cuda/sm90/gemm/split_k/params.hpp"
#include "cuda/sm90/gemm/stream_k/params.hpp"
#include "cuda/sm90/tensor_maps.hpp"

namespace sluice::cuda::sm90::gemm {
namespace {

using detail::Step;

// The A operand, x, h, dy or dg: whole row tiles, and the last one if it is not (InputTile). Tiles
// have kTileM rows whatever the tiling says, but under stream-K.
Status encode_input(const Step& step, Operand id, const Tiling& tiling, CUtensorMap& whole,
                    CUtensorMap& tail) {
  const int rows = tiling.is_stream_k() ? tiling.rows : kTileM;
  const std::int64_t all = step.spec(id).rows;
  if (all == 0) return {};
  if (tiling.input_parts() > 1) {  // one tile of tokens
    const int part = input_part(static_cast<int>(all), tiling.input_parts());
    return encode_boxes(step, id, {kTileK, part}, whole);
  }
  if (all >= rows) SLUICE_TRY(encode_boxes(step, id, {kTileK, rows}, whole));
  const auto left = static_cast<int>(all % rows);
  return left == 0 ? Status{} : encode_boxes(step, id, {kTileK, left}, tail);
}

// Of a kernel that stores rows from registers, StreamKParams or SplitKParams.
template <class Params>
Params row_params(const Step& step, const GemmParams& gemm, Operand out) {
  Params params{};
  params.gemm = gemm;
  params.out = row_major(step, out);
  params.g = row_major(step, Operand::kG);
  params.u = row_major(step, Operand::kU);
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
  const auto pairs =
      encode_pairs(step, tiling.tile_n / 16 / tiling.weight_parts(), longest_run(tiling));
  if (!pairs) return pairs.error();
  params.w = pairs->map;
  params.pair = pairs->walk;
  params.up_first = pairs->up_first;
  params.bias0 = step.pointer(Operand::kBGate);
  params.bias1 = step.pointer(Operand::kBUp);
  SLUICE_TRY(encode_input(step, Operand::kX, tiling, params.x, params.x_tail));
  if (tiling.stores_rows()) return {};
  const Box box = out_box(tiling, GemmKind::kGateUp);
  SLUICE_TRY(encode_boxes(step, Operand::kH, box, params.out));
  if (params.save == 0) return {};
  SLUICE_TRY(encode_boxes(step, Operand::kG, box, params.g));
  return encode_boxes(step, Operand::kU, box, params.u);
}

Status gate_up(const Step& step, const Tiling& tiling) noexcept {
  GemmParams params;
  SLUICE_TRY(encode_gate_up(step, tiling, params));
  if (tiling.is_stream_k()) {
    auto streamed = row_params<StreamKParams>(step, params, Operand::kH);
    streamed.partials = static_cast<float*>(step.scratch);
    streamed.header = static_cast<WorkspaceHeader*>(step.header);
    return launch_stream_k(launch_of(step, tiling), streamed);
  }
  if (tiling.is_split_k()) {
    auto split = row_params<SplitKParams>(step, params, Operand::kH);
    return launch_split_k(launch_of(step, tiling), GemmKind::kGateUp, split);
  }
  return launch_waves<GemmKind::kGateUp>(launch_of(step, tiling), params);
}

Status down(const Step& step, const Tiling& tiling) noexcept {
  const Problem& p = step.problem;
  GemmParams params = params_of(step, p.d, p.h);
  SLUICE_TRY(
      encode_boxes(step, Operand::kWDown, {kTileK, tiling.tile_n / tiling.cluster}, params.w));
  params.bias0 = step.pointer(Operand::kBDown);
  if (p.residual == Residual::kOperand) params.residual = row_major(step, Operand::kResidual);
  SLUICE_TRY(encode_input(step, Operand::kH, tiling, params.x, params.x_tail));
  if (tiling.is_split_k()) {
    auto split = row_params<SplitKParams>(step, params, Operand::kY);
    return launch_split_k(launch_of(step, tiling), GemmKind::kDown, split);
  }
  SLUICE_TRY(encode_boxes(step, Operand::kY, out_box(tiling, GemmKind::kDown), params.out));
  return launch_waves<GemmKind::kDown>(launch_of(step, tiling), params);
}

Status gate_up_grad(const Step& step, const Tiling& tiling) noexcept {
  GemmParams params = params_of(step, step.problem.h, step.problem.d);
  SLUICE_TRY(encode_input(step, Operand::kDy, tiling, params.x, params.x_tail));
  // W_down [D, H] is the B operand as it lies, one row of k after the other.
  SLUICE_TRY(encode_boxes(step, Operand::kWDown, column_box(tiling), params.w));
  const Box box = out_box(tiling, GemmKind::kGateUpGrad);
  SLUICE_TRY(encode_boxes(step, Operand::kG, box, params.g));
  SLUICE_TRY(encode_boxes(step, Operand::kU, box, params.u));
  SLUICE_TRY(encode_boxes(step, Operand::kDg, box, params.dg));
  SLUICE_TRY(encode_boxes(step, Operand::kDu, box, params.du));
  if (step.pointer(Operand::kH) != nullptr) {
    params.writes_h = 1;
    SLUICE_TRY(encode_boxes(step, Operand::kH, box, params.out));
  }
  return launch_waves<GemmKind::kGateUpGrad>(launch_of(step, tiling), params);
}

Status input_grad(const Step& step, const Tiling& tiling) noexcept {
  GemmParams params = params_of(step, step.problem.d, step.problem.h);
  SLUICE_TRY(encode_input(step, Operand::kDg, tiling, params.x, params.x_tail));
  SLUICE_TRY(encode_input(step, Operand::kDu, tiling, params.x2, params.x2_tail));
  SLUICE_TRY(encode_boxes(step, Operand::kWGate, column_box(tiling), params.w));
  SLUICE_TRY(encode_boxes(step, Operand::kWUp, column_box(tiling), params.w2));
  SLUICE_TRY(encode_boxes(step, Operand::kDx, out_box(tiling, GemmKind::kInputGrad), params.out));
  return launch_waves<GemmKind::kInputGrad>(launch_of(step, tiling), params);
}

Status weight_grad(const Step& step, const Tiling& tiling, Operand left, Operand out) noexcept {
  void* const base = step.pointer(out);
  if (base == nullptr) return {};
  const OperandSpec spec = step.spec(out);
  GemmParams params = params_of(step, spec.cols, step.problem.m);
  params.m = static_cast<int>(spec.rows);
  params.weights_static = 0;  // no operand is a weight
  SLUICE_TRY(encode_boxes(step, left, {kColumnBox, kTileK}, params.x));
  SLUICE_TRY(encode_boxes(step, Operand::kX, column_box(tiling), params.w));
  const Layout& layout = spec.layout;
  params.grad = {.base = static_cast<char*>(base),
                 .row_stride_bytes = layout.row_stride_bytes,
                 .block_rows = layout.block_rows,
                 .block_stride_bytes = layout.block_stride_bytes,
                 .fp32 = spec.dtype == DType::kF32 ? 1 : 0,
                 .accumulate = step.problem.accumulate_dw ? 1 : 0};
  return launch_waves<GemmKind::kWeightGrad>(launch_of(step, tiling), params);
}

}  // namespace sluice::cuda::sm90::gemm
