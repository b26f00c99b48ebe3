// SPDX-License-Identifier: Apache-2.0
// cuda.cublaslt_any: an operator's products by cuBLASLt where no GEMM of this library takes them:
// widths or rows that are no multiples of 16 bytes, pointers that are none, fp32. What needs more
// than a product is left as sums in fp32, as many rows at once as scratch has room for, and a
// launch behind each.
#include <algorithm>
#include <span>
#include <tuple>

#include "cuda/cublaslt/api.hpp"
#include "cuda/cublaslt/matrix.hpp"
#include "cuda/cublaslt/padded_rows.hpp"
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

constexpr std::int64_t kUnitElems = 8;  // of 16 bits in 16 bytes

std::int64_t whole_units(std::int64_t elems) {
  return (elems + kUnitElems - 1) / kUnitElems * kUnitElems;
}

bool is_weight(Operand id) {
  return id == Operand::kWGate || id == Operand::kWUp || id == Operand::kWDown;
}

// Whether widths, places and rows are whole units: then cuBLASLt's fast kernels take a matrix of 16
// bits as it lies.
bool is_whole(const Problem& p, Operand id) {
  const OperandSpec spec = even_rows(operand_spec(p, id));
  const Layout& l = spec.layout;
  return p.alignment_bytes % kUnitBytes == 0 && spec.cols % kUnitElems == 0 &&
         l.row_stride_bytes % kUnitBytes == 0 && l.block_stride_bytes % kUnitBytes == 0 &&
         l.block_rows % kUnitElems == 0 && (!is_weight(id) || spec.rows % kUnitElems == 0);
}

// Of its padded copy.
std::int64_t padded_rows(const OperandSpec& spec, Operand id) {
  return is_weight(id) ? whole_units(spec.rows) : spec.rows;
}

// The left and right sides of a step's products.
std::span<const Operand> inputs_of(const Problem& p) {
  static constexpr Operand kGateUpInputs[] = {Operand::kX, Operand::kWGate, Operand::kWUp};
  static constexpr Operand kDownInputs[] = {Operand::kH, Operand::kWDown};
  static constexpr Operand kGateUpGradInputs[] = {Operand::kDy, Operand::kWDown};
  static constexpr Operand kInputGradInputs[] = {Operand::kDg, Operand::kDu, Operand::kWGate,
                                                 Operand::kWUp};
  static constexpr Operand kWeightGradInputs[] = {Operand::kDg, Operand::kDu, Operand::kX};
  switch (p.op) {
    case Op::kGateUp:
      return kGateUpInputs;
    case Op::kDown:
      return kDownInputs;
    case Op::kGateUpGrad:
      return kGateUpGradInputs;
    case Op::kInputGrad:
      return kInputGradInputs;
    default:
      return kWeightGradInputs;
  }
}

std::int64_t copied_bytes(const Problem& p) {
  std::int64_t bytes = 0;
  for (const Operand id : inputs_of(p)) {
    if (!is_used(p, id) || is_whole(p, id)) continue;
    const OperandSpec spec = operand_spec(p, id);
    bytes += bytes_of(spec.dtype, padded_rows(spec, id) * whole_units(spec.cols));
  }
  return bytes;
}

// Whether inputs that are not whole are copied, with zeros where they end, and outputs that are not
// are left as sums. cuBLASLt's kernels for widths of no whole units take up to 7 times as long,
// whatever the distance of rows is; of few tokens they cost less than the copies, of which a
// backward pass has more (docs/kernels/cublaslt.md, section 6).
bool pads(const Problem& p) {
  constexpr std::int64_t kLeastTokens = 32;
  constexpr std::int64_t kLeastGradTokens = 512;
  const bool is_forward = p.op == Op::kGateUp || p.op == Op::kDown;
  return p.x_dtype != DType::kF32 && p.m >= (is_forward ? kLeastTokens : kLeastGradTokens) &&
         copied_bytes(p) <= kMostSumBytes;
}

// A gradient that cuBLASLt would round before it adds it.
bool adds_rounded(const Problem& p) {
  return p.op == Op::kWeightGrad && p.accumulate_dw && p.dw_dtype != DType::kF32;
}

// Whether the step's products stay sums until a launch finishes them. NOTE: also y with a bias,
// which some of cuBLASLt's kernels for odd widths add to a rounded product.
bool leaves_sums(const Problem& p) {
  switch (p.op) {
    case Op::kDown:
      return p.residual == Residual::kOperand || p.bias_down ||
             (pads(p) && !is_whole(p, Operand::kY));
    case Op::kWeightGrad:
      return adds_rounded(p) ||
             (pads(p) && (!is_whole(p, Operand::kDwGate) || p.h % kUnitElems != 0));
    default:
      return true;
  }
}

// Of the step's sums, how many there are and how many are kept at once.
struct Sums {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t at_once = 0;
};

