// SPDX-License-Identifier: Apache-2.0
// cuda.simt: every operator from one GEMM and three elementwise kernels, on any GPU from sm_75, for
// any shape, layout and alignment. Right before quick; see docs/kernels/simt.md. It makes one step
// of an operator, since what its kernels leave to each other has types of its own. cuda.column_sum
// and cuda.norm_any: the gradient of a bias, summed over tokens, and RMSNorm, for recipes that have
// no kernel of their own for these.
#include <array>
#include <cstdio>

#include "cuda/host/workspace.hpp"
#include "cuda/kernel_rows.hpp"
#include "cuda/refusals.hpp"
#include "cuda/simt/kernels.hpp"

namespace sluice::cuda {
namespace {

using simt::Epilogue;
using simt::GemmParams;
using simt::Tile;
using simt::View;

constexpr const char* kTileNames[simt::kTileCount] = {"64x64x16", "16x64x32"};

// The low tile wastes fewer rows while there are few; from one full tile on the square one reads
// half the bytes per multiply-add.
constexpr std::int64_t kLowTileRows = 16;

/// Buffers inside the scratch; which exist depends on the problem alone.
struct Scratch {
  View n;   // [M, D] x_dtype: norm prologue
  View r;   // [M, D] x_dtype: its sum, where y needs it
  View h;   // [M, H] x_dtype: kMlp, kMlpGrad
  View g;   // [M, H] fp32: kMlpGrad with recompute, not rounded
  View u;   // as g
  View dg;  // [M, H] x_dtype: kMlpGrad without save_dg_du
  View du;  // as dg
  std::size_t bytes = 0;
};

Scratch lay_out(const Problem& p, void* base) {
  ScratchCursor cursor(base);
  Scratch s;
  const auto take = [&](View& view, std::int64_t cols, DType dtype) {
    view.dtype = dtype;
    view.layout.row_stride_bytes = cols * size_bytes(dtype);
    view.base = static_cast<char*>(cursor.take(p.m * view.layout.row_stride_bytes));
  };
  if (p.norm.enabled && p.op != Op::kNorm) {
    take(s.n, p.d, p.x_dtype);
    if (p.norm.add && p.residual == Residual::kNormInput) take(s.r, p.d, p.x_dtype);
  }
  const bool grad = p.op == Op::kMlpGrad;
  if (p.op == Op::kMlp || grad) take(s.h, p.h, p.x_dtype);
  if (grad) {
    if (p.recompute) {
      take(s.g, p.h, DType::kF32);
      take(s.u, p.h, DType::kF32);
    }
    if (!p.save_dg_du) {
      take(s.dg, p.h, p.x_dtype);
      take(s.du, p.h, p.x_dtype);
    }
  }
  s.bytes = cursor.used();
  return s;
}

View transposed(View view) {
  view.transposed = true;
  return view;
}

/// One call of run(): operators as sequences of launches on one stream.
class Launcher {
 public:
  explicit Launcher(const detail::Step& step)
      : step_(step),
        p_(step.problem),
        device_(step.device),
        tile_(detail::config_as<Tile>(step.config)),
        scratch_(lay_out(step.problem, step.scratch)),
        stream_(step.stream) {}

  Status run() const {
    switch (p_.op) {
      case Op::kGateUp:
      case Op::kMlp:
        return forward();
      case Op::kDown:
        return down(view(Operand::kH), view(Operand::kResidual));
      case Op::kGateMul:
      case Op::kGateMulGrad:
        return gate_mul();
      case Op::kGateUpGrad:
        return gate_grad(view(Operand::kG), view(Operand::kU), view(Operand::kH),
                         view(Operand::kDg), view(Operand::kDu));
      case Op::kMlpGrad:
        return mlp_grad();
      case Op::kNorm:
        return norm(view(Operand::kY), view(Operand::kXSum));
      case Op::kInputGrad:
        return input_grad(view(Operand::kDg), view(Operand::kDu));
      case Op::kWeightGrad:
        SLUICE_TRY(
            weight_grad(Operand::kDwGate, view(Operand::kDg), p_.h, view(Operand::kX), p_.d));
        return weight_grad(Operand::kDwUp, view(Operand::kDu), p_.h, view(Operand::kX), p_.d);
      case Op::kColumnSum:
        return bias_grad(Operand::kDbGate, view(Operand::kDg), p_.h);
      case Op::kAllReduce:
        break;
    }
    return make_error(ErrorCode::kInternal, "cuda.simt: unknown operator");
  }

 private:
  // An operand. Without a base where it is absent.
  [[nodiscard]] View view(Operand id) const {
    const OperandSpec spec = step_.spec(id);
    return {static_cast<char*>(step_.pointer(id)), spec.layout, spec.dtype};
  }

