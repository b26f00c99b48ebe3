// SPDX-License-Identifier: Apache-2.0
// The case grammar: what it reads, what it refuses and by which token, and that it round-trips.
#include "harness/case.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace sluice::harness {
namespace {

Case parsed(const std::string& text) {
  const auto c = parse_case(text);
  EXPECT_TRUE(c) << text << ": " << (c ? "" : c.error().message);
  return c ? *c : Case{};
}

std::string refusal(const std::string& text) {
  const auto c = parse_case(text);
  EXPECT_FALSE(c) << text;
  return c ? "" : c.error().message;
}

TEST(ParseCase, DefaultsAreABf16SiluMlp) {
  const Case c = parsed("128x4096x14336");
  EXPECT_EQ(c.problem.op, Op::kMlp);
  EXPECT_EQ(c.problem.m, 128);
  EXPECT_EQ(c.problem.d, 4096);
  EXPECT_EQ(c.problem.h, 14336);
  EXPECT_EQ(c.problem.x_dtype, DType::kBF16);
  EXPECT_EQ(c.problem.gate, Gate{});
  EXPECT_EQ(c.problem.alignment_bytes, 16);
  EXPECT_EQ(c.placement, Placement::kSeparate);
  EXPECT_EQ(c.problem.layout.w_gate_up, Layout{});
  EXPECT_EQ(c.seed, 1U);
}

TEST(ParseCase, ReadsEveryKindOfToken) {
  const Case c = parsed(
      "3x40x64:gate_up:fp32/bf16/fp32:silu(alpha=1.7,limit=7,up_offset=1,gate_multiplier=1.3,"
      "output_multiplier=2):interleaved8+up_first:bias:save:add_norm(eps=0.01,weight_offset=1):"
      "pad=8:align=4:fill=integers:seed=9");
  const Problem& p = c.problem;
  EXPECT_EQ(p.op, Op::kGateUp);
  EXPECT_EQ(p.x_dtype, DType::kF32);
  EXPECT_EQ(p.w_dtype, DType::kBF16);
  EXPECT_EQ(p.gate, (Gate{Activation::kSilu, 1.7F, 7.0F, 1.0F, 1.3F, 2.0F}));
  EXPECT_TRUE(c.up_first);
  EXPECT_EQ(p.layout.w_gate_up, interleaved_rows(8, 48, DType::kBF16));
  EXPECT_EQ(p.layout.g_u.block_cols, 8);
  EXPECT_EQ(p.layout.g_u.row_stride_bytes, (2 * 64 + 8) * 4);
  EXPECT_TRUE(p.bias_gate_up && p.save_g_u && p.norm.enabled && p.norm.add);
  EXPECT_EQ(p.norm.eps, 0.01F);
  EXPECT_EQ(p.norm.weight_offset, 1.0F);
  EXPECT_EQ(p.alignment_bytes, 4);
  EXPECT_EQ(c.fill, Fill::kIntegers);
  EXPECT_EQ(c.seed, 9U);
}

TEST(ParseCase, TheNormAloneHasTwoDims) {
  for (const char* text : {"3x40:norm", "3x40:add_norm(eps=0.01,weight_offset=1):fp16:pad=8"}) {
    const Case c = parsed(text);
    EXPECT_EQ(c.problem.op, Op::kNorm) << text;
    EXPECT_TRUE(c.problem.norm.enabled) << text;
    EXPECT_EQ(c.problem.m, 3) << text;
    EXPECT_EQ(c.problem.d, 40) << text;
    EXPECT_EQ(c.problem.h, 0) << text;
    EXPECT_EQ(parsed(format_case(c)), c) << format_case(c);
  }
  EXPECT_EQ(format_case(parsed("3x40:fp16:norm")), "3x40:fp16:norm");
  EXPECT_TRUE(parsed("3x40:add_norm").problem.norm.add);
}

TEST(ParseCase, LinearIsDownByTheDimsOfAProduct) {
  const Case c = parsed("3x40x64:linear:bias_down");
  EXPECT_EQ(c.problem.op, Op::kDown);
  EXPECT_EQ(c.problem.h, 40);  // K
  EXPECT_EQ(c.problem.d, 64);  // N
  EXPECT_EQ(c, parsed("3x64x40:down:bias_down"));
  EXPECT_EQ(format_case(c), "3x64x40:down:bias_down");
  EXPECT_EQ(parsed("3x40x64:bias_down:linear"), c) << "wherever the word is";
}

TEST(ParseCase, OddPairsPromiseOnlyTheAlignmentTheyHave) {
  EXPECT_EQ(parsed("3x5x7:concat").problem.alignment_bytes, 2);  // 7 rows of 5 bf16
  EXPECT_EQ(parsed("3x6x7:concat").problem.alignment_bytes, 4);  // 7 rows of 6
  EXPECT_EQ(parsed("3x32x7:concat").problem.alignment_bytes, 16);
  EXPECT_EQ(parsed("3x5x7:concat:down").problem.alignment_bytes, 16);  // has no pair
  EXPECT_EQ(parsed("3x0x7:gate_mul:interleaved1").problem.alignment_bytes, 2);
}

// A block that is not full keeps its gap, so that the halves never overlap.
TEST(ParseCase, RaggedInterleavedColumnsKeepTheirGaps) {
  const Case c = parsed("3x1x5:gate_mul:interleaved4");
  EXPECT_EQ(c.problem.layout.g_u.row_stride_bytes, 2 * 8 * 2);
  EXPECT_EQ(pair_offset_bytes(c, Operand::kG), 4 * 2);
}

TEST(ParseCase, RefusalsNameTheToken) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"", "token \"\""},
      {"4x5", "token \"4x5\""},
      {"4x5:mlp", "token \"4x5\""},
      {"4x5:linear", "token \"4x5\""},
      {"4x5:gate_up:norm", "token \"4x5\""},
      {"4x5:norm:add_norm", "token \"add_norm\": this was said before"},
      {"4x0:norm", "d: got 0"},
      {"4x5:norm:bf16/bf16/fp32", "y_dtype"},
      {"4x5x6:linear:down", "token \"down\": this was said before"},
      {"4x5x6:linear:norm", "norm"},
      {"4x5x6:input_grad:accumulate", "accumulate_dw"},
      {"4x5x6x7", "token \"4x5x6x7\""},
      {"4x-5x6", "token \"4x-5x6\""},
      {"4x5x6:", "token \"\""},
      {"4x5x6::bias", "token \"\""},
      {"4x5x6:bf17", "token \"bf17\""},
      {"4x5x6:bf16/fp32", "token \"bf16/fp32\""},
      {"4x5x6:bf16/fp32/fp8", "token \"bf16/fp32/fp8\""},
      {"4x5x6:fp32/", "token \"fp32/\""},
      {"4x5x6:silu(", "token \"silu(\": \")\" is missing"},
      {"4x5x6:silu()", "unknown parameter \"\""},
      {"4x5x6:silu(beta=1)", "unknown parameter \"beta\""},
      {"4x5x6:silu(alpha=x)", "\"x\" is no number"},
      {"4x5x6:silu(alpha=1,alpha=2)", "\"alpha\" is given twice"},
      {"4x5x6:silu(alpha=1,)", "a parameter is missing"},
      {"4x5x6:silu(alpha=1)2", "token \"silu(alpha=1)2\""},
      {"4x5x6:silu(limit=nan)", "gate.limit"},
      {"4x5x6:relu(alpha=2)", "gate.alpha"},
      {"4x5x6:silu:relu", "token \"relu\": this was said before"},
      {"4x5x6:bias:bias", "token \"bias\": this was said before"},
      {"4x5x6:interleaved", "token \"interleaved\""},
      {"4x5x6:interleaved0", "token \"interleaved0\""},
      {"4x5x6:concat+down_first", "token \"concat+down_first\""},
      {"4x5x6:separate+up_first", "token \"separate+up_first\""},
      {"4x5x6:concatenated", "token \"concatenated\""},
      {"4x5x6:pad=-1", "token \"pad=-1\""},
      {"4x5x6:seed=", "token \"seed=\""},
      {"4x5x6:fill=zeros", "token \"fill=zeros\""},
      {"4x5x6:warp=9", "token \"warp=9\""},
      {"4x5x6:concat:align=16", "token \"align=16\""},
      {"4x5x6:align=3", "alignment_bytes"},
      {"4x5x6:in_place", "token \"in_place\""},
      {"4x5x6:mlp_grad:in_place", "token \"in_place\""},
      {"4x5x6:mlp_grad:save_dg_du:recompute:in_place", "token \"in_place\""},
      {"4x5x6:in_place:residual:broadcast", "token \"in_place\""},
      {"4x5x6:down:norm", "norm"},
      {"4x5x6:gate_up:round_gate", "round_gate: set for gate_up"},
      {"4x5x6:residual_norm_input", "residual"},
      {"4x5x0", "h: got 0"},
      {"4x9223372036854775807x6", "2^40"},
      {"1x940964094096x14098874:concat", "concat puts up's first row too far behind gate's"},
      {"1x940964094096x64:interleaved14098874", "interleaved14098874 puts up's first row too far"},
  };
  for (const auto& [text, part] : refused) {
    EXPECT_NE(refusal(text).find(part), std::string::npos) << text << ": " << refusal(text);
  }
}

