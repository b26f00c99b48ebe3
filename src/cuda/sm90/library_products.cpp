// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/library_products.hpp"

#include "cuda/cublaslt.hpp"

namespace sluice::cuda::sm90 {
namespace {

using detail::Reason;
using detail::refuse;

// A third of a millisecond of an H200. Below it `down` is a few waves at most, and cuBLASLt has
// more tilings and splits of k; above it the two are within 2 %, or this library's own is ahead
// (docs/kernels/cublaslt.md, section 5).
constexpr double kLibraryMaxFlops = 250e9;
// An H100's, whose L2 feeds this library's tiles less: cuBLASLt is 3 to 14 % ahead up to 3.6 TFLOP.
constexpr double kNarrowL2MaxFlops = 3.7e12;

// mlp_grad of so few tokens, whose weights' gradients are mostly what they store, or of so narrow
// an x, which leaves few tiles to a product: cuBLASLt's take 1 to 39 % off the whole with bf16
// gradients; in fp32 they were within 1.3 % at 8B, 512 tokens. Beyond, either may be ahead by 3 %
// (the same section).
constexpr std::int64_t kLibraryMaxGradTokens = 768;
constexpr std::int64_t kLibraryMaxGradWidth = 2048;

bool evenly_strided(const OperandSpec& spec) {
  return spec.layout.block_rows == 0 && spec.layout.block_cols == 0;
}

std::int64_t stride_of(const Matrix& matrix) {
  return matrix.spec.layout.row_stride_bytes / size_bytes(matrix.spec.dtype);
}

LtOperand operand(const Matrix& matrix, bool transposed) {
  return {matrix.base, stride_of(matrix), transposed};
}

Status launch(const Call& call, const LtProduct& product) {
  return cublaslt_product(product, call.library->rank, call.device.ordinal, call.library->scratch,
                          call.stream);
}

}  // namespace

Reason library_products_refusal(const Problem& p) noexcept {
  if (p.residual != Residual::kNone) {
    return refuse("residual: cuBLASLt rounds the product before it adds");
  }
  const auto specs = operand_specs(p);
  const bool backward = p.op == Op::kMlpGrad;
  for (const Operand id :
       {Operand::kH, Operand::kWDown, Operand::kY, Operand::kX, Operand::kDy, Operand::kWGate,
        Operand::kDg, Operand::kDx, Operand::kDwGate, Operand::kDwDown}) {
    // The fused kernel reads what else mlp has.
    if ((id == Operand::kX || id == Operand::kWGate) && !backward) continue;
    const OperandSpec& spec = specs[static_cast<std::size_t>(id)];
    if (spec.access == Access::kUnused) continue;
    const std::int64_t stride = spec.layout.row_stride_bytes;
    if (stride % kCublasLtAlignment != 0 || stride < spec.cols * size_bytes(spec.dtype)) {
      return refuse(
          "%s: rows are %lld bytes apart, wanted a multiple of %lld not below their width",
          spec.name, static_cast<long long>(stride), static_cast<long long>(kCublasLtAlignment));
    }
  }
  return {};
}

Reason library_yields(const Problem& p, const Device& device) noexcept {
  if (p.op == Op::kMlpGrad) {
    if (p.m <= kLibraryMaxGradTokens || p.d <= kLibraryMaxGradWidth) return {};
    return refuse("mlp_grad of m above %lld, d above %lld: this library's own is as fast",
                  static_cast<long long>(kLibraryMaxGradTokens),
                  static_cast<long long>(kLibraryMaxGradWidth));
  }
  const double down_flops =
      2.0 * static_cast<double>(p.m) * static_cast<double>(p.d) * static_cast<double>(p.h);
  const double most = has_narrow_l2(device.l2_bytes) ? kNarrowL2MaxFlops : kLibraryMaxFlops;
  if (down_flops > most) {
    return refuse("down of %.3g GFLOP: above %.3g this library's own is as fast", down_flops * 1e-9,
                  most * 1e-9);
  }
  return {};
}

Status library_down(const Call& call, const Matrix& h) noexcept {
  const Problem& p = call.problem;
  const Matrix y = call.at(Operand::kY);
  LtProduct product{.m = p.m,
                    .n = p.d,
                    .k = p.h,
                    .dtype = p.x_dtype,
                    .a = operand(h, false),
                    .b = operand(call.at(Operand::kWDown), true),
                    .out_dtype = y.spec.dtype,
                    .out = y.base,
                    .out_stride_elems = stride_of(y)};
  if (p.bias_down) product.bias = call.operands.b_down;
  return launch(call, product);
}

bool stacked(const Matrix& first, const Matrix& second) noexcept {
  return evenly_strided(first.spec) && static_cast<const char*>(second.base) ==
                                           static_cast<const char*>(first.base) +
                                               first.spec.rows * first.spec.layout.row_stride_bytes;
}

bool side_by_side(const Matrix& first, const Matrix& second) noexcept {
  const std::int64_t width = bytes_of(first.spec.dtype, first.spec.cols);
  return evenly_strided(first.spec) && first.spec.layout == second.spec.layout &&
         first.spec.layout.row_stride_bytes >= 2 * width &&
         static_cast<const char*>(second.base) == static_cast<const char*>(first.base) + width;
}

bool library_takes_input_grad(const Call& call, const Matrix& dg, const Matrix& du) noexcept {
  return stacked(call.at(Operand::kWGate), call.at(Operand::kWUp)) && side_by_side(dg, du);
}

Status library_input_grad(const Call& call, const Matrix& dg) noexcept {
  const Problem& p = call.problem;
  const Matrix dx = call.at(Operand::kDx);
  return launch(call, {.m = p.m,
                       .n = p.d,
                       .k = 2 * p.h,
                       .dtype = p.x_dtype,
                       .a = operand(dg, false),
                       .b = operand(call.at(Operand::kWGate), false),
                       .out_dtype = dx.spec.dtype,
                       .out = dx.base,
                       .out_stride_elems = stride_of(dx)});
}

bool library_takes_weight_grad(const Call& call, const Matrix& out) noexcept {
  return evenly_strided(out.spec) && (!call.problem.accumulate_dw || out.spec.dtype == DType::kF32);
}

Status library_weight_grad(const Call& call, const Matrix& left, const Matrix& right,
                           const Matrix& out, bool twice) noexcept {
  return launch(call, {.m = twice ? 2 * out.spec.rows : out.spec.rows,
                       .n = out.spec.cols,
                       .k = call.problem.m,
                       .dtype = call.problem.x_dtype,
                       .a = operand(left, true),
                       .b = operand(right, false),
                       .out_dtype = out.spec.dtype,
                       .out = out.base,
                       .out_stride_elems = stride_of(out),
                       .accumulate = call.problem.accumulate_dw});
}

}  // namespace sluice::cuda::sm90
