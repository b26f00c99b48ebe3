// SPDX-License-Identifier: Apache-2.0
// cuda.cublaslt_any: an operator's products by cuBLASLt where no GEMM of this library takes them:
// widths or rows that are no multiples of 16 bytes, pointers that are none, fp32. What needs more
// than a product is left as sums in fp32, as many rows at once as scratch has room for, and a
// launch behind each.
#include <algorithm>
#include <span>

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
  if (Reason reason = size_refusal(p); !reason.empty()) return reason;
  return layout_refusal(p);
}

constexpr std::int64_t kUnitElems = 8;  // of 16 bits in 16 bytes

std::int64_t whole_units(std::int64_t elems) {
  return (elems + kUnitElems - 1) / kUnitElems * kUnitElems;
}

bool is_weight(Operand id) {
  return id == Operand::kWGate || id == Operand::kWUp || id == Operand::kWDown;
}

// Whether widths, addresses and strides are whole units: then cuBLASLt's fast kernels take a matrix
// of 16 bits as it lies.
bool is_whole(const Problem& p, Operand id) {
  const OperandSpec spec = even_rows(operand_spec(p, id));
  return p.alignment_bytes % kUnitBytes == 0 && spec.cols % kUnitElems == 0 &&
         stride_refusal(spec).empty() && spec.layout.block_rows % kUnitElems == 0 &&
         (!is_weight(id) || spec.rows % kUnitElems == 0);
}

// Rows of an operand's padded copy.
std::int64_t padded_rows(const OperandSpec& spec, Operand id) {
  return is_weight(id) ? whole_units(spec.rows) : spec.rows;
}

// The left and right sides of a step's products, of which copies may be there at once. NOTE:
// without du in weight_grad: its copy takes dg's place.
std::span<const Operand> inputs_of(const Problem& p) {
  static constexpr Operand kGateUpInputs[] = {Operand::kX, Operand::kWGate, Operand::kWUp};
  static constexpr Operand kDownInputs[] = {Operand::kH, Operand::kWDown};
  static constexpr Operand kGateUpGradInputs[] = {Operand::kDy, Operand::kWDown};
  static constexpr Operand kInputGradInputs[] = {Operand::kDg, Operand::kDu, Operand::kWGate,
                                                 Operand::kWUp};
  static constexpr Operand kWeightGradInputs[] = {Operand::kDg, Operand::kX};
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
    if (is_whole(p, id)) continue;
    const OperandSpec spec = operand_spec(p, id);
    bytes += bytes_of(spec.dtype, padded_rows(spec, id) * whole_units(spec.cols));
  }
  return bytes;
}

// A gradient that cuBLASLt would round before it adds it.
bool adds_rounded(const Problem& p) {
  return p.op == Op::kWeightGrad && p.accumulate_dw && p.dw_dtype != DType::kF32;
}

// How a step's products are computed.
struct Way {
  // Inputs that are not whole are copied, with zeros where they end, and outputs that are not are
  // left as sums. cuBLASLt's kernels for widths of no whole units take up to 7 times as long,
  // whatever the distance of rows is. But few tokens cost less than the copies do
  // (docs/kernels/cublaslt.md, section 6).
  bool pads = false;
  std::int64_t copied_bytes = 0;
  // Of sums that stay in fp32 until a launch finishes them; no columns where none do.
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t at_once = 0;  // rows in scratch

  [[nodiscard]] bool leaves_sums() const { return cols > 0; }
};

bool pays_to_pad(const Problem& p, std::int64_t bytes) {
  constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;  // of scratch, beside the sums
  constexpr std::int64_t kBytesInL2 = std::int64_t{32} << 20;
  constexpr std::int64_t kLeastTokens = 32;
  constexpr std::int64_t kLeastTokensBeyondL2 = 256;  // by the copies' traffic; not measured
  constexpr std::int64_t kLeastGradTokens = 512;      // a backward pass has more copies
  const bool is_forward = p.op == Op::kGateUp || p.op == Op::kDown;
  const std::int64_t least = !is_forward          ? kLeastGradTokens
                             : bytes > kBytesInL2 ? kLeastTokensBeyondL2
                                                  : kLeastTokens;
  return p.x_dtype != DType::kF32 && p.m >= least && bytes <= kMostBytes;
}

