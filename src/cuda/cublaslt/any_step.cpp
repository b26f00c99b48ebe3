// SPDX-License-Identifier: Apache-2.0
// cuda.cublaslt_any: an operator's products by cuBLASLt where no GEMM of this library takes them:
// widths or rows that are no multiples of 16 bytes, pointers that are none, fp32. What needs more
// than a product is left as sums in fp32, as many rows at once as scratch has room for, and a
// launch behind each.
#include <algorithm>

#include "cuda/cublaslt/api.hpp"
#include "cuda/cublaslt/matrix.hpp"
#include "cuda/cublaslt/sums.hpp"
#include "cuda/kernel_rows.hpp"
#include "cuda/refusals.hpp"

namespace sluice::cuda {
namespace lt::any {
namespace {

using detail::Reason;
using detail::refuse;
using detail::Step;
using ll = long long;

constexpr Operand kMatrices[] = {Operand::kX,        Operand::kDy, Operand::kWGate, Operand::kWDown,
                                 Operand::kResidual, Operand::kG,  Operand::kDg,    Operand::kH,
                                 Operand::kY,        Operand::kDx, Operand::kDwGate};

Reason type_refusal(const Problem& p) {
  if (p.x_dtype == DType::kF32 && has_one_type(p)) return {};
  return half_type_refusal(p);
}

Reason rows_refusal(const OperandSpec& spec) {
  const std::int64_t stride = spec.layout.row_stride_bytes;
  const std::int64_t elem = size_bytes(spec.dtype);
  if (stride % elem != 0 || stride < spec.cols * elem) {
    return refuse("%s: rows are %lld bytes apart, wanted whole elements not below their width",
                  spec.name, ll{stride});
  }
  if (!evenly_strided(spec.layout)) return refuse("%s: rows have several strides", spec.name);
  return {};
}

// Gate's and up's rows may take turns in blocks.
Reason layout_refusal(const Problem& p) {
  for (const Operand id : kMatrices) {
    if (!is_used(p, id)) continue;
    OperandSpec spec = even_rows(operand_spec(p, id));
    Layout& l = spec.layout;
    if (p.op == Op::kGateUp && id == Operand::kWGate && l.block_rows != 0) {
      if (p.h % l.block_rows != 0 || l.block_stride_bytes % size_bytes(spec.dtype) != 0) {
        return refuse("%s: no whole blocks of %lld rows", spec.name, ll{l.block_rows});
      }
      l.block_rows = 0;
    }
    if (Reason reason = rows_refusal(spec); !reason.empty()) return reason;
  }
  return {};
}

Reason supports(const Problem& p, const Device& device) noexcept {
  if (device.compute_capability < 80) {
    return refuse("needs compute capability 8.0, the device has %d.%d",
                  device.compute_capability / 10, device.compute_capability % 10);
  }
  if (device.cublaslt_version == 0) return refuse("%s", kCublasLtAbsent);
  if (Reason reason = type_refusal(p); !reason.empty()) return reason;
  if (Reason reason = grad_type_refusal(p); !reason.empty()) return reason;
  if (p.norm.enabled) return refuse("has no norm prologue");
  if (p.alignment_bytes < size_bytes(p.x_dtype)) {
    return refuse("alignment_bytes is %lld, below an element of %s", ll{p.alignment_bytes},
                  to_string(p.x_dtype));
  }
  constexpr std::int64_t kMaxDim = std::int64_t{1} << 29;
  if (p.m > kMaxDim || p.d > kMaxDim || p.h > kMaxDim) {
    return refuse("m, d, h are %lld, %lld, %lld, wanted at most %lld each", ll{p.m}, ll{p.d},
                  ll{p.h}, ll{kMaxDim});
  }
  return layout_refusal(p);
}

// A gradient that cuBLASLt would round before it adds it.
bool adds_rounded(const Problem& p) {
  return p.op == Op::kWeightGrad && p.accumulate_dw && p.dw_dtype != DType::kF32;
}

// Of the step's sums, how many there are and how many are kept at once.
struct Sums {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t at_once = 0;
};

Sums sums_of(const Problem& p) {
  Sums sums{.rows = p.m};
  switch (p.op) {
    case Op::kGateUp:
      sums.cols = 2 * p.h;
      break;
    case Op::kGateUpGrad:
      sums.cols = p.h;
      break;
    case Op::kDown:
      sums.cols = p.residual == Residual::kOperand ? p.d : 0;
      break;
    case Op::kInputGrad:
      sums.cols = p.d;
      break;
    default:
      sums = {.rows = p.h, .cols = adds_rounded(p) ? p.d : 0};
  }
  // Whole eights, so that columns of a transposed operand stay as aligned as its rows.
  const std::int64_t row_bytes = sums.cols * std::int64_t{sizeof(float)};
  const std::int64_t room = row_bytes == 0 ? sums.rows : kMostSumBytes / row_bytes / 8 * 8;
  sums.at_once = std::min(sums.rows, std::max<std::int64_t>(room, 8));
  return sums;
}

std::size_t scratch_bytes(const detail::StepView& s) noexcept {
  const Sums sums = sums_of(s.problem);
  return static_cast<std::size_t>(kCublasLtScratchBytes +
                                  sums.at_once * sums.cols * std::int64_t{sizeof(float)});
}

// Calls part(first, rows) for the rows of sums that are kept at once, one after the other.
template <class Part>
Status for_each_part(const Problem& p, const Part& part) {
  const Sums sums = sums_of(p);
  for (std::int64_t first = 0; first < sums.rows; first += sums.at_once) {
    SLUICE_TRY(part(first, std::min(sums.at_once, sums.rows - first)));
  }
  return {};
}

// The product, with a promise of its bases alone: cuBLASLt reads the distances of rows. Parts begin
// at every eighth row, in whole units; its out may lie `offset_bytes` behind one.
Status multiply(const Step& step, LtProduct product, std::int64_t offset_bytes = 0) {
  const std::int64_t all =
      step.problem.alignment_bytes | kCublasLtAlignment | product.b_step_bytes | offset_bytes;
  product.alignment_bytes = all & -all;
  return lt::multiply(step, product);
}

// Sums of `rows` rows of `a`, n columns of each, of weights [n, k] that begin at `b`.
LtProduct sums_of_rows(const Step& step, const Matrix& a, const Matrix& b, std::int64_t rows,
                       std::int64_t n) {
  return {.m = rows,
          .n = n,
          .k = a.spec.cols,
          .dtype = step.problem.x_dtype,
          .a = operand(a, false),
          .b = operand(b, true),
          .out_dtype = DType::kF32,
          .out = lt::sums_of(step),
          .out_stride_elems = n};
}

Status gate_up(const Step& step) {
  const Problem& p = step.problem;
  const Matrix gate = at(step, Operand::kWGate);
  const Matrix up{gate.spec, step.pointer(Operand::kWUp)};
  const Layout& l = gate.spec.layout;
  const std::int64_t block = l.block_rows == 0 ? p.h : l.block_rows;
  const std::int64_t distance =
      static_cast<const char*>(up.base) - static_cast<const char*>(gate.base);
  const bool up_first = distance == -block * l.row_stride_bytes;
  const bool one = up_first || distance == block * l.row_stride_bytes;
  float* const sums = lt::sums_of(step);
  return for_each_part(p, [&](std::int64_t first, std::int64_t rows) -> Status {
    const Matrix x = from_row(at(step, Operand::kX), first);
    if (one && (l.block_rows == 0 || l.block_stride_bytes == 2 * block * l.row_stride_bytes)) {
      SLUICE_TRY(multiply(step, sums_of_rows(step, x, up_first ? up : gate, rows, 2 * p.h)));
    } else {
      for (const bool is_up : {false, true}) {
        LtProduct half = sums_of_rows(step, x, is_up ? up : gate, rows, block);
        half.out = sums + (is_up != up_first ? block : 0);
        half.out_stride_elems = 2 * p.h;
        half.count = static_cast<int>(p.h / block);
        half.b_step_bytes = half.count > 1 ? l.block_stride_bytes : 0;
        half.out_step_elems = half.count > 1 ? 2 * block : 0;
        SLUICE_TRY(multiply(step, half, block * std::int64_t{sizeof(float)}));
      }
    }
    return gate_sums(step, {first, rows}, block, up_first);
  });
}

Status down(const Step& step) {
  const Problem& p = step.problem;
  const bool adds = p.residual == Residual::kOperand;
  const Matrix w = at(step, Operand::kWDown);
  return for_each_part(p, [&](std::int64_t first, std::int64_t rows) -> Status {
    const Matrix y = from_row(at(step, Operand::kY), first);
    LtProduct product = sums_of_rows(step, from_row(at(step, Operand::kH), first), w, rows, p.d);
    if (!adds) {
      product.out_dtype = y.spec.dtype;
      product.out = y.base;
      product.out_stride_elems = stride_of(y);
      product.bias = step.pointer(Operand::kBDown);
      return multiply(step, product);
    }
    SLUICE_TRY(multiply(step, product));
    return add_sums(step, rows, step.pointer(Operand::kBDown),
                    from_row(at(step, Operand::kResidual), first), y);
  });
}

// dh = dy·w_down as sums, then the gate's gradient.
Status gate_up_grad(const Step& step) {
  const Problem& p = step.problem;
  const Matrix w = at(step, Operand::kWDown);
  return for_each_part(p, [&](std::int64_t first, std::int64_t rows) -> Status {
    const auto part = [&](Operand id) { return from_row(at(step, id), first); };
    LtProduct product = sums_of_rows(step, part(Operand::kDy), w, rows, p.h);
    product.b.transposed = false;
    SLUICE_TRY(multiply(step, product));
    const Matrix g = part(Operand::kG);
    const Matrix dg = part(Operand::kDg);
    const Matrix h = part(Operand::kH);
    return launch_grad_rows(step.device, p.x_dtype,
                            {.sums = lt::sums_of(step),
                             .rows = rows,
                             .cols = p.h,
                             .gate = p.gate,
                             .g = g.base,
                             .u = part(Operand::kU).base,
                             .g_u_stride = stride_of(g),
                             .dg = dg.base,
                             .du = part(Operand::kDu).base,
                             .dg_du_stride = stride_of(dg),
                             .h = h.base,
                             .h_stride = stride_of(h)},
                            step.stream);
  });
}

// Two products summed in fp32.
Status input_grad(const Step& step) {
  const Problem& p = step.problem;
  if (step.pointer(Operand::kDx) == nullptr) return {};
  return for_each_part(p, [&](std::int64_t first, std::int64_t rows) -> Status {
    for (const auto& [left, right] :
         {std::pair{Operand::kDg, Operand::kWGate}, std::pair{Operand::kDu, Operand::kWUp}}) {
      LtProduct product =
          sums_of_rows(step, from_row(at(step, left), first), at(step, right), rows, p.d);
      product.b.transposed = false;
      product.accumulate = left == Operand::kDu;
      SLUICE_TRY(multiply(step, product));
    }
    const Matrix none{step.spec(Operand::kDx), nullptr};
    return add_sums(step, rows, nullptr, none, from_row(at(step, Operand::kDx), first));
  });
}

Status weight_grad(const Step& step, Operand left, Operand id) {
  const Problem& p = step.problem;
  if (step.pointer(id) == nullptr) return {};
  return for_each_part(p, [&](std::int64_t first, std::int64_t rows) -> Status {
    const Matrix out = from_row(at(step, id), first);
    Matrix a = at(step, left);  // its columns are the gradient's rows
    a.base = static_cast<char*>(a.base) + first * size_bytes(p.x_dtype);
    LtProduct product = sums_of_rows(step, a, at(step, Operand::kX), rows, p.d);
    product.k = p.m;
    product.a.transposed = true;
    product.b.transposed = false;
    if (!adds_rounded(p)) {
      product.out_dtype = out.spec.dtype;
      product.out = out.base;
      product.out_stride_elems = stride_of(out);
      product.accumulate = p.accumulate_dw;
      return multiply(step, product);
    }
    SLUICE_TRY(multiply(step, product));
    return add_sums(step, rows, nullptr, out, out);
  });
}

Status launch(const Step& step, const Step* /*next*/) noexcept {
  switch (step.problem.op) {
    case Op::kGateUp:
      return gate_up(step);
    case Op::kDown:
      return down(step);
    case Op::kGateUpGrad:
      return gate_up_grad(step);
    case Op::kInputGrad:
      return input_grad(step);
    default:
      SLUICE_TRY(weight_grad(step, Operand::kDg, Operand::kDwGate));
      return weight_grad(step, Operand::kDu, Operand::kDwUp);
  }
}

std::string describe(const detail::StepView& s) {
  const Sums sums = sums_of(s.problem);
  std::string text = lt::algorithm_text(s);
  if (sums.cols == 0) return text;
  text += "; sums of ";
  if (sums.at_once < sums.rows) text += std::to_string(sums.at_once) + " rows at a time ";
  return text + "stay in fp32, a launch finishes them";
}

}  // namespace
}  // namespace lt::any

const detail::Kernel kCublasLtAny = {
    .name = "cuda.cublaslt_any",
    .ops = {Op::kGateUp, Op::kDown, Op::kGateUpGrad, Op::kInputGrad, Op::kWeightGrad},
    .supports = lt::any::supports,
    .configs = lt::configs,
    .name_config = lt::name_config,
    .launch = lt::any::launch,
    .describe = lt::any::describe,
    .scratch_bytes = lt::any::scratch_bytes,
};

detail::Reason in_units(const Problem& p) noexcept {
  if (p.x_dtype == DType::kF32 || !unit_refusal(p).empty()) return {};
  for (const OperandSpec& spec : operand_specs(p)) {
    if (spec.access != Access::kUnused && !stride_refusal(spec).empty()) return {};
  }
  return detail::refuse("rows are whole units of 16 bytes, which other kernels take");
}

}  // namespace sluice::cuda