template <class T>
T one_of(const std::vector<T>& values) {
  return *rc::gen::elementOf(values);
}

float positive_float() {
  const auto exponent = *rc::gen::inRange(-20, 20);
  const auto fraction = *rc::gen::inRange(1, 1 << 24);
  return std::ldexp(static_cast<float>(fraction), exponent - 24);
}

Case any_case() {
  Case c;
  Problem& p = c.problem;
  p.op = static_cast<Op>(*rc::gen::inRange(0, kOpCount));
  p.m = *rc::gen::inRange(0, 300);
  p.d = *rc::gen::inRange(1, 300);
  p.h = *rc::gen::inRange(1, 300);
  for (DType* dtype : {&p.x_dtype, &p.w_dtype, &p.y_dtype, &p.dw_dtype}) {
    *dtype = static_cast<DType>(*rc::gen::inRange(0, kFloatDTypeCount));
  }
  if (*rc::gen::inRange(0, 4) == 0) {
    p.w_dtype = static_cast<DType>(*rc::gen::inRange(kFloatDTypeCount, kDTypeCount));
    p.d = (p.d + kBlockElems - 1) / kBlockElems * kBlockElems;
    p.h = (p.h + kBlockElems - 1) / kBlockElems * kBlockElems;
  }
  p.gate.activation = static_cast<Activation>(*rc::gen::inRange(0, kActivationCount));
  if (p.gate.activation == Activation::kSilu) p.gate.alpha = positive_float();
  p.gate.limit =
      *rc::gen::arbitrary<bool>() ? std::numeric_limits<float>::infinity() : positive_float();
  p.gate.up_offset = -positive_float();
  p.gate.gate_multiplier = positive_float();
  p.gate.output_multiplier = *rc::gen::arbitrary<bool>() ? 1.0F : positive_float();
  const bool forward = p.op == Op::kGateUp || p.op == Op::kMlp;
  p.bias_gate_up = (forward || p.op == Op::kMlpGrad) && *rc::gen::arbitrary<bool>();
  p.save_g_u = forward && *rc::gen::arbitrary<bool>();
  p.norm.enabled = p.op == Op::kNorm || (forward && *rc::gen::arbitrary<bool>());
  if (p.norm.enabled) {
    p.norm.add = *rc::gen::arbitrary<bool>();
    p.norm.eps = positive_float();
    p.norm.weight_offset = positive_float();
  }
  if (p.op == Op::kMlp && p.norm.enabled) p.residual = Residual::kNormInput;
  if (p.op == Op::kDown) p.residual = static_cast<Residual>(*rc::gen::inRange(0, 2));
  p.recompute = p.op == Op::kMlpGrad && *rc::gen::arbitrary<bool>();
  const bool sums = p.op == Op::kWeightGrad || p.op == Op::kColumnSum;
  p.accumulate_dw = (p.op == Op::kMlpGrad || sums) && *rc::gen::arbitrary<bool>();
  p.save_dg_du = p.op == Op::kMlpGrad && *rc::gen::arbitrary<bool>();
  const bool gate_alone = p.op == Op::kGateMul || p.op == Op::kGateMulGrad;
  p.round_gate = gate_alone && *rc::gen::arbitrary<bool>();
  if (p.op == Op::kNorm) {  // writes x's type, and has no H
    p.y_dtype = p.x_dtype;
    p.h = 0;
  }
  c.placement = static_cast<Placement>(*rc::gen::inRange(0, 3));
  if (c.placement == Placement::kInterleaved) c.block_rows = *rc::gen::inRange(1, 20);
  c.up_first = c.placement != Placement::kSeparate && *rc::gen::arbitrary<bool>();
  c.pad_elems = *rc::gen::inRange(0, 9);
  c.align = one_of<std::int64_t>({0, 0, 0, 8, 16, 64});
  c.broadcast = *rc::gen::arbitrary<bool>();
  c.minimal = *rc::gen::arbitrary<bool>();
  c.fill = static_cast<Fill>(*rc::gen::inRange(0, 3));
  c.seed = *rc::gen::arbitrary<std::uint64_t>();
  return c;
}

