// SPDX-License-Identifier: Apache-2.0
// Every operator on every target of this CPU against the oracle, and the same bits for any number
// of threads.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "problems.hpp"
#include "targets.hpp"

namespace sluice::test {
namespace {

class Engine : public testing::TestWithParam<std::string> {
 protected:
  void verify(const std::string& text, int threads = 0) const {
    const harness::Case c = parse(text);
    if (!offers(c, GetParam())) return;
    auto rig = harness::open_rig("cpu");
    ASSERT_TRUE(rig) << rig.error().message;
    Options options;
    options.variant = "cpu.simd";
    const std::string config = config_of(c.problem.op, GetParam());
    options.config = config.c_str();
    options.threads = threads;
    const auto report = harness::verify_case(c, **rig, options);
    ASSERT_TRUE(report) << text << ": " << report.error().message;
    EXPECT_EQ(report->variant, "cpu.simd");
    EXPECT_EQ(report->config, config);
    // Special values may make every element NaN, which shows nothing and is right.
    EXPECT_TRUE(c.fill == harness::Fill::kSpecial ? report->right() : report->passed())
        << report->text();
  }

  // The i-th of the types in turn that this target takes.
  static const char* type(int i) {
    constexpr const char* kTypes[] = {"bf16", "fp16", "fp32"};
    return kTypes[GetParam() == "avx512_bf16" ? 0 : i % 3];
  }
};

TEST_P(Engine, MatchesTheOracleForEveryOperator) {
  for (const std::string& text : full_cases()) verify(text);
}

TEST_P(Engine, MatchesTheOracleForEveryActivationAndType) {
  for (const char* gate : {"silu", "gelu_tanh", "gelu_erf", "relu", "sigmoid", "identity",
                           "silu(alpha=1.7,limit=0.5,up_offset=1,gate_multiplier=1.3,"
                           "output_multiplier=2)"}) {
    for (const char* dtype : {"bf16", "fp16", "fp32", "fp32/bf16/fp32", "fp32/fp16/fp32"}) {
      for (const char* shape : {"2x50x40:mlp:", "41x50x40:mlp:", "41x50x40:mlp_grad:"}) {
        verify(std::string(shape) + dtype + ":" + gate);
      }
    }
  }
}

TEST_P(Engine, MatchesTheOracleForEveryNumberOfFewTokens) {
  for (const int m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 14, 15, 16, 17, 18, 33}) {
    verify(std::to_string(m) + "x67x131:mlp:bf16");
    verify(std::to_string(m) + "x33x40:mlp:fp32");
  }
}

// Every M around the widths of tiles and panels, with D and H that nothing divides.
TEST_P(Engine, MatchesTheOracleForEveryMAndType) {
  for (int m = 1; m <= 70; ++m) {
    for (const char* dtype : {"bf16", "fp16", "fp32"}) {
      verify(std::to_string(m) + "x37x29:mlp:" + dtype);
    }
    for (const char* dtype : {"q8_0", "q4_0", "q4_1"}) {
      verify(std::to_string(m) + "x96x64:mlp:" + dtype);
    }
  }
}

// The same for every gate; types take turns.
TEST_P(Engine, ExactOrInBoundForEveryMAndGate) {
  int turn = 0;
  for (int m = 1; m <= 70; ++m) {
    for (const char* gate :
         {"silu", "gelu_tanh", "gelu_erf", "relu", "sigmoid", "clamped_swiglu"}) {
      verify(std::to_string(m) + "x21x35:gate_up:" + type(turn++) + ":" + gate);
    }
    verify(std::to_string(m) + "x45x51:mlp:" + type(turn++) + ":identity:fill=integers");
  }
}

// K blocks that are cut evenly, several tasks and strips, and unaligned rows.
TEST_P(Engine, MatchesTheOracleAcrossBlocksWithPaddedRows) {
  for (const int m : {1, 3, 12, 13, 16, 17, 48, 65}) {
    verify(std::to_string(m) + "x577x231:mlp:bf16:pad=3:align=2");
    verify(std::to_string(m) + "x301x203:mlp:fp32:pad=1:align=4:interleaved5");
  }
}

TEST_P(Engine, ExactOnIntegers) {
  for (const char* text :
       {"6x300x90:mlp:bf16:identity:fill=integers", "70x300x90:mlp:bf16:identity:fill=integers",
        "70x90x300:gate_up:fp16:identity:fill=integers:interleaved1",
        "6x608x96:mlp:q8_0:identity:fill=integers", "70x608x96:mlp:q4_0:identity:fill=integers",
        "70x90x300:mlp_grad:fp32:identity:fill=integers",
        "70x90x300:mlp_grad:bf16:identity:fill=integers:recompute:accumulate"}) {
    verify(text);
  }
}

TEST_P(Engine, SpecialValuesPropagate) {
  for (const char* text : {"4x80x60:mlp:bf16:fill=special", "40x80x60:mlp:bf16:fill=special",
                           "4x96x64:mlp:q8_0:fill=special", "40x96x64:mlp:q4_0:fill=special",
                           "40x80x60:gate_mul:fp16:clamped_swiglu:fill=special",
                           "40x80x60:gate_mul_grad:bf16:gelu_erf:fill=special",
                           "40x80x60:gate_mul:bf16:gelu_tanh:round_gate:fill=special",
                           "40x80x60:gate_mul_grad:fp16:clamped_swiglu:round_gate:fill=special",
                           "40x80x60:gate_up_grad:fp32:gelu_tanh:fill=special"}) {
    verify(text);
  }
}

// The width that no weights in blocks have as theirs may be less than a block.
TEST_P(Engine, FewRowsOfWeightsInBlocks) {
  for (const char* m : {"1", "4", "40"}) {
    verify(std::string(m) + "x64x5:gate_up:q8_0");
    verify(std::string(m) + "x1x64:down:q4_0");
  }
}

// One token has a special value or none: of eight seeds some put one into each of x and h.
TEST_P(Engine, SpecialValuesOfOneTokenPropagateThroughBlocks) {
  for (const char* text : {"1x96x64:mlp:q8_0", "1x96x64:mlp:q4_0",
                           "1x608x96:gate_up:fp16/q4_0/fp16", "1x96x608:down:fp16/q8_0/fp16"}) {
    for (int seed = 1; seed <= 8; ++seed) {
      verify(std::string(text) + ":fill=special:seed=" + std::to_string(seed));
    }
  }
}

TEST_P(Engine, TakesAnyAlignmentStrideAndBroadcast) {
  for (const std::string& text : full_cases()) {
    verify(text + ":pad=3");
    const bool has_fp32 = text.find("fp32") != std::string::npos ||
                          text.find("mlp_grad") != std::string::npos;  // dw is fp32 by default
    verify(text + (has_fp32 ? ":align=4" : ":align=2"));
    if (text.find("down") != 0) verify(text + ":broadcast");
  }
}

TEST_P(Engine, SkipsOutputsThatAreNull) {
  for (const std::string& text : full_cases()) {
    // mlp_grad has no others than those that it accumulates.
    const bool has_none =
        text.find("mlp_grad") != text.npos && text.find(":accumulate") == text.npos;
    verify(text + (has_none ? ":minimal:accumulate" : ":minimal"));
  }
}

// Several passes over the weights (kMaxPassRows), the last one short.
TEST_P(Engine, MoreTokensThanOnePass) {
  verify("1101x20x24:mlp:bf16:add_norm:residual_norm_input:save");
  verify("1101x20x24:mlp:fp32:residual:pad=1");
}

// K beyond several blocks of the GEMM and of the dot products. D or H is long and the other short,
// a few tasks and groups of rows: both long is minutes of oracle under a sanitizer.
TEST_P(Engine, LongSums) {
  for (const char* dtype : {"bf16", "fp32"}) {
    for (const char* shape : {"2x9000x16", "2x16x9000", "16x5000x70", "16x71x2101", "16x5001x70",
                              "45x1300x70", "45x71x1103"}) {
      verify(std::string(shape) + ":mlp:" + dtype);
    }
  }
  // One wide token keeps its 16 bits (token_dtype).
  for (const char* text :
       {"1x4104x16:mlp:bf16", "1x16x4104:mlp:fp16", "1x5001x70:gate_up:bf16:add_norm"}) {
    verify(text);
  }
  verify("531x301x70:mlp_grad:bf16:recompute");
  verify("45x40x1103:mlp_grad:bf16:recompute");
  verify("1x16480x32:mlp:q8_0");
  verify("3x9088x32:mlp:q4_0");
  verify("16x5024x96:mlp:q8_0");
  verify("45x96x5024:mlp:q4_0");
}

TEST_P(Engine, SameBitsForAnyNumberOfThreads) {
  std::vector<std::string> texts = full_cases();
  texts.insert(texts.end(), {"5x160x608:mlp:q4_0", "40x608x160:mlp:q8_0"});
  for (const std::string& text : texts) {
    const harness::Case c = parse(text);
    if (!offers(c, GetParam())) continue;
    const auto expected = bits_of(c, GetParam(), 1);
    for (const int threads : {1, 2, 3, 8}) {
      EXPECT_EQ(bits_of(c, GetParam(), threads), expected) << text << ", " << threads << " threads";
    }
  }
}

// A token's result is the same beside 32 and beside 199 others: the GEMM's sums know no neighbours.
TEST_P(Engine, TokensDoNotDependOnTheirBatch) {
  const auto rows = [&](const std::string& text) {
    return bits_of(parse(text), GetParam(), 2).at(0);
  };
  const std::vector<char> few = rows(std::string("33x70x140:mlp:") + type(2));
  const std::vector<char> many = rows(std::string("200x70x140:mlp:") + type(2));
  EXPECT_EQ(
      few, std::vector<char>(many.begin(), many.begin() + static_cast<std::ptrdiff_t>(few.size())));
}

// The same of fp32 weights that AVX-512 reads in place: idle lanes do not matter.
TEST_P(Engine, FewFp32TokensDoNotDependOnTheirBatch) {
  const auto rows = [&](const std::string& text) {
    const harness::Case c = parse(text);
    return offers(c, GetParam()) ? bits_of(c, GetParam(), 2).at(0) : std::vector<char>();
  };
  const std::vector<char> few = rows("13x70x2140:mlp:fp32");
  const std::vector<char> more = rows("16x70x2140:mlp:fp32");
  EXPECT_EQ(
      few, std::vector<char>(more.begin(), more.begin() + static_cast<std::ptrdiff_t>(few.size())));
}

INSTANTIATE_TEST_SUITE_P(Configs, Engine, testing::ValuesIn(words()),
                         [](const auto& info_of) { return info_of.param; });

}  // namespace
}  // namespace sluice::test
