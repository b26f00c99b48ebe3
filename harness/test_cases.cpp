// SPDX-License-Identifier: Apache-2.0
#include "harness/test_cases.hpp"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "sluice/plan.hpp"

namespace sluice::harness {
namespace {

using Texts = std::vector<std::string>;

const Texts& types() {
  static const Texts list = {"bf16",           "fp16",           "fp32",
                             "bf16/bf16/fp32", "fp32/bf16/fp32", "fp16/fp16/fp16/fp16",
                             "fp32/fp16/bf16"};
  return list;
}

const Texts& gates() {
  static const Texts list = {
      "silu",
      "gelu_tanh",
      "gelu_erf",
      "relu",
      "sigmoid(alpha=1.5)",
      "identity",
      "clamped_swiglu",
      "silu(alpha=1.3,limit=0.75,up_offset=0.5,gate_multiplier=1.25,output_multiplier=2)"};
  return list;
}

const Texts& placements() {
  static const Texts list = {"separate",     "concat",       "concat+up_first",      "interleaved1",
                             "interleaved8", "interleaved2", "interleaved4+up_first"};
  return list;
}

// What else this operator can be asked for; "" is the plain operator.
Texts flags(Op op) {
  switch (op) {
    case Op::kGateUp:
      return {"",
              "bias",
              "save",
              "norm",
              "add_norm:bias",
              "add_norm:save:minimal",
              "bias:save:pad=8",
              "norm(eps=0.01,weight_offset=1):pad=3",
              "broadcast"};
    case Op::kDown:
      return {"",       "bias_down",          "residual", "residual:in_place",
              "pad=16", "bias_down:residual", "pad=1",    "broadcast"};
    case Op::kMlp:
      return {"",
              "bias",
              "bias:bias_down:residual",
              "residual:in_place",
              "save",
              "norm:residual",
              "add_norm:residual_norm_input",
              "add_norm:residual_norm_input:minimal:save",
              "norm(eps=0.01,weight_offset=1):bias_down:pad=8",
              "pad=1:bias"};
    case Op::kGateMul:
      return {"", "pad=8", "pad=1", "round_gate"};
    case Op::kGateMulGrad:
      return {"",           "in_place",           "minimal", "pad=8", "pad=1:in_place", "broadcast",
              "round_gate", "round_gate:in_place"};
    case Op::kGateUpGrad:
      return {"", "in_place", "minimal", "pad=8", "pad=1:in_place", "broadcast"};
    case Op::kMlpGrad:
      return {"",
              "bias",
              "bias:bias_down",
              "recompute",
              "recompute:bias:bias_down",
              "accumulate",
              "accumulate:recompute:bias:bias_down",
              "save_dg_du:in_place",
              "save_dg_du:recompute:bias",
              "pad=8",
              "pad=1:bias",
              "broadcast"};
    case Op::kNorm:
      return {"norm",
              "add_norm",
              "add_norm:minimal",
              "norm(eps=0.01,weight_offset=1):pad=3",
              "add_norm:pad=8",
              "add_norm:broadcast"};
    case Op::kInputGrad:
      return {"", "pad=8", "pad=1", "broadcast"};
    case Op::kWeightGrad:
    case Op::kColumnSum:
      return {"", "accumulate", "pad=8", "pad=1:accumulate"};
    case Op::kAllReduce:
      break;
  }
  return {};
}

const Texts& shapes() {
  static const Texts list = {"1x64x96",   "1x33x17",  "2x128x64",   "3x1x5",     "4x96x40",
                             "5x7x129",   "16x64x64", "17x65x63",   "31x130x18", "33x48x257",
                             "64x64x128", "65x96x33", "1x512x1024", "8x256x512", "130x40x72"};
  return list;
}

// Weights in blocks: dims are whole blocks.
const Texts& block_types() {
  static const Texts list = {"q8_0",           "q4_0",           "q4_1",
                             "fp32/q8_0/fp32", "fp16/q4_0/fp32", "fp16/q4_1/fp16"};
  return list;
}

const Texts& block_shapes() {
  static const Texts list = {"1x64x96",   "2x32x32",   "3x160x224", "4x96x32",  "16x256x64",
                             "17x64x288", "33x512x96", "65x64x128", "130x32x64"};
  return list;
}

class List {
 public:
  explicit List(Op op) : op_(to_string(op)), norm_(op == Op::kNorm) {}