// NOTE: y with a bias is left as sums: some of cuBLASLt's kernels for odd widths round before they
// add it.
bool leaves_sums(const Problem& p, bool pads) {
  switch (p.op) {
    case Op::kDown:
      return p.residual == Residual::kOperand || p.bias_down || (pads && !is_whole(p, Operand::kY));
    case Op::kWeightGrad:
      return adds_rounded(p) || (pads && (!is_whole(p, Operand::kDwGate) || p.h % kUnitElems != 0));
    default:
      return true;
  }
}

Way way_of(const Problem& p) {
  Way way;
  way.copied_bytes = copied_bytes(p);
  way.pads = pays_to_pad(p, way.copied_bytes);
  if (!way.pads) way.copied_bytes = 0;
  way.rows = p.op == Op::kWeightGrad ? p.h : p.m;
  if (leaves_sums(p, way.pads)) {
    const bool of_h = p.op == Op::kGateUp || p.op == Op::kGateUpGrad;
    const std::int64_t width = of_h ? p.h : p.d;
    way.cols = (p.op == Op::kGateUp ? 2 : 1) * (way.pads ? whole_units(width) : width);
  }
  // Whole eights, so that columns of a transposed operand stay as aligned as its rows.
  const std::int64_t row_bytes = way.cols * std::int64_t{sizeof(float)};
  const std::int64_t room = row_bytes == 0 ? way.rows : kMostSumBytes / row_bytes / 8 * 8;
  way.at_once = std::min(way.rows, std::max<std::int64_t>(room, 8));
  return way;
}

