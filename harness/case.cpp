// SPDX-License-Identifier: Apache-2.0
#include "harness/case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "sluice/operands.hpp"

namespace sluice::harness {
namespace {

constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;
constexpr std::int64_t kDefaultAlignment = 16;

Error bad_token(std::string_view token, std::string_view why) {
  const auto shown = [](std::string_view s, std::size_t most) {
    return static_cast<int>(std::min(s.size(), most));
  };
  return make_error(kBad, "case: token \"%.*s\": %.*s", shown(token, 80), token.data(),
                    shown(why, 180), why.data());
}

// All of `text` as a number, or nothing.
template <class T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::pair<std::string_view, std::string_view> cut(std::string_view text, char separator) {
  const std::size_t at = text.find(separator);
  if (at == std::string_view::npos) return {text, {}};
  return {text.substr(0, at), text.substr(at + 1)};
}

template <class Enum>
std::optional<Enum> by_name(std::string_view name, int count) {
  for (int i = 0; i < count; ++i) {
    if (name == to_string(static_cast<Enum>(i))) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

struct Parameter {
  std::string_view name;
  float* value;
};

// "(a=1,b=2)" into the named floats. `list` is what follows the word, with its parentheses.
Status parse_parameters(std::string_view token, std::string_view list,
                        std::span<const Parameter> known) {
  if (list.empty()) return {};
  if (list.size() < 2 || list.back() != ')') return bad_token(token, "\")\" is missing");
  std::string_view rest = list.substr(1, list.size() - 2);
  std::uint32_t seen = 0;
  do {
    const auto [item, more] = cut(rest, ',');
    const auto [name, text] = cut(item, '=');
    const auto* const it =
        std::find_if(known.data(), known.data() + known.size(),
                     [n = name](const Parameter& parameter) { return parameter.name == n; });
    if (it == known.data() + known.size()) {
      return bad_token(token, fmt::format("unknown parameter \"{}\"", name));
    }
    const std::uint32_t bit = 1U << static_cast<unsigned>(it - known.data());
    if ((seen & bit) != 0) return bad_token(token, fmt::format("\"{}\" is given twice", name));
    seen |= bit;
    const auto value = number<float>(text);
    if (!value) return bad_token(token, fmt::format("\"{}\" is no number", text));
    *it->value = *value;
    if (!more.empty() || item.size() == rest.size()) {
      rest = more;
    } else {
      return bad_token(token, "a parameter is missing after \",\"");
    }
  } while (!rest.empty());
  return {};
}

// Tokens of one kind exclude each other; this is what "given twice" refers to.
enum class Kind : std::uint8_t {
  kOp,
  kTypes,
  kGate,
  kPlacement,
  kBias,
  kBiasDown,
  kResidual,
  kNorm,
  kSave,
  kRecompute,
  kSaveGrads,
  kAccumulate,
  kBroadcast,
  kInPlace,
  kMinimal,
  kPad,
  kAlign,
  kSeed,
  kFill,
};

struct Flag {
  std::string_view name;
  Kind kind;
  void (*set)(Case&);
};

constexpr Flag kFlags[] = {
    {"bias", Kind::kBias, [](Case& c) { c.problem.bias_gate_up = true; }},
    {"bias_down", Kind::kBiasDown, [](Case& c) { c.problem.bias_down = true; }},
    {"residual", Kind::kResidual, [](Case& c) { c.problem.residual = Residual::kOperand; }},
    {"residual_norm_input", Kind::kResidual,
     [](Case& c) { c.problem.residual = Residual::kNormInput; }},
    {"save", Kind::kSave, [](Case& c) { c.problem.save_g_u = true; }},
    {"recompute", Kind::kRecompute, [](Case& c) { c.problem.recompute = true; }},
    {"save_dg_du", Kind::kSaveGrads, [](Case& c) { c.problem.save_dg_du = true; }},
    {"accumulate", Kind::kAccumulate, [](Case& c) { c.problem.accumulate_dw = true; }},
    {"broadcast", Kind::kBroadcast, [](Case& c) { c.broadcast = true; }},
    {"in_place", Kind::kInPlace, [](Case& c) { c.in_place = true; }},
    {"minimal", Kind::kMinimal, [](Case& c) { c.minimal = true; }},
};

class Parser {
 public:
  Expected<Case> parse(std::string_view text) {
    auto [dims, rest] = cut(text, ':');
    SLUICE_TRY(parse_dims(dims));
    bool more = dims.size() < text.size();
    while (more) {
      // Parameters hold no ":", so a token ends at the next one.
      const std::size_t end = rest.find(':');
      const std::string_view token = rest.substr(0, end);
      SLUICE_TRY(parse_token(token));
      more = end != std::string_view::npos;
      rest = more ? rest.substr(end + 1) : std::string_view{};
    }
    if (!dw_named_ && case_.problem.x_dtype == DType::kF64) case_.problem.dw_dtype = DType::kF64;
    SLUICE_TRY(place(case_));
    return case_;
  }

 private:
  Status parse_dims(std::string_view token) {
    const auto [m, rest] = cut(token, 'x');
    const auto [d, h] = cut(rest, 'x');
    const auto md = number<std::int64_t>(m);
    const auto dd = number<std::int64_t>(d);
    const auto hd = number<std::int64_t>(h);
    if (!md || !dd || !hd || *md < 0 || *dd < 0 || *hd < 0) {
      return bad_token(token, "wanted MxDxH, three counts such as 128x4096x14336");
    }
    case_.problem.m = *md;
    case_.problem.d = *dd;
    case_.problem.h = *hd;
    return {};
  }

  Status once(std::string_view token, Kind kind) {
    const std::uint32_t bit = 1U << static_cast<unsigned>(kind);
    if ((seen_ & bit) != 0) return bad_token(token, "this was said before");
    seen_ |= bit;
    return {};
  }

  Status parse_token(std::string_view token) {
    if (token.empty())
      return bad_token(token, "empty; two \":\" follow each other, or one ends it");
    if (const auto op = by_name<Op>(token, kOpCount)) {
      case_.problem.op = *op;
      return once(token, Kind::kOp);
    }
    for (const Flag& flag : kFlags) {
      if (token != flag.name) continue;
      flag.set(case_);
      return once(token, flag.kind);
    }
    const std::string_view word = token.substr(0, token.find_first_of("(/="));
    if (by_name<DType>(word, kDTypeCount)) return parse_types(token);
    if (by_name<Activation>(word, kActivationCount) || word == "clamped_swiglu") {
      return parse_gate(token, word);
    }
    if (word == "norm" || word == "add_norm") return parse_norm(token, word);
    if (token.starts_with("separate") || token.starts_with("concat") ||
        token.starts_with("interleaved")) {
      return parse_placement(token);
    }
    return parse_setting(token);
  }

  Status parse_types(std::string_view token) {
    SLUICE_TRY(once(token, Kind::kTypes));
    std::array<DType, 4> types{};
    std::size_t count = 0;
    std::string_view rest = token;
    bool more = true;
    while (more) {
      const auto [name, tail] = cut(rest, '/');
      const auto dtype = by_name<DType>(name, kDTypeCount);
      if (!dtype || count == types.size()) {
        return bad_token(token, "wanted a type, or x/w/y, or x/w/y/dw");
      }
      types[count++] = *dtype;
      more = name.size() < rest.size();
      rest = tail;
    }
    if (count == 2) return bad_token(token, "wanted one type, x/w/y, or x/w/y/dw");
    Problem& p = case_.problem;
    if (count == 1) {
      p.w_dtype = types[0];
      if (!is_block_type(types[0])) p.x_dtype = p.y_dtype = types[0];
      return {};
    }
    p.x_dtype = types[0];
    p.w_dtype = types[1];
    p.y_dtype = types[2];
    dw_named_ = count == 4;
    if (dw_named_) p.dw_dtype = types[3];
    return {};
  }

  Status parse_gate(std::string_view token, std::string_view word) {
    SLUICE_TRY(once(token, Kind::kGate));
    Gate& gate = case_.problem.gate;
    if (word == "clamped_swiglu") {
      gate = Gate::clamped_swiglu();
    } else {
      gate.activation = *by_name<Activation>(word, kActivationCount);
    }
    const Parameter known[] = {{"alpha", &gate.alpha},
                               {"limit", &gate.limit},
                               {"up_offset", &gate.up_offset},
                               {"gate_multiplier", &gate.gate_multiplier},
                               {"output_multiplier", &gate.output_multiplier}};
    return parse_tail(token, word, known);
  }

  Status parse_norm(std::string_view token, std::string_view word) {
    SLUICE_TRY(once(token, Kind::kNorm));
    Norm& norm = case_.problem.norm;
    norm.enabled = true;
    norm.add = word == "add_norm";
    const Parameter known[] = {{"eps", &norm.eps}, {"weight_offset", &norm.weight_offset}};
    return parse_tail(token, word, known);
  }

  static Status parse_tail(std::string_view token, std::string_view word,
                           std::span<const Parameter> known) {
    const std::string_view tail = token.substr(word.size());
    if (!tail.empty() && tail[0] != '(') return bad_token(token, "unknown token");
    return parse_parameters(token, tail, known);
  }

  Status parse_placement(std::string_view token) {
    SLUICE_TRY(once(token, Kind::kPlacement));
    const auto [name, order] = cut(token, '+');
    if (name.size() < token.size()) {
      if (order != "up_first") return bad_token(token, "wanted \"+up_first\" after \"+\"");
      case_.up_first = true;
    }
    if (name == "separate") {
      case_.placement = Placement::kSeparate;
    } else if (name == "concat") {
      case_.placement = Placement::kConcatenated;
    } else if (name.starts_with("interleaved")) {
      const auto block = number<std::int64_t>(name.substr(std::string_view("interleaved").size()));
      if (!block || *block < 1) return bad_token(token, "wanted interleavedN with N at least 1");
      case_.placement = Placement::kInterleaved;
      case_.block_rows = *block;
    } else {
      return bad_token(token, "unknown token");
    }
    if (case_.up_first && case_.placement == Placement::kSeparate) {
      return bad_token(token, "separate buffers have no order");
    }
    return {};
  }

  Status parse_setting(std::string_view token) {
    const auto [name, text] = cut(token, '=');
    if (name == "fill") {
      for (const Fill fill : {Fill::kNormal, Fill::kIntegers, Fill::kSpecial}) {
        if (text != to_string(fill)) continue;
        case_.fill = fill;
        return once(token, Kind::kFill);
      }
      return bad_token(token, "wanted fill=normal, integers or special");
    }
    if (name == "seed") {
      const auto value = number<std::uint64_t>(text);
      if (!value) return bad_token(token, "wanted a count");
      case_.seed = *value;
      return once(token, Kind::kSeed);
    }
    if (name == "pad" || name == "align") {
      const auto value = number<std::int64_t>(text);
      const bool pad = name == "pad";
      if (!value || *value < (pad ? 0 : 1)) return bad_token(token, "wanted a count");
      (pad ? case_.pad_elems : case_.align) = *value;
      return once(token, pad ? Kind::kPad : Kind::kAlign);
    }
    return bad_token(token, "unknown token");
  }

  Case case_{};
  std::uint32_t seen_ = 0;
  bool dw_named_ = false;
};

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
  if (c.placement == Placement::kInterleaved &&
      c.block_rows > std::max<std::int64_t>(1, kMost / (p.d + c.pad_elems + 1))) {
    return make_error(kBad, "case: interleaved%lld is too large",
                      static_cast<long long>(c.block_rows));
  }
  return {};
}

std::string gate_text(const Gate& gate) {
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

Expected<Case> parse_case(std::string_view text) { return Parser().parse(text); }

std::string format_case(const Case& c) {
  const Problem& p = c.problem;
  std::string out = fmt::format("{}x{}x{}", p.m, p.d, p.h);
  if (p.op != Op::kMlp) out += fmt::format(":{}", to_string(p.op));
  out += types_text(p) + gate_text(p.gate) + placement_text(c);
  if (p.bias_gate_up) out += ":bias";
  if (p.bias_down) out += ":bias_down";
  if (p.residual == Residual::kOperand) out += ":residual";
  if (p.residual == Residual::kNormInput) out += ":residual_norm_input";
  out += norm_text(p.norm);
  if (p.save_g_u) out += ":save";
  if (p.recompute) out += ":recompute";
  if (p.save_dg_du) out += ":save_dg_du";
  if (p.accumulate_dw) out += ":accumulate";
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