  // Adds the case unless it cannot be said: a pair so close together that no alignment fits all
  // types, or in_place on an operator with nothing to overwrite.
  void add(std::string_view shape, std::initializer_list<std::string_view> tokens) {
    // The norm has two dims, and its own word says which it is.
    std::string text =
        norm_ ? std::string(shape.substr(0, shape.rfind('x'))) : fmt::format("{}:{}", shape, op_);
    bool named = !norm_;
    for (const std::string_view token : tokens) {
      if (!token.empty()) text += fmt::format(":{}", token);
      named = named || token.starts_with("norm") || token.starts_with("add_norm");
    }
    if (!named) text += ":norm";
    if (auto c = parse_case(text)) cases_.push_back(*c);
  }

  [[nodiscard]] std::vector<Case> take() { return std::move(cases_); }

 private:
  std::string op_;
  bool norm_;
  std::vector<Case> cases_;
};

}  // namespace

std::vector<Case> operator_cases(Op op) {
  List list(op);
  const auto in_turn = [](const Texts& from, std::size_t i) -> std::string_view {
    return from[i % from.size()];
  };
  const Texts extra = flags(op);
  for (const std::string& type : types()) {
    for (const std::string& gate : gates()) list.add("5x48x72", {type, gate});
    for (const std::string& placement : placements()) {
      list.add("6x32x40", {type, placement, "pad=8"});
      list.add("3x17x24", {type, placement, "identity", "fill=integers"});
    }
    for (const std::string& flag : extra) list.add("7x40x56", {type, flag});
  }
  std::size_t turn = 0;
  for (const std::string& shape : shapes()) {
    for (const std::string& flag : extra) {
      ++turn;
      list.add(shape, {flag, in_turn(types(), turn), in_turn(gates(), turn / 2),
                       in_turn(placements(), turn / 3)});
    }
    list.add(shape, {"identity", "fill=integers"});
    list.add(shape, {"identity", "fill=integers", "fp32"});
    list.add(shape, {"fill=special", in_turn(types(), turn), in_turn(gates(), turn / 2)});
  }
  for (const std::string_view align : {"align=4", "align=8", "align=16", "align=32", "align=64"}) {
    list.add("9x32x64", {align});
    list.add("9x33x65", {align, "bf16/bf16/fp32"});
    list.add("9x32x64", {align, "fp32", "concat"});
  }
  list.add("9x33x65", {"align=2"});
  list.add("0x33x65", {});
  const bool weights =
      op != Op::kGateMul && op != Op::kGateMulGrad && op != Op::kWeightGrad && op != Op::kColumnSum;
  if (!weights) return list.take();
  turn = 0;
  for (const std::string& type : block_types()) {
    for (const std::string& placement : placements()) {
      list.add("6x64x96", {type, placement, "pad=1"});
      list.add("3x96x64", {type, placement, "identity", "fill=integers"});
    }
    for (const std::string& shape : block_shapes()) {
      ++turn;
      list.add(shape, {type, in_turn(extra, turn), in_turn(gates(), turn / 2),
                       in_turn(placements(), turn / 3)});
      list.add(shape, {type, "identity", "fill=integers"});
    }
    if (op != Op::kMlpGrad) {  // longer than a sum is kept in lanes
      list.add("1x64x4128", {type});
      list.add("2x4128x32", {type});
    }
    list.add("7x64x96", {type, "fill=special", in_turn(gates(), turn)});
    list.add("20x64x96", {type, "fill=special"});
    list.add("5x64x32", {type, "align=2"});
  }
  return list.take();
}

std::int64_t for_each_forced(const Case& c, Rig& rig,
                             const std::function<void(const ForcedRun&)>& check,
                             const VerifyOptions& verify) {
  Verification verification(c, rig, verify);
  std::int64_t runs = 0;
  for (const std::string& variant : variant_names(rig.device().backend)) {
    for (const std::string& config : config_names(variant.c_str(), c.problem, rig.device())) {
      const Options options{
          .variant = variant.c_str(), .config = config.c_str(), .experimental = true};
      check({variant.c_str(), config.c_str(), verification.run(options)});
      ++runs;
    }
  }
  return runs;
}

}  // namespace sluice::harness