  Status gemm(const GemmParams& params, Tile tile) const {
    return simt::launch_gemm(device_, tile, params, stream_);
  }

  Status gate_up(const View& x, const View& h, const View& g, const View& u) const {
    GemmParams params;
    params.rows = p_.m;
    params.cols = p_.h;
    params.depth = p_.d;
    params.epilogue = Epilogue::kGateUp;
    params.gate = p_.gate;
    params.a[0] = x;
    params.b[0] = view(Operand::kWGate);
    params.b[1] = view(Operand::kWUp);
    params.bias[0] = view(Operand::kBGate);
    params.bias[1] = view(Operand::kBUp);
    params.out = h;
    params.g = g;
    params.u = u;
    return gemm(params, tile_);
  }

  Status down(const View& h, const View& residual) const {
    GemmParams params;
    params.rows = p_.m;
    params.cols = p_.d;
    params.depth = p_.h;
    params.a[0] = h;
    params.b[0] = view(Operand::kWDown);
    params.bias[0] = view(Operand::kBDown);
    params.addend = residual;
    params.out = view(Operand::kY);
    return gemm(params, tile_);
  }

  Status norm(const View& n, const View& r) const {
    simt::NormParams params;
    params.rows = p_.m;
    params.cols = p_.d;
    params.eps = p_.norm.eps;
    params.weight_offset = p_.norm.weight_offset;
    params.dtype = p_.x_dtype;
    params.x = view(Operand::kX);
    params.x_residual = view(Operand::kXResidual);
    params.weight = view(Operand::kNormWeight);
    params.n = n;
    if (p_.norm.add) params.r = r;
    return simt::launch_norm(device_, params, stream_);
  }

  Status forward() const {
    View x = view(Operand::kX);
    View r = x;  // what the norm normalised
    if (p_.norm.enabled) {
      if (p_.norm.add) {
        r = view(Operand::kXSum);
        if (r.base == nullptr) r = scratch_.r;
      }
      SLUICE_TRY(norm(scratch_.n, r));
      x = scratch_.n;
    }
    const View h = p_.op == Op::kMlp ? scratch_.h : view(Operand::kH);
    SLUICE_TRY(gate_up(x, h, view(Operand::kG), view(Operand::kU)));
    if (p_.op == Op::kGateUp) return {};
    return down(h, p_.residual == Residual::kNormInput ? r : view(Operand::kResidual));
  }

  Status gate_mul() const {
    simt::GateParams params;
    params.rows = p_.m;
    params.cols = p_.h;
    params.gate = p_.gate;
    params.g = view(Operand::kG);
    params.u = view(Operand::kU);
    params.dh = view(Operand::kDh);
    params.h = view(Operand::kH);
    params.dg = view(Operand::kDg);
    params.du = view(Operand::kDu);
    return simt::launch_gate(device_, p_.round_gate, params, stream_);
  }

  // dh = dy·Wd, and what the gate's derivative makes of it.
  Status gate_grad(const View& g, const View& u, const View& h, const View& dg,
                   const View& du) const {
    GemmParams params;
    params.rows = p_.m;
    params.cols = p_.h;
    params.depth = p_.d;
    params.epilogue = Epilogue::kGateGrad;
    params.gate = p_.gate;
    params.a[0] = view(Operand::kDy);
    params.b[0] = transposed(view(Operand::kWDown));
    params.out = h;
    params.g = g;
    params.u = u;
    params.dg = dg;
    params.du = du;
    return gemm(params, tile_);
  }

  // out[i, j] = Σ over tokens of left(m, i) · right(m, j), added to what is there where asked.
  Status weight_grad(Operand id, const View& left, std::int64_t rows, const View& right,
                     std::int64_t cols) const {
    const View out = view(id);
    if (out.base == nullptr) return {};
    GemmParams params;
    params.rows = rows;
    params.cols = cols;
    params.depth = p_.m;
    params.a[0] = transposed(left);
    params.b[0] = transposed(right);
    params.out = out;
    if (p_.accumulate_dw) params.addend = out;
    return gemm(params, Tile::k64x64x16);
  }

  Status bias_grad(Operand id, const View& in, std::int64_t cols) const {
    const View out = view(id);
    if (out.base == nullptr) return {};
    simt::ColumnSumParams params;
    params.rows = p_.m;
    params.cols = cols;
    params.accumulate = p_.accumulate_dw;
    params.in = in;
    params.out = out;
    return simt::launch_column_sum(device_, params, stream_);
  }

  Status input_grad(const View& dg, const View& du) const {
    GemmParams params;
    params.rows = p_.m;
    params.cols = p_.d;
    params.depth = p_.h;
    params.products = 2;
    params.a[0] = dg;
    params.a[1] = du;
    params.b[0] = transposed(view(Operand::kWGate));
    params.b[1] = transposed(view(Operand::kWUp));
    params.out = view(Operand::kDx);
    return params.out.base == nullptr ? Status{} : gemm(params, tile_);
  }