Sums sums_of(const Problem& p) {
  Sums sums{.rows = p.op == Op::kWeightGrad ? p.h : p.m};
  const auto width = [&](std::int64_t cols) { return pads(p) ? whole_units(cols) : cols; };
  if (leaves_sums(p)) {
    const std::int64_t h_cols = p.op == Op::kGateUp ? 2 * width(p.h) : width(p.h);
    const bool of_h = p.op == Op::kGateUp || p.op == Op::kGateUpGrad;
    sums.cols = of_h ? h_cols : width(p.d);
  }
  // Whole eights, so that columns of a transposed operand stay as aligned as its rows.
  const std::int64_t row_bytes = sums.cols * std::int64_t{sizeof(float)};
  const std::int64_t room = row_bytes == 0 ? sums.rows : kMostSumBytes / row_bytes / 8 * 8;
  sums.at_once = std::min(sums.rows, std::max<std::int64_t>(room, 8));
  return sums;
}

// Whole eights too: a transposed operand's width may be padded.
std::int64_t sum_bytes(const Problem& p) {
  const Sums sums = sums_of(p);
  return whole_units(sums.at_once) * sums.cols * std::int64_t{sizeof(float)};
}

std::int64_t copies_at(const Problem& p) {
  return (kCublasLtScratchBytes + sum_bytes(p) + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
}

std::size_t scratch_bytes(const detail::StepView& s) noexcept {
  const Problem& p = s.problem;
  return static_cast<std::size_t>(copies_at(p) + (pads(p) ? copied_bytes(p) : 0));
}

// A step's inputs as its products read them. A padded w_up lies right below a padded w_gate.
class Inputs {
 public:
  explicit Inputs(const Step& step)
      : step_(step), to_(static_cast<char*>(step.scratch) + copies_at(step.problem)) {}

  // Enqueues the copy of one that is not whole.
  Status take(Operand id, Matrix& out) {
    const Problem& p = step_.problem;
    out = at(step_, id);
    if (!pads(p) || is_whole(p, id)) return {};
    OperandSpec& spec = out.spec;
    const PadRowsParams params{.from = out.base,
                               .layout = spec.layout,
                               .rows = spec.rows,
                               .cols = spec.cols,
                               .to = to_,
                               .to_rows = padded_rows(spec, id),
                               .to_cols = whole_units(spec.cols)};
    out.base = to_;
    spec.rows = params.to_rows;
    spec.cols = params.to_cols;
    spec.layout = {.row_stride_bytes = bytes_of(spec.dtype, spec.cols)};
    to_ += spec.rows * spec.layout.row_stride_bytes;
    return launch_pad_rows(step_.device, params, step_.stream);
  }

 private:
  const Step& step_;
  char* to_;
};

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
  const std::int64_t given = pads(step.problem) ? kUnitBytes : step.problem.alignment_bytes;
  const std::int64_t all = given | kCublasLtAlignment | product.b_step_bytes | offset_bytes;
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
  Inputs inputs(step);
  Matrix all_x{};
  Matrix gate{};
  Matrix up{};
  SLUICE_TRY(inputs.take(Operand::kX, all_x));
  SLUICE_TRY(inputs.take(Operand::kWGate, gate));
  SLUICE_TRY(inputs.take(Operand::kWUp, up));
  const Layout& l = gate.spec.layout;
  const std::int64_t h = gate.spec.rows;  // and what it is padded with
  const std::int64_t block = l.block_rows == 0 ? h : l.block_rows;
  const std::int64_t distance =
      static_cast<const char*>(up.base) - static_cast<const char*>(gate.base);
  const bool up_first = distance == -block * l.row_stride_bytes;
  const bool one = up_first || distance == block * l.row_stride_bytes;
  float* const sums = lt::sums_of(step);
  return for_each_part(p, [&](std::int64_t first, std::int64_t rows) -> Status {
    const Matrix x = from_row(all_x, first);
    if (one && (l.block_rows == 0 || l.block_stride_bytes == 2 * block * l.row_stride_bytes)) {
      SLUICE_TRY(multiply(step, sums_of_rows(step, x, up_first ? up : gate, rows, 2 * h)));
    } else {
      for (const bool is_up : {false, true}) {
        LtProduct half = sums_of_rows(step, x, is_up ? up : gate, rows, block);
        half.out = sums + (is_up != up_first ? block : 0);
        half.out_stride_elems = 2 * h;
        half.count = static_cast<int>(h / block);
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
  Inputs inputs(step);
  Matrix h{};
  Matrix w{};
  SLUICE_TRY(inputs.take(Operand::kH, h));
  SLUICE_TRY(inputs.take(Operand::kWDown, w));
  return for_each_part(p, [&](std::int64_t first, std::int64_t rows) -> Status {
    const Matrix y = from_row(at(step, Operand::kY), first);
    LtProduct product = sums_of_rows(step, from_row(h, first), w, rows, w.spec.rows);
    if (!leaves_sums(p)) {
      product.out_dtype = y.spec.dtype;
      product.out = y.base;
      product.out_stride_elems = stride_of(y);
      return multiply(step, product);
    }
    SLUICE_TRY(multiply(step, product));
    return add_sums(step, product.n, rows, step.pointer(Operand::kBDown),
                    from_row(at(step, Operand::kResidual), first), y);
  });
}

// dh = dy·w_down as sums, then the gate's gradient.
Status gate_up_grad(const Step& step) {
  const Problem& p = step.problem;
  Inputs inputs(step);
  Matrix dy{};
  Matrix w{};
  SLUICE_TRY(inputs.take(Operand::kDy, dy));
  SLUICE_TRY(inputs.take(Operand::kWDown, w));
  return for_each_part(p, [&](std::int64_t first, std::int64_t rows) -> Status {
    const auto part = [&](Operand id) { return from_row(at(step, id), first); };
    LtProduct product = sums_of_rows(step, from_row(dy, first), w, rows, w.spec.cols);
    product.b.transposed = false;
    SLUICE_TRY(multiply(step, product));
    const Matrix g = part(Operand::kG);
    const Matrix dg = part(Operand::kDg);
    const Matrix h = part(Operand::kH);
    return launch_grad_rows(step.device, p.x_dtype,
                            {.sums = lt::sums_of(step),
                             .sums_stride = product.n,
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
  Inputs inputs(step);
  Matrix lefts[2];
  Matrix rights[2];
  SLUICE_TRY(inputs.take(Operand::kDg, lefts[0]));
  SLUICE_TRY(inputs.take(Operand::kDu, lefts[1]));
  SLUICE_TRY(inputs.take(Operand::kWGate, rights[0]));
  SLUICE_TRY(inputs.take(Operand::kWUp, rights[1]));
  const std::int64_t d = rights[0].spec.cols;
  return for_each_part(p, [&](std::int64_t first, std::int64_t rows) -> Status {
    for (const bool is_up : {false, true}) {
      LtProduct product = sums_of_rows(step, from_row(lefts[is_up], first), rights[is_up], rows, d);
      product.b.transposed = false;
      product.accumulate = is_up;
      SLUICE_TRY(multiply(step, product));
    }
    const Matrix none{step.spec(Operand::kDx), nullptr};
    return add_sums(step, d, rows, nullptr, none, from_row(at(step, Operand::kDx), first));
  });
}

// One of the weights' gradients: `left` has a column for each of its rows.
Status one_weight_grad(const Step& step, const Matrix& left, const Matrix& x, Operand id) {
  const Problem& p = step.problem;
  return for_each_part(p, [&](std::int64_t first, std::int64_t rows) -> Status {
    const Matrix out = from_row(at(step, id), first);
    Matrix a = left;
    a.base = static_cast<char*>(a.base) + first * size_bytes(p.x_dtype);
    LtProduct product = sums_of_rows(step, a, x, rows, x.spec.cols);
    product.k = p.m;
    product.a.transposed = true;
    product.b.transposed = false;
    if (!leaves_sums(p)) {
      product.out_dtype = out.spec.dtype;
      product.out = out.base;
      product.out_stride_elems = stride_of(out);
      product.accumulate = p.accumulate_dw;
      return multiply(step, product);
    }
    // Of a padded left side, sums of columns of zeros too.
    product.m = std::min(whole_units(rows), left.spec.cols - first);
    SLUICE_TRY(multiply(step, product));
    Matrix none = out;
    none.base = nullptr;
    return add_sums(step, product.n, rows, nullptr, p.accumulate_dw ? out : none, out);
  });
}

Status weight_grad(const Step& step) {
  const bool gate = step.pointer(Operand::kDwGate) != nullptr;
  const bool up = step.pointer(Operand::kDwUp) != nullptr;
  Inputs inputs(step);
  Matrix x{};
  if (gate || up) SLUICE_TRY(inputs.take(Operand::kX, x));
  for (const auto& [wanted, left, id] :
       {std::tuple{gate, Operand::kDg, Operand::kDwGate}, {up, Operand::kDu, Operand::kDwUp}}) {
    if (!wanted) continue;
    Matrix a{};
    SLUICE_TRY(inputs.take(left, a));
    SLUICE_TRY(one_weight_grad(step, a, x, id));
  }
  return {};
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
      return weight_grad(step);
  }
}

std::string describe(const detail::StepView& s) {
  const Sums sums = sums_of(s.problem);
  std::string text = lt::algorithm_text(s);
  if (pads(s.problem) && copied_bytes(s.problem) > 0) {
    text += "; inputs of no whole 16 bytes are copied";
  }
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
