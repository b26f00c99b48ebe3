// SPDX-License-Identifier: Apache-2.0
// How a case's data lie in memory, and the case as text; case_parse.cpp reads that text.
#include "harness/case.hpp"

#include <fmt/format.h>

#include <array>

#include "sluice/operands.hpp"

namespace sluice::harness {
namespace {

constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;
constexpr std::int64_t kDefaultAlignment = 16;

bool used(const std::array<OperandSpec, kOperandCount>& specs, Operand id) {
  return specs[static_cast<std::size_t>(id)].access != Access::kUnused;
}

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// One matrix on its own: kContiguous stands where nothing was asked for.
Layout padded(const Case& c, std::int64_t cols, DType dtype) {
  Layout layout;
  if (c.pad_elems > 0) {
    layout.row_stride_bytes = bytes_of(dtype, cols + c.pad_elems * block_elems(dtype));
  }
  return layout;
}

Layout weight_pair(const Case& c, DType dtype) {
  const std::int64_t cols = c.problem.d + c.pad_elems * block_elems(dtype);
  if (c.placement == Placement::kInterleaved) return interleaved_rows(c.block_rows, cols, dtype);
  return padded(c, c.problem.d, dtype);
}

// A block that is not full leaves its gap: the up half keeps its distance from the gate half.
Layout activation_pair(const Case& c, DType dtype) {
  const std::int64_t elem = size_bytes(dtype);
  const std::int64_t h = c.problem.h;
  if (c.placement == Placement::kSeparate) return padded(c, h, dtype);
  Layout layout;
  if (c.placement == Placement::kInterleaved) {
    layout = interleaved_cols(c.block_rows, round_up(h, c.block_rows), dtype);
  } else {
    layout.row_stride_bytes = 2 * h * elem;
  }
  layout.row_stride_bytes += c.pad_elems * elem;
  return layout;
}

void set_layouts(Case& c) {
  Problem& p = c.problem;
  Layouts& l = p.layout;
  l.x = l.x_sum = l.dx = padded(c, p.d, p.x_dtype);
  l.h = l.dh = padded(c, p.h, p.x_dtype);
  l.y = l.residual = l.dy = padded(c, p.d, p.y_dtype);
  l.w_gate_up = weight_pair(c, p.w_dtype);
  l.dw_gate_up = weight_pair(c, p.dw_dtype);
  l.w_down = padded(c, p.h, p.w_dtype);
  l.dw_down = padded(c, p.h, p.dw_dtype);
  l.g_u = l.dg_du = activation_pair(c, p.x_dtype);
  if (c.broadcast) {
    for (Layout* input : {&l.x, &l.residual, &l.dy, &l.dh}) input->row_stride_bytes = 0;
    if (p.op == Op::kDown) l.h.row_stride_bytes = 0;
  }
}

Status check_dims_fit(const Case& c) {
  // Strides are formed here, before validate() checks them: keep them inside 62 bits.
  const Problem& p = c.problem;
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  for (const std::int64_t value : {p.m, p.d, p.h, c.pad_elems, c.block_rows}) {
    if (value < 0 || value > kMost) {
      return make_error(kBad, "case: got a count of %lld, wanted 0 to 2^40",
                        static_cast<long long>(value));
    }
  }
  // Gate's rows before up's first, times a row of at most 8 bytes an element, or of blocks of 32.
  constexpr std::int64_t kMostApart = std::int64_t{1} << 53;
  const bool concatenated = c.placement == Placement::kConcatenated;
  const std::int64_t rows = concatenated ? p.h : c.block_rows;
  if (c.placement != Placement::kSeparate && rows > kMostApart / (p.d + c.pad_elems + 1)) {
    return make_error(kBad, "case: %s%s puts up's first row too far behind gate's",
                      to_string(c.placement),
                      concatenated ? "" : std::to_string(c.block_rows).c_str());
  }
  return {};
}

std::string gate_token(const Gate& gate) {
  const Gate base{.activation = gate.activation};
  if (gate == Gate{}) return "";
  if (gate == Gate::clamped_swiglu()) return ":clamped_swiglu";
  std::string list;
  const auto add = [&list](const char* name, float value, float standard) {
    if (value != standard) list += fmt::format("{}{}={}", list.empty() ? "" : ",", name, value);
  };
  add("alpha", gate.alpha, base.alpha);
  add("limit", gate.limit, base.limit);
  add("up_offset", gate.up_offset, base.up_offset);
  add("gate_multiplier", gate.gate_multiplier, base.gate_multiplier);
  add("output_multiplier", gate.output_multiplier, base.output_multiplier);
  const std::string name = to_string(gate.activation);
  return list.empty() ? ":" + name : fmt::format(":{}({})", name, list);
}

std::string norm_text(const Norm& norm) {
  if (!norm.enabled) return "";
  const Norm base;
  std::string list;
  if (norm.eps != base.eps) list = fmt::format("eps={}", norm.eps);
  if (norm.weight_offset != base.weight_offset) {
    list += fmt::format("{}weight_offset={}", list.empty() ? "" : ",", norm.weight_offset);
  }
  return fmt::format(":{}{}", norm.add ? "add_norm" : "norm", list.empty() ? "" : "(" + list + ")");
}

std::string types_text(const Problem& p) {
  const DType standard_dw = p.x_dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const bool one = p.x_dtype == p.w_dtype && p.x_dtype == p.y_dtype;
  const bool blocks = is_block_type(p.w_dtype) && p.x_dtype == DType::kBF16 &&
                      p.y_dtype == DType::kBF16 && p.dw_dtype == standard_dw;
  if (blocks) return fmt::format(":{}", to_string(p.w_dtype));
  if (p.dw_dtype != standard_dw) {
    return fmt::format(":{}/{}/{}/{}", to_string(p.x_dtype), to_string(p.w_dtype),
                       to_string(p.y_dtype), to_string(p.dw_dtype));
  }
  if (!one) {
    return fmt::format(":{}/{}/{}", to_string(p.x_dtype), to_string(p.w_dtype),
                       to_string(p.y_dtype));
  }
  return p.x_dtype == DType::kBF16 ? "" : fmt::format(":{}", to_string(p.x_dtype));
}

std::string placement_text(const Case& c) {
  std::string text;
  if (c.placement == Placement::kConcatenated) text = ":concat";
  if (c.placement == Placement::kInterleaved) text = fmt::format(":interleaved{}", c.block_rows);
  return c.up_first ? text + "+up_first" : text;
}

}  // namespace

std::string format_case(const Case& c) {
  const Problem& p = c.problem;
  const bool norm = p.op == Op::kNorm;
  std::string out = norm ? fmt::format("{}x{}", p.m, p.d) : fmt::format("{}x{}x{}", p.m, p.d, p.h);
  if (p.op != Op::kMlp && !norm) out += fmt::format(":{}", to_string(p.op));
  out += types_text(p) + gate_token(p.gate) + placement_text(c);
  if (p.bias_gate_up) out += ":bias";
  if (p.bias_down) out += ":bias_down";
  if (p.residual == Residual::kOperand) out += ":residual";
  if (p.residual == Residual::kNormInput) out += ":residual_norm_input";
  out += norm_text(p.norm);
  if (p.save_g_u) out += ":save";
  if (p.recompute) out += ":recompute";
  if (p.save_dg_du) out += ":save_dg_du";
  if (p.accumulate_dw) out += ":accumulate";
  if (p.round_gate) out += ":round_gate";
  if (c.broadcast) out += ":broadcast";
  if (c.in_place) out += ":in_place";
  if (c.minimal) out += ":minimal";
  if (c.pad_elems != 0) out += fmt::format(":pad={}", c.pad_elems);
  if (c.align != 0) out += fmt::format(":align={}", c.align);
  if (c.fill != Fill::kNormal) out += fmt::format(":fill={}", to_string(c.fill));
  if (c.seed != Case{}.seed) out += fmt::format(":seed={}", c.seed);
  return out;
}

std::int64_t pair_offset_bytes(const Case& c, Operand gate) {
  const Problem& p = c.problem;
  const bool gradient = gate == Operand::kDwGate || gate == Operand::kDwUp;
  const bool weights = gradient || gate == Operand::kWGate || gate == Operand::kWUp;
  const DType dtype = gradient ? p.dw_dtype : (weights ? p.w_dtype : p.x_dtype);
  const std::int64_t row =
      weights ? bytes_of(dtype, p.d + c.pad_elems * block_elems(dtype)) : size_bytes(dtype);
  switch (c.placement) {
    case Placement::kSeparate:
      return 0;
    case Placement::kConcatenated:
      return p.h * row;
    case Placement::kInterleaved:
      return c.block_rows * row;
  }
  return 0;
}

Status place(Case& c) {
  Problem& p = c.problem;
  SLUICE_TRY(check_dims_fit(c));
  if (c.placement == Placement::kInterleaved && c.block_rows < 1) {
    return make_error(kBad, "case: interleaved: block_rows is %lld, wanted at least 1",
                      static_cast<long long>(c.block_rows));
  }
  if (c.up_first && c.placement == Placement::kSeparate) {
    return make_error(kBad, "case: separate: up_first is set, but separate buffers have no order");
  }
  set_layouts(c);
  p.alignment_bytes = c.align == 0 ? kDefaultAlignment : c.align;
  const auto specs = operand_specs(p);
  for (const Operand gate : {Operand::kWGate, Operand::kG, Operand::kDg, Operand::kDwGate}) {
    if (!used(specs, gate)) continue;
    const std::int64_t offset = pair_offset_bytes(c, gate);
    if (offset % p.alignment_bytes == 0) continue;
    if (c.align != 0) {
      return make_error(kBad,
                        "case: token \"align=%lld\": the layout puts the up half %lld bytes "
                        "behind the gate half of %s",
                        static_cast<long long>(c.align), static_cast<long long>(offset),
                        specs[static_cast<std::size_t>(gate)].name);
    }
    p.alignment_bytes = offset & -offset;  // its largest power of two, below the default
  }
  const auto stays = [](const OperandSpec& s) {
    return s.access == Access::kReadWrite || (s.access == Access::kWrite && s.required);
  };
  if (c.minimal && std::none_of(specs.begin(), specs.end(), stays)) {
    return make_error(kBad, "case: token \"minimal\": leaves %s no output", to_string(p.op));
  }
  if (c.in_place) {
    const bool gradient =
        p.op == Op::kGateMulGrad || p.op == Op::kGateUpGrad || (p.save_dg_du && !p.recompute);
    if (!gradient && p.residual != Residual::kOperand) {
      return make_error(kBad,
                        "case: token \"in_place\": wanted gate_mul_grad, gate_up_grad, mlp_grad "
                        "with save_dg_du and without recompute, or residual");
    }
    if (!gradient && c.broadcast) {
      return make_error(kBad, "case: token \"in_place\": a broadcast residual cannot be written");
    }
  }
  return validate(p);
}

bool operator==(const Case& a, const Case& b) {
  // The text holds every member but the layouts and alignment, and those follow from the text.
  const auto follows = [](const Case& c) {
    Case placed = c;
    const bool ok = place(placed).has_value();
    const Layouts& p = placed.problem.layout;
    const Layouts& q = c.problem.layout;
    return ok && placed.problem.alignment_bytes == c.problem.alignment_bytes && p.x == q.x &&
           p.w_gate_up == q.w_gate_up && p.w_down == q.w_down && p.g_u == q.g_u && p.h == q.h &&
           p.y == q.y && p.residual == q.residual && p.x_sum == q.x_sum && p.dy == q.dy &&
           p.dh == q.dh && p.dg_du == q.dg_du && p.dx == q.dx && p.dw_gate_up == q.dw_gate_up &&
           p.dw_down == q.dw_down;
  };
  return follows(a) && follows(b) && format_case(a) == format_case(b);
}

const char* to_string(Placement placement) noexcept {
  switch (placement) {
    case Placement::kSeparate:
      return "separate";
    case Placement::kConcatenated:
      return "concat";
    case Placement::kInterleaved:
      return "interleaved";
  }
  return "invalid placement";
}

}  // namespace sluice::harness
