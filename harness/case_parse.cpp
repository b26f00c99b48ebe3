// SPDX-License-Identifier: Apache-2.0
// parse_case(): the grammar of a case, token by token.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <utility>

#include "harness/case.hpp"

namespace sluice::harness {
namespace {

Error bad_token(std::string_view token, std::string_view why) {
  const auto shown = [](std::string_view s, std::size_t most) {
    return static_cast<int>(std::min(s.size(), most));
  };
  return make_error(ErrorCode::kInvalidArgument, "case: token \"%.*s\": %.*s", shown(token, 80),
                    token.data(), shown(why, 180), why.data());
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

// "a, b, c": the names of enumerators from `first` to before `end`.
template <class Enum>
std::string names(int first, int end) {
  std::string list;
  for (int i = first; i < end; ++i) {
    list += std::string(i == first ? "" : ", ") + to_string(static_cast<Enum>(i));
  }
  return list;
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
  kRoundGate,
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
  const char* meaning;
  Kind kind;
  void (*set)(Case&);
};

constexpr Flag kFlags[] = {
    {"bias", "biases of gate and up", Kind::kBias, [](Case& c) { c.problem.bias_gate_up = true; }},
    {"bias_down", "bias of down", Kind::kBiasDown, [](Case& c) { c.problem.bias_down = true; }},
    {"residual", "added to y", Kind::kResidual,
     [](Case& c) { c.problem.residual = Residual::kOperand; }},
    {"residual_norm_input", "what the norm reads is added to y", Kind::kResidual,
     [](Case& c) { c.problem.residual = Residual::kNormInput; }},
    {"save", "gate_up and mlp store g and u too", Kind::kSave,
     [](Case& c) { c.problem.save_g_u = true; }},
    {"recompute", "mlp_grad: g and u from x instead of given", Kind::kRecompute,
     [](Case& c) { c.problem.recompute = true; }},
    {"save_dg_du", "mlp_grad: dg and du are stored too", Kind::kSaveGrads,
     [](Case& c) { c.problem.save_dg_du = true; }},
    {"accumulate", "mlp_grad: weight gradients are added to what is there", Kind::kAccumulate,
     [](Case& c) { c.problem.accumulate_dw = true; }},
    {"round_gate", "gate_mul and its gradient: act(g) is rounded to x's type, as eager code does",
     Kind::kRoundGate, [](Case& c) { c.problem.round_gate = true; }},
    {"broadcast", "inputs but weights, g and u are one row, repeated", Kind::kBroadcast,
     [](Case& c) { c.broadcast = true; }},
    {"in_place", "dg over g and du over u, or y over residual", Kind::kInPlace,
     [](Case& c) { c.in_place = true; }},
    {"minimal", "without optional outputs", Kind::kMinimal, [](Case& c) { c.minimal = true; }},
};

constexpr const char* kUnknown = "unknown token; `sluice list tokens` has all";

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
    SLUICE_TRY(finish_dims(dims));
    if (!dw_named_ && case_.problem.x_dtype == DType::kF64) case_.problem.dw_dtype = DType::kF64;
    SLUICE_TRY(place(case_));
    return case_;
  }

 private:
  Status parse_dims(std::string_view token) {
    const auto [m, rest] = cut(token, 'x');
    const auto [d, third] = cut(rest, 'x');
    two_dims_ = d.size() == rest.size() && !rest.empty();
    const std::string_view h = two_dims_ ? "0" : third;
    const auto md = number<std::int64_t>(m);
    const auto dd = number<std::int64_t>(d);
    const auto hd = number<std::int64_t>(h);
    if (!md || !dd || !hd || *md < 0 || *dd < 0 || *hd < 0) {
      return bad_token(token,
                       "wanted MxDxH, three counts such as 128x4096x14336 (MxD of a norm alone)");
    }
    case_.problem.m = *md;
    case_.problem.d = *dd;
    case_.problem.h = *hd;
    return {};
  }

  // What the words say of the dims: MxD is the norm by itself, of linear they are MxKxN.
  Status finish_dims(std::string_view dims) {
    Problem& p = case_.problem;
    if (two_dims_ && (!p.norm.enabled || op_named_)) {
      return bad_token(dims, "wanted MxDxH; MxD is for \"norm\" or \"add_norm\" alone");
    }
    if (two_dims_) p.op = Op::kNorm;
    if (linear_) std::swap(p.d, p.h);
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
    const auto op = token == "linear" ? Op::kLinear : by_name<Op>(token, kOpCount);
    if (op && *op != Op::kNorm) {
      case_.problem.op = *op;
      op_named_ = true;
      linear_ = token == "linear";
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
    if (!tail.empty() && tail[0] != '(') return bad_token(token, kUnknown);
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
      return bad_token(token, kUnknown);
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
    return bad_token(token, kUnknown);
  }

  Case case_{};
  std::uint32_t seen_ = 0;
  bool dw_named_ = false;
  bool op_named_ = false;
  bool two_dims_ = false;
  bool linear_ = false;
};

}  // namespace

Expected<Case> parse_case(std::string_view text) { return Parser().parse(text); }

std::vector<TokenHelp> token_help() {
  std::vector<TokenHelp> help = {
      {names<Op>(0, static_cast<int>(Op::kNorm)) + ", input_grad, weight_grad, column_sum",
       "operator; default mlp"},
      {"linear", "down by its general name, MxKxN: y[M,N] = x[M,K] by w[N,K]"},
      {names<DType>(0, static_cast<int>(DType::kQ8_0)), "type of everything; default bf16"},
      {"x/w/y, x/w/y/dw",
       "types apart, as fp32/bf16/fp32; dw (weight gradients): fp32 if not named, fp64 beside x in "
       "fp64"},
      {names<DType>(static_cast<int>(DType::kQ8_0), kDTypeCount),
       "weights in GGUF's blocks beside x and y in bf16; or as w of x/w/y"},
      {names<Activation>(0, kActivationCount) + ", clamped_swiglu",
       "gate; default silu; parameters: `sluice list gates`"},
      {"separate, concat, interleavedN",
       "gate and up in two tensors (default), one behind the other, or by N rows in turn; the "
       "last two may end in +up_first"},
      {"norm, add_norm",
       "RMSNorm of x, or of x + x_residual, before, or alone: MxD:norm; "
       "(eps=1e-6,weight_offset=1)"},
  };
  for (const Flag& flag : kFlags) help.push_back({std::string(flag.name), flag.meaning});
  help.push_back({"pad=N", "rows lie N elements further apart than they are long"});
  help.push_back({"align=N", "pointers are multiples of N bytes and no more"});
  help.push_back({"fill=F, seed=N", "data: normal (default), integers, special; default seed 1"});
  return help;
}

}  // namespace sluice::harness
