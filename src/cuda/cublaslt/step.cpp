// SPDX-License-Identifier: Apache-2.0
// cuda.cublaslt: the plain products of an operator by cuBLASLt: down, x's and the weights'
// gradients; and gate_up, or down with a residual, as a product whose sums stay in fp32, with a
// launch for the gate, or for what is added.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include "cuda/cublaslt/api.hpp"
#include "cuda/cublaslt/matrix.hpp"
#include "cuda/cublaslt/sums.hpp"
#include "cuda/host/tensor_map.hpp"
#include "cuda/kernel_rows.hpp"
#include "cuda/refusals.hpp"
#include "cuda/sm90/gemm/products.hpp"
#include "cuda/sm90/gemm/table.hpp"
#include "cuda/sm90/out_of_reach.hpp"
#include "cuda/sm90/refusals.hpp"
#include "math/gate.hpp"

namespace sluice::cuda {
namespace {

using detail::Reason;
using detail::refuse;
using detail::Step;
using lt::at;
using lt::evenly_strided;
using lt::kMostSumBytes;
using lt::Matrix;
using lt::multiply;
using lt::operand;
using lt::side_by_side;
using lt::stacked;
using lt::stride_of;
using lt::sums_of;

// An H200 takes 5 ms for it. Below it cuBLASLt is as fast or, with more tilings and splits of k, up
// to 17 % faster; above it this library's own is 1 to 4 % ahead (docs/kernels/cublaslt.md, section
// 4).
constexpr double kMaxDownFlops = 3.7e12;

// mlp_grad of so few tokens, whose weights' gradients are mostly what they store, or of so narrow
// an x, which leaves few tiles to a product: cuBLASLt's take 1 to 39 % off the whole with bf16
// gradients; in fp32 they were within 1.3 % at 8B, 512 tokens. Beyond, either may be ahead by 3 %
// (the same section).
constexpr std::int64_t kMaxGradTokens = 768;
constexpr std::int64_t kMaxGradWidth = 2048;

// Of sums that stay in fp32: with beta = 1 and 16-bit outputs cuBLASLt rounds the product before it
// adds.
std::int64_t sum_bytes(const Problem& p) {
  const std::int64_t cols = p.op == Op::kGateUp                ? 2 * p.h
                            : p.residual == Residual::kOperand ? p.d
                                                               : 0;
  return p.m * cols * static_cast<std::int64_t>(sizeof(float));
}

// Rows that are no matrix to cuBLASLt.
Reason rows_refusal(const OperandSpec& spec) {
  if (spec.access == Access::kUnused) return {};
  const std::int64_t stride = spec.layout.row_stride_bytes;
  if (stride % kCublasLtAlignment != 0 || stride < spec.cols * size_bytes(spec.dtype)) {
    return refuse("%s: rows are %lld bytes apart, wanted a multiple of %lld not below their width",
                  spec.name, static_cast<long long>(stride),
                  static_cast<long long>(kCublasLtAlignment));
  }
  if (!evenly_strided(spec.layout)) return refuse("%s: rows have several strides", spec.name);
  return {};
}

// gate_up's weights: two matrices, or one in which blocks of gate's and up's rows take turns.
Reason gate_up_refusal(const Problem& p) {
  if (p.norm.enabled) return refuse("has no norm prologue");
  for (const Operand id : {Operand::kX, Operand::kH, Operand::kG}) {
    if (Reason reason = rows_refusal(operand_spec(p, id)); !reason.empty()) return reason;
  }
  const OperandSpec w = lt::even_rows(operand_spec(p, Operand::kWGate));
  const Layout& l = w.layout;
  OperandSpec all = w;  // gate's and up's rows in turns
  if (blocks_alternate(l)) all.layout.block_rows = 0;
  if (Reason reason = rows_refusal(all); !reason.empty()) return reason;
  if (l.block_rows == 0) return {};
  if (p.h % l.block_rows != 0 || l.block_rows % kSumColumns != 0) {
    return refuse("%s: no whole blocks of a multiple of %d rows", w.name, kSumColumns);
  }
  return pair_view_refusal(w);
}

Reason layout_refusal(const Problem& p) {
  if (sum_bytes(p) > kMostSumBytes) {
    return refuse("its sums in fp32 take %lld MiB, wanted at most %lld",
                  static_cast<long long>(sum_bytes(p) >> 20),
                  static_cast<long long>(kMostSumBytes >> 20));
  }
  if (p.op == Op::kGateUp) return gate_up_refusal(p);
  for (const Operand id :
       {Operand::kH, Operand::kWDown, Operand::kY, Operand::kResidual, Operand::kX, Operand::kWGate,
        Operand::kDg, Operand::kDx, Operand::kDwGate}) {
    if (Reason reason = rows_refusal(operand_spec(p, id)); !reason.empty()) return reason;
  }
  return {};
}

Reason supports(const Problem& p, const Device& device) noexcept {
  if (Reason reason = sm90::device_refusal(device); !reason.empty()) return reason;
  if (device.cublaslt_version == 0) return refuse("%s", kCublasLtAbsent);
  if (Reason reason = half_type_refusal(p); !reason.empty()) return reason;
  if (Reason reason = unit_refusal(p); !reason.empty()) return reason;
  if (Reason reason = grad_type_refusal(p); !reason.empty()) return reason;
  if (p.op == Op::kWeightGrad && p.accumulate_dw && p.dw_dtype != DType::kF32) {
    return refuse("dw_gate: adds to fp32 alone, cuBLASLt rounds the product before it adds");
  }
  if (Reason reason = size_refusal(p); !reason.empty()) return reason;
  // Two products in one sum, and blocks of rows in two buffers, go to that kernel.
  const bool blocks = p.op == Op::kGateUp && p.layout.w_gate_up.block_rows != 0;
  if (p.op == Op::kInputGrad || blocks) {
    if (Reason reason = kSm90Gemm.supports(p, device); !reason.empty()) return reason;
  }
  return layout_refusal(p);
}

std::size_t scratch_bytes(const detail::StepView& s) noexcept {
  return static_cast<std::size_t>(kCublasLtScratchBytes + sum_bytes(s.problem));
}

// The time of gate_up or down, of the best of these tiles and splits of k, whichever cuBLASLt
// takes: waves of tiles that L2 feeds, and the weights from memory; of gate_up then the sums once
// there and back; launches. Fitted to what lt0 took at 423 shapes on an H100 and an H200, and to
// whether lt0 or an own tiling was faster within mlp at 270 more (the log of cublaslt); picoseconds
// are of an element of a tile's rows and columns, for one of k.
double product_us(const Problem& p, const Device& device) {
  constexpr int kTiles[][2] = {{64, 64},   {64, 128},  {128, 64},  {64, 256},
                               {128, 128}, {128, 192}, {128, 256}, {256, 128}};
  constexpr int kSplits[] = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16};
  constexpr double kLeastSplitK = 256;
  constexpr double kElementPs = 24.4;
  constexpr double kFewTokensElementPs = 22.6;  // its tiles come in eights of tokens, these do not
  constexpr std::int64_t kFewTokens = 384;
  constexpr std::int64_t kTallTokens = 304;  // more than 256 that one tile has
  constexpr double kTallElementPs = 26.5;    // 40 gate_ups of 272 to 384 tokens on an H200
  constexpr double kLaunchUs = 0.87;
  constexpr double kMemoryUs = 2.94;
  constexpr double kSplitUs = 0.84;
  constexpr double kSplitMegabytesAUs = 62;
  constexpr double kMegabytesAUs = 4.27;
  constexpr double kNarrowL2MegabytesAUs = 2.7;
  constexpr double kGateUsAMegabyte = 0.4;
  constexpr double kAddUs = 1;
  constexpr double kAddUsAMegabyte = 0.4;
  const bool gate_up = p.op == Op::kGateUp;
  const auto m = static_cast<double>(p.m);
  const auto n = static_cast<double>(gate_up ? 2 * p.h : p.d);
  const auto k = static_cast<double>(gate_up ? p.d : p.h);
  const double rate =
      sm90::gemm::has_narrow_l2(device.l2_bytes) ? kNarrowL2MegabytesAUs : kMegabytesAUs;
  const double memory = kMemoryUs + 2 * (n + m) * k * 1e-6 / rate;
  const double sums = 4 * m * n * 1e-6;
  const double element_ps = p.m < kFewTokens ? kFewTokensElementPs : kElementPs;
  double best = std::numeric_limits<double>::infinity();
  const auto consider = [&](int rows, int cols, double ps) {
    for (const int split : kSplits) {
      if (split > 1 && k / split < kLeastSplitK) break;
      const double waves =
          std::ceil(std::ceil(m / rows) * std::ceil(n / cols) * split / device.sm_count);
      const double steps = 64 * std::ceil(k / split / 64);
      const double multiply = waves * steps * (rows + cols) * ps * 1e-6;
      const double reduce = split == 1 ? 0 : kSplitUs + 2 * split * sums / kSplitMegabytesAUs;
      if (std::max(multiply, memory) + reduce >= best) continue;  // spares most powers
      best = std::min(best, sm90::gemm::longer_us(multiply, memory, 8) + reduce);
    }
  };
  for (const auto& [rows, cols] : kTiles) consider(rows, cols, element_ps);
  if (p.m > 256 && p.m <= kTallTokens) consider(static_cast<int>(p.m), 128, kTallElementPs);
  const double after = gate_up            ? 2 * kGateUsAMegabyte * sums
                       : sum_bytes(p) > 0 ? kAddUs + kAddUsAMegabyte * sums
                                          : 0;
  return best + kLaunchUs + after;
}

struct Times {
  double theirs;
  double own;
};

double down_flops(const Problem& p) {
  return 2.0 * static_cast<double>(p.m) * static_cast<double>(p.d) * static_cast<double>(p.h);
}

// Of gate_up or down; cuBLASLt's is endless where it does not serve.
Times times_of(const Problem& p, const Device& device) {
  const bool serves =
      supports(p, device).empty() && (p.op == Op::kGateUp || down_flops(p) <= kMaxDownFlops);
  return {serves ? product_us(p, device) : std::numeric_limits<double>::infinity(),
          sm90_gemm_us(p, device)};
}

Reason refuse_slower(const char* what, Times us) {
  if (us.theirs < us.own) return {};
  return refuse("%s: estimated at %.3g us, this library's own at %.3g", what, us.theirs, us.own);
}

Reason long_down_refusal(const Problem& p) {
  if (p.op != Op::kDown || down_flops(p) <= kMaxDownFlops) return {};
  return refuse("down of %.3g TFLOP: above %.3g this library's own is faster",
                down_flops(p) * 1e-12, kMaxDownFlops * 1e-12);
}

Status down(const Step& step) {
  const Problem& p = step.problem;
  const Matrix y = at(step, Operand::kY);
  const bool adds = p.residual == Residual::kOperand;
  SLUICE_TRY(multiply(step, {.m = p.m,
                             .n = p.d,
                             .k = p.h,
                             .dtype = p.x_dtype,
                             .a = operand(at(step, Operand::kH), false),
                             .b = operand(at(step, Operand::kWDown), true),
                             .out_dtype = adds ? DType::kF32 : y.spec.dtype,
                             .out = adds ? sums_of(step) : y.base,
                             .out_stride_elems = adds ? p.d : stride_of(y),
                             .bias = adds ? nullptr : step.pointer(Operand::kBDown)}));
  if (!adds) return {};
  return lt::add_sums(step, p.d, p.m, step.pointer(Operand::kBDown), at(step, Operand::kResidual),
                      y);
}

// Sums in scratch behind cuBLASLt's own, in the order of the weights' rows.
Status gate_up(const Step& step) {
  const Problem& p = step.problem;
  const Matrix gate = at(step, Operand::kWGate);
  const Matrix up{gate.spec, step.pointer(Operand::kWUp)};
  const Layout& l = gate.spec.layout;
  const std::int64_t block = l.block_rows == 0 ? p.h : l.block_rows;
  const std::int64_t distance =
      static_cast<const char*>(up.base) - static_cast<const char*>(gate.base);
  const bool up_first = distance < 0;
  const std::int64_t step_bytes = up_first ? -distance : distance;
  const bool one = step_bytes == block * l.row_stride_bytes;
  if (l.block_rows != 0 && !one) {  // matrices of their own, each with the gaps of the other
    sm90::gemm::GemmShape shape{p.m, 2 * p.h, p.d, sm90::gemm::GemmKind::kGateUp,
                                step.device.sm_count};
    shape.block_groups = block / kPairGroupRows;
    shape.partials = false;
    return sm90::pairs_in_reach(step) ? sm90::gemm::gate_up(step, sm90::gemm::best_tiling(shape))
                                      : sm90::gate_up_out_of_reach(step);
  }
  float* const sums = sums_of(step);
  SLUICE_TRY(multiply(step, {.m = p.m,
                             .n = one ? 2 * p.h : p.h,
                             .k = p.d,
                             .dtype = p.x_dtype,
                             .a = operand(at(step, Operand::kX), false),
                             .b = operand(up_first ? up : gate, true),
                             .out_dtype = DType::kF32,
                             .out = sums,
                             .out_stride_elems = 2 * p.h,
                             .count = one ? 1 : 2,
                             .b_step_bytes = step_bytes,
                             .out_step_elems = p.h}));
  return lt::gate_sums(step, {.count = p.m}, block, up_first);
}

// dx is one product where gate and up lie in one evenly strided [2H, D] matrix, dg and du in one
// [M, 2H] matrix. Two would round a partial sum: then it is this library's own.
Status input_grad(const Step& step) {
  const Problem& p = step.problem;
  const Matrix w_gate = at(step, Operand::kWGate);
  const Matrix dg = at(step, Operand::kDg);
  if (!stacked(w_gate, at(step, Operand::kWUp)) || !side_by_side(dg, at(step, Operand::kDu))) {
    return sm90::gemm::input_grad(step,
                                  sm90::gemm::best_input_grad(p.m, p.d, p.h, step.device.sm_count));
  }
  const Matrix dx = at(step, Operand::kDx);
  return multiply(step, {.m = p.m,
                         .n = p.d,
                         .k = 2 * p.h,
                         .dtype = p.x_dtype,
                         .a = operand(dg, false),
                         .b = operand(w_gate, false),
                         .out_dtype = dx.spec.dtype,
                         .out = dx.base,
                         .out_stride_elems = stride_of(dx)});
}

// out = leftᵀ·x; with `twice` left is dg and du side by side, out both gradients in one matrix.
Status one_weight_grad(const Step& step, const Matrix& left, const Matrix& out, bool twice) {
  if (out.base == nullptr) return {};
  return multiply(step, {.m = twice ? 2 * out.spec.rows : out.spec.rows,
                         .n = out.spec.cols,
                         .k = step.problem.m,
                         .dtype = step.problem.x_dtype,
                         .a = operand(left, true),
                         .b = operand(at(step, Operand::kX), false),
                         .out_dtype = out.spec.dtype,
                         .out = out.base,
                         .out_stride_elems = stride_of(out),
                         .accumulate = step.problem.accumulate_dw});
}

Status weight_grad(const Step& step) {
  const Matrix dg = at(step, Operand::kDg);
  const Matrix du = at(step, Operand::kDu);
  const Matrix dw_gate = at(step, Operand::kDwGate);
  const Matrix dw_up = at(step, Operand::kDwUp);
  if (dw_gate.base != nullptr && stacked(dw_gate, dw_up) && side_by_side(dg, du)) {
    return one_weight_grad(step, dg, dw_gate, true);
  }
  SLUICE_TRY(one_weight_grad(step, dg, dw_gate, false));
  return one_weight_grad(step, du, dw_up, false);
}

Status launch(const Step& step, const Step* /*next*/) noexcept {
  switch (step.problem.op) {
    case Op::kGateUp:
      return gate_up(step);
    case Op::kDown:
      return down(step);
    case Op::kInputGrad:
      return input_grad(step);
    default:
      return weight_grad(step);
  }
}

std::string describe(const detail::StepView& s) {
  const Op op = s.problem.op;
  std::string text = lt::algorithm_text(s);
  if (op == Op::kGateUp || op == Op::kDown) text.insert(text.find(" of "), " by estimated time");
  if (op == Op::kGateUp) return text + "; its sums stay in fp32, the gate is a launch";
  return sum_bytes(s.problem) > 0 ? text + "; its sums stay in fp32, the residual is a launch"
                                  : text;
}

}  // namespace