// What `sluice list tokens` prints is what the parser takes, and nothing of it is left out.
TEST(TokenHelp, IsTheGrammar) {
  std::string all;
  for (const TokenHelp& line : token_help()) {
    std::string words = line.tokens;
    EXPECT_NE(std::string(line.meaning), "");
    for (std::size_t at = 0; at < words.size();) {
      const std::size_t end = std::min(words.find(", ", at), words.size());
      std::string token = words.substr(at, end - at);
      at = end + 2;
      all += " " + token + " ";
      if (token.starts_with("x/w/y"))
        token = token == "x/w/y" ? "fp32/bf16/fp32" : "fp32/bf16/fp32/bf16";
      if (token == "fill=F") token = "fill=integers";
      if (token.back() == 'N') token.back() = '8';
      const auto c = parse_case("8x64x64:" + token);
      const std::string why = c ? "" : c.error().message;
      EXPECT_EQ(why.find("unknown token"), std::string::npos) << why;
    }
  }
  for (int i = 0; i < kOpCount; ++i) {
    EXPECT_NE(all.find(std::string(" ") + to_string(static_cast<Op>(i)) + " "), std::string::npos);
  }
  for (int i = 0; i < kDTypeCount; ++i) {
    EXPECT_NE(all.find(std::string(" ") + to_string(static_cast<DType>(i)) + " "),
              std::string::npos);
  }
  for (const char* flag :
       {"bias", "save_dg_du", "round_gate", "add_norm", "interleavedN", "pad=N", "align=N"}) {
    EXPECT_NE(all.find(std::string(" ") + flag + " "), std::string::npos) << flag;
  }
}