// Copies lie behind the sums. Rows of those are rounded up to eights: a padded left side of
// weight_grad makes sums for its zeros.
std::int64_t copies_at(const Way& way) {
  const std::int64_t sums = whole_units(way.at_once) * way.cols * std::int64_t{sizeof(float)};
  return (kCublasLtScratchBytes + sums + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
}

std::size_t scratch_bytes(const detail::StepView& s) noexcept {
  const Way way = way_of(s.problem);
  return static_cast<std::size_t>(copies_at(way) + way.copied_bytes);
}

// A launch of a step: its inputs as its products read them, and its products.
class Run {
 public:
  explicit Run(const Step& step)
      : step_(step),
        way_(way_of(step.problem)),
        to_(static_cast<char*>(step.scratch) + copies_at(way_)) {}

  [[nodiscard]] const Way& way() const { return way_; }

  // Enqueues the copy of an input that is not whole. A w_up's follows a w_gate's.
  Status take(Operand id, Matrix& out) { return take_to(id, out, to_); }

  // The same in the place of the last copy, which nobody reads behind this.
  Status replace(Operand id, Matrix& out) {
    char* again = last_;
    return take_to(id, out, again);
  }

  // Calls part(first, rows) for the rows of sums that are kept at once, one after the other.
  template <class Part>
  Status for_each_part(const Part& part) const {
    for (std::int64_t first = 0; first < way_.rows; first += way_.at_once) {
      SLUICE_TRY(part(first, std::min(way_.at_once, way_.rows - first)));
    }
    return {};
  }

  // The product, with a promise of its bases alone: cuBLASLt reads the distances of rows. Parts
  // begin at every eighth row, in whole units; its out may lie `offset_bytes` behind one.
  Status multiply(LtProduct product, std::int64_t offset_bytes = 0) const {
    const std::int64_t given = way_.pads ? kUnitBytes : step_.problem.alignment_bytes;
    const std::int64_t all = given | kCublasLtAlignment | product.b_step_bytes | offset_bytes;
    product.alignment_bytes = all & -all;
    return lt::multiply(step_, product);
  }

 private:
  Status take_to(Operand id, Matrix& out, char*& to) {
    const Problem& p = step_.problem;
    out = at(step_, id);
    if (!way_.pads || is_whole(p, id)) return {};
    OperandSpec& spec = out.spec;
    const PadRowsParams params{.from = out.base,
                               .layout = spec.layout,
                               .rows = spec.rows,
                               .cols = spec.cols,
                               .to = to,
                               .to_rows = padded_rows(spec, id),
                               .to_cols = whole_units(spec.cols)};
    out.base = last_ = to;
    spec.rows = params.to_rows;
    spec.cols = params.to_cols;
    spec.layout = {.row_stride_bytes = bytes_of(spec.dtype, spec.cols)};
    to += spec.rows * spec.layout.row_stride_bytes;
    return launch_pad_rows(step_.device, params, step_.stream);
  }

  const Step& step_;
  Way way_;
  char* to_;
  char* last_ = nullptr;
};

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
  Run run(step);
  Matrix all_x{};
  Matrix gate{};
  Matrix up{};
  SLUICE_TRY(run.take(Operand::kX, all_x));
  SLUICE_TRY(run.take(Operand::kWGate, gate));
  SLUICE_TRY(run.take(Operand::kWUp, up));
  const Layout& l = gate.spec.layout;
  const std::int64_t h = gate.spec.rows;  // and what it is padded with
  const std::int64_t block = l.block_rows == 0 ? h : l.block_rows;
  const std::int64_t distance =
      static_cast<const char*>(up.base) - static_cast<const char*>(gate.base);
  const bool up_first = distance == -block * l.row_stride_bytes;
  const bool one = up_first || distance == block * l.row_stride_bytes;
  float* const sums = lt::sums_of(step);
  return run.for_each_part([&](std::int64_t first, std::int64_t rows) -> Status {
    const Matrix x = from_row(all_x, first);
    if (one && (l.block_rows == 0 || l.block_stride_bytes == 2 * block * l.row_stride_bytes)) {
      SLUICE_TRY(run.multiply(sums_of_rows(step, x, up_first ? up : gate, rows, 2 * h)));
    } else {
      for (const bool is_up : {false, true}) {
        LtProduct half = sums_of_rows(step, x, is_up ? up : gate, rows, block);
        half.out = sums + (is_up != up_first ? block : 0);
        half.out_stride_elems = 2 * h;
        half.count = static_cast<int>(h / block);
        half.b_step_bytes = half.count > 1 ? l.block_stride_bytes : 0;
        half.out_step_elems = half.count > 1 ? 2 * block : 0;
        SLUICE_TRY(run.multiply(half, block * std::int64_t{sizeof(float)}));
      }
    }
    return gate_sums(step, {first, rows}, block, up_first);
  });
}

Status down(const Step& step) {
  Run run(step);
  Matrix h{};
  Matrix w{};
  SLUICE_TRY(run.take(Operand::kH, h));
  SLUICE_TRY(run.take(Operand::kWDown, w));
  return run.for_each_part([&](std::int64_t first, std::int64_t rows) -> Status {
    const Matrix y = from_row(at(step, Operand::kY), first);
    LtProduct product = sums_of_rows(step, from_row(h, first), w, rows, w.spec.rows);
    if (!run.way().leaves_sums()) {
      product.out_dtype = y.spec.dtype;
      product.out = y.base;
      product.out_stride_elems = stride_of(y);
      return run.multiply(product);
    }
    SLUICE_TRY(run.multiply(product));
    return add_sums(step, product.n, rows, step.pointer(Operand::kBDown),
                    from_row(at(step, Operand::kResidual), first), y);
  });
}