Status lt::gate_sums(const Step& step, Rows rows, std::int64_t block, bool up_first) noexcept {
  const Problem& p = step.problem;
  const auto part = [&](Operand id) { return from_row(at(step, id), rows.first); };
  const Matrix h = part(Operand::kH);
  const Matrix g = part(Operand::kG);
  return launch_gate_rows(step.device, p.x_dtype,
                          {.sums = sums_of(step),
                           .sums_stride = (p.h + block - 1) / block * 2 * block,
                           .rows = rows.count,
                           .cols = p.h,
                           .block = block,
                           .up_first = up_first,
                           .plain_gate = math::is_plain(p.gate),
                           .gate = p.gate,
                           .b_gate = step.pointer(Operand::kBGate),
                           .b_up = step.pointer(Operand::kBUp),
                           .h = h.base,
                           .h_stride = stride_of(h),
                           .g = g.base,
                           .u = part(Operand::kU).base,
                           .g_u_stride = stride_of(g)},
                          step.stream);
}

Status lt::add_sums(const Step& step, std::int64_t sums_stride, std::int64_t rows, const void* bias,
                    const Matrix& residual, const Matrix& y) noexcept {
  return launch_add_rows(step.device, y.spec.dtype,
                         {.sums = sums_of(step),
                          .sums_stride = sums_stride,
                          .rows = rows,
                          .cols = y.spec.cols,
                          .bias = bias,
                          .residual = residual.base,
                          .residual_stride = stride_of(residual),
                          .y = y.base,
                          .y_stride = stride_of(y)},
                         step.stream);
}