  Status mlp_grad() const {
    const View x = view(Operand::kX);
    const View dy = view(Operand::kDy);
    const Scratch& s = scratch_;
    const View dg = p_.save_dg_du ? view(Operand::kDg) : s.dg;
    const View du = p_.save_dg_du ? view(Operand::kDu) : s.du;
    if (p_.recompute) SLUICE_TRY(gate_up(x, View{}, s.g, s.u));
    SLUICE_TRY(gate_grad(p_.recompute ? s.g : view(Operand::kG),
                         p_.recompute ? s.u : view(Operand::kU), s.h, dg, du));
    SLUICE_TRY(input_grad(dg, du));
    SLUICE_TRY(weight_grad(Operand::kDwGate, dg, p_.h, x, p_.d));
    SLUICE_TRY(weight_grad(Operand::kDwUp, du, p_.h, x, p_.d));
    SLUICE_TRY(weight_grad(Operand::kDwDown, dy, p_.d, s.h, p_.h));
    SLUICE_TRY(bias_grad(Operand::kDbGate, dg, p_.h));
    SLUICE_TRY(bias_grad(Operand::kDbUp, du, p_.h));
    return bias_grad(Operand::kDbDown, dy, p_.d);
  }

  const detail::Step& step_;
  const Problem& p_;
  const Device& device_;
  Tile tile_;
  Scratch scratch_;
  Stream stream_;
};

// What has no type of bf16, fp16 or fp32.
detail::Reason supports(const Problem& problem, const Device& device) noexcept {
  if (detail::Reason reason = capability_refusal(device); !reason.empty()) return reason;
  for (const OperandSpec& spec : operand_specs(problem)) {
    if (spec.access == Access::kUnused) continue;
    if (spec.dtype == DType::kF64) {
      return detail::refuse("%s is fp64; accumulates in fp32", spec.name);
    }
    if (is_block_type(spec.dtype)) {
      return detail::refuse("%s is in blocks of %s; takes bf16, fp16 and fp32", spec.name,
                            to_string(spec.dtype));
    }
  }
  return {};
}

// Whether the operator's launches take a tile.
bool multiplies(Op op) {
  return op != Op::kGateMul && op != Op::kGateMulGrad && op != Op::kNorm && op != Op::kColumnSum;
}

std::size_t configs(const Problem& problem, const Device& /*device*/,
                    std::span<KernelConfig> out) noexcept {
  const Tile first = problem.m <= kLowTileRows ? Tile::k16x64x32 : Tile::k64x64x16;
  const Tile second = first == Tile::k64x64x16 ? Tile::k16x64x32 : Tile::k64x64x16;
  const std::array tiles = {first, second};
  return detail::offer<Tile>(std::span(tiles).first(multiplies(problem.op) ? 2 : 1), out);
}

void name_config(const KernelConfig& config, std::span<char> out) noexcept {
  const auto tile = static_cast<std::size_t>(detail::config_as<Tile>(config));
  std::snprintf(out.data(), out.size(), "%s", kTileNames[tile]);
}

std::size_t scratch_bytes(const detail::StepView& s) noexcept {
  return lay_out(s.problem, nullptr).bytes;
}

Status launch(const detail::Step& step, const detail::Step* /*next*/) noexcept {
  return Launcher(step).run();
}

std::string describe(const detail::StepView& s) {
  if (!multiplies(s.problem.op)) return "one launch without a product";
  const auto tile = static_cast<std::size_t>(detail::config_as<Tile>(s.config));
  return std::string("CTAs of 256 threads, tiles of rows x columns x k ") + kTileNames[tile] +
         ", one launch after the other";
}

std::string describe_norm(const detail::StepView& s) {
  return "a CTA a row, " + std::to_string(s.problem.m) + " rows";
}

std::string describe_column_sum(const detail::StepView& s) {
  return "a thread a column, " + std::to_string(s.problem.h) + " columns";
}

}  // namespace

const detail::Kernel kSimt = {
    .name = "cuda.simt",
    .ops = detail::OpSet::all(),
    .supports = supports,
    .configs = configs,
    .name_config = name_config,
    .launch = launch,
    .describe = describe,
    .scratch_bytes = scratch_bytes,
};

const detail::Kernel kNormAny = {
    .name = "cuda.norm_any",
    .ops = {Op::kNorm},
    .supports = supports,
    .launch = launch,
    .describe = describe_norm,
};

const detail::Kernel kColumnSum = {
    .name = "cuda.column_sum",
    .ops = {Op::kColumnSum},
    .supports = supports,
    .launch = launch,
    .describe = describe_column_sum,
};

}  // namespace sluice::cuda