TEST(FormatCase, RoundTrips) {
  EXPECT_TRUE(rc::check("parse(format(c)) == c", [] {
    Case c = any_case();
    if (!place(c)) RC_DISCARD("not a case that can be placed");
    const std::string text = format_case(c);
    const auto again = parse_case(text);
    RC_ASSERT(again.has_value());
    RC_ASSERT(*again == c);
    RC_ASSERT(again->problem.gate == c.problem.gate);
    RC_ASSERT(again->problem.norm == c.problem.norm);
    RC_ASSERT(again->seed == c.seed);
    RC_ASSERT(format_case(*again) == text);
  }));
}

TEST(FormatCase, IsShort) {
  EXPECT_EQ(format_case(parsed("1x2x8:mlp:bf16:silu:separate:seed=1:fill=normal")), "1x2x8");
  EXPECT_EQ(format_case(parsed("1x2x8:silu(alpha=1.702,limit=7,up_offset=1)")),
            "1x2x8:clamped_swiglu");
  EXPECT_EQ(format_case(parsed("1x2x8:fp64")), "1x2x8:fp64");
  EXPECT_EQ(format_case(parsed("1x32x64:bf16/q8_0/bf16")), "1x32x64:q8_0");
  EXPECT_EQ(format_case(parsed("1x32x64:fp32/q4_1/fp32")), "1x32x64:fp32/q4_1/fp32");
}

TEST(CaseEquality, SeesALayoutThatWasEdited) {
  const Case c = parsed("4x8x16");
  Case other = c;
  other.problem.layout.x.row_stride_bytes = 64;
  EXPECT_FALSE(c == other);
  EXPECT_TRUE(c == Case(c));
}

}  // namespace
}  // namespace sluice::harness