std::size_t lt::configs(const Problem&, const Device&, std::span<KernelConfig> out) noexcept {
  std::array<Choice, kCublasLtRanks> ranks{};
  for (int rank = 0; rank < kCublasLtRanks; ++rank) ranks[static_cast<std::size_t>(rank)] = {rank};
  return detail::offer<Choice>(ranks, out);
}

void lt::name_config(const KernelConfig& config, std::span<char> out) noexcept {
  std::snprintf(out.data(), out.size(), "lt%d", detail::config_as<Choice>(config).rank);
}

std::string lt::algorithm_text(const detail::StepView& s) {
  const int version = s.device.cublaslt_version;
  char text[100];
  std::snprintf(text, sizeof(text), "algorithm %d of what cuBLASLt %d.%d.%d's heuristic offers",
                detail::config_as<Choice>(s.config).rank, version / 10000, version / 100 % 100,
                version % 100);
  return text;
}

const detail::Kernel kCublasLt = {
    .name = "cuda.cublaslt",
    .ops = {Op::kGateUp, Op::kDown, Op::kInputGrad, Op::kWeightGrad},
    .supports = supports,
    .configs = lt::configs,
    .name_config = lt::name_config,
    .launch = launch,
    .describe = describe,
    .scratch_bytes = scratch_bytes,
};