// dh = dy·w_down as sums, then the gate's gradient.
Status gate_up_grad(const Step& step) {
  const Problem& p = step.problem;
  Run run(step);
  Matrix dy{};
  Matrix w{};
  SLUICE_TRY(run.take(Operand::kDy, dy));
  SLUICE_TRY(run.take(Operand::kWDown, w));
  return run.for_each_part([&](std::int64_t first, std::int64_t rows) -> Status {
    const auto part = [&](Operand id) { return from_row(at(step, id), first); };
    LtProduct product = sums_of_rows(step, from_row(dy, first), w, rows, w.spec.cols);
    product.b.transposed = false;
    SLUICE_TRY(run.multiply(product));
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
  if (step.pointer(Operand::kDx) == nullptr) return {};
  Run run(step);
  Matrix lefts[2];
  Matrix rights[2];
  SLUICE_TRY(run.take(Operand::kDg, lefts[0]));
  SLUICE_TRY(run.take(Operand::kDu, lefts[1]));
  SLUICE_TRY(run.take(Operand::kWGate, rights[0]));
  SLUICE_TRY(run.take(Operand::kWUp, rights[1]));
  const std::int64_t d = rights[0].spec.cols;
  return run.for_each_part([&](std::int64_t first, std::int64_t rows) -> Status {
    for (const bool is_up : {false, true}) {
      LtProduct product = sums_of_rows(step, from_row(lefts[is_up], first), rights[is_up], rows, d);
      product.b.transposed = false;
      product.accumulate = is_up;
      SLUICE_TRY(run.multiply(product));
    }
    const Matrix none{step.spec(Operand::kDx), nullptr};
    return add_sums(step, d, rows, nullptr, none, from_row(at(step, Operand::kDx), first));
  });
}

// One of the weights' gradients: `left` has a column for each of its rows.
Status one_weight_grad(const Step& step, const Run& run, const Matrix& left, const Matrix& x,
                       Operand id) {
  const Problem& p = step.problem;
  return run.for_each_part([&](std::int64_t first, std::int64_t rows) -> Status {
    const Matrix out = from_row(at(step, id), first);
    Matrix a = left;
    a.base = static_cast<char*>(a.base) + first * size_bytes(p.x_dtype);
    LtProduct product = sums_of_rows(step, a, x, rows, x.spec.cols);
    product.k = p.m;
    product.a.transposed = true;
    product.b.transposed = false;
    if (!run.way().leaves_sums()) {
      product.out_dtype = out.spec.dtype;
      product.out = out.base;
      product.out_stride_elems = stride_of(out);
      product.accumulate = p.accumulate_dw;
      return run.multiply(product);
    }
    // A padded left side has columns of zeros, whose sums nobody reads.
    product.m = std::min(whole_units(rows), left.spec.cols - first);
    SLUICE_TRY(run.multiply(product));
    Matrix none = out;
    none.base = nullptr;
    return add_sums(step, product.n, rows, nullptr, p.accumulate_dw ? out : none, out);
  });
}

Status weight_grad(const Step& step) {
  const bool gate = step.pointer(Operand::kDwGate) != nullptr;
  const bool up = step.pointer(Operand::kDwUp) != nullptr;
  if (!gate && !up) return {};
  Run run(step);
  Matrix x{};
  SLUICE_TRY(run.take(Operand::kX, x));
  Matrix left{};
  if (gate) {
    SLUICE_TRY(run.take(Operand::kDg, left));
    SLUICE_TRY(one_weight_grad(step, run, left, x, Operand::kDwGate));
  }
  if (!up) return {};
  SLUICE_TRY(gate ? run.replace(Operand::kDu, left) : run.take(Operand::kDu, left));
  return one_weight_grad(step, run, left, x, Operand::kDwUp);
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
  const Way way = way_of(s.problem);
  std::string text = lt::algorithm_text(s);
  if (way.copied_bytes > 0) text += "; inputs of no whole 16 bytes are copied";
  if (!way.leaves_sums()) return text;
  text += "; sums ";
  if (way.at_once < way.rows) text += "of " + std::to_string(way.at_once) + " rows at a time ";
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