Reason cublaslt_yields_in_mlp(const Problem& gate_up, const Problem& down, Op step,
                              const Device& device) noexcept {
  constexpr double kOverlapUs = 2;
  const Times g = times_of(gate_up, device);
  const Times d = times_of(down, device);
  const Times both{g.theirs + std::min(d.theirs, d.own),
                   g.own + std::min(d.theirs, d.own - kOverlapUs)};
  if (step == Op::kGateUp) return refuse_slower("gate_up, with down", both);
  if (Reason reason = long_down_refusal(down); !reason.empty()) return reason;
  return refuse_slower("down", {d.theirs, d.own - (both.theirs < both.own ? 0 : kOverlapUs)});
}

Reason cublaslt_yields(const Problem& p, const Problem& step, const Device& device) noexcept {
  if (step.op == Op::kGateUp || step.op == Op::kDown) {
    if (Reason reason = long_down_refusal(step); !reason.empty()) return reason;
    return refuse_slower(to_string(step.op), times_of(step, device));
  }
  if (p.op == Op::kMlpGrad || p.op == Op::kInputGrad || p.op == Op::kWeightGrad) {
    if (p.m <= kMaxGradTokens || p.d <= kMaxGradWidth) return {};
    return refuse("%s of m above %lld, d above %lld: this library's own is as fast",
                  to_string(p.op), static_cast<long long>(kMaxGradTokens),
                  static_cast<long long>(kMaxGradWidth));
  }
  return {};
}

}  // namespace sluice::cuda
