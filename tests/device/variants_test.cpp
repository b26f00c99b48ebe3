// SPDX-License-Identifier: Apache-2.0
// Every CUDA variant and every config of it, forced, over operators, types, gates, layouts, shapes
// and flags, against the fp64 oracle: poisoned outputs, canaries, the same bits twice.
#include <string>
#include <vector>

#include "gpu.hpp"
#include "harness/test_cases.hpp"

namespace sluice {
namespace {

using Strings = std::vector<std::string>;

const Strings kOps = {"gate_up",       "down",         "mlp",     "gate_mul",
                      "gate_mul_grad", "gate_up_grad", "mlp_grad"};
const Strings kTypes = {"bf16",
                        "fp16",
                        "fp32",
                        "bf16/bf16/fp32",
                        "fp32/bf16/fp32",
                        "fp16/fp32/fp16",
                        "bf16/bf16/bf16/bf16"};
const Strings kGates = {"silu",
                        "gelu_tanh",
                        "gelu_erf",
                        "relu",
                        "sigmoid",
                        "identity",
                        "clamped_swiglu",
                        "silu(alpha=1.7,limit=2,up_offset=1,gate_multiplier=1.3)",
                        "gelu_tanh(output_multiplier=2)"};
const Strings kLayouts = {"separate",
                          "concat",
                          "concat+up_first",
                          "interleaved1",
                          "interleaved1+up_first",
                          "interleaved3",
                          "interleaved4",
                          "interleaved8+up_first",
                          "interleaved16"};
// One row, no full tile, one tile exactly, one more than a tile in each direction, several tiles.
const Strings kShapes = {"1x1x1",    "1x64x96",   "2x7x3",      "16x40x56",  "17x33x65",
                         "64x64x64", "65x130x67", "130x72x200", "300x65x129"};

// The flags that make sense for an operator, one string a combination.
Strings flags_of(const std::string& op) {
  if (op == "gate_up") {
    return {"",
            ":bias",
            ":save",
            ":bias:save:pad=3",
            ":norm",
            ":add_norm",
            ":add_norm(eps=1e-3,weight_offset=1):bias",
            ":broadcast",
            ":pad=5",
            ":bias:save:pad=8"};
  }
  if (op == "down")
    return {"",
            ":bias_down",
            ":residual",
            ":residual:in_place",
            ":bias_down:residual:pad=8",
            ":pad=1:broadcast"};
  if (op == "mlp") {
    return {"",
            ":bias:bias_down:residual",
            ":residual:in_place:pad=7",
            ":norm:residual_norm_input",
            ":add_norm",
            ":add_norm:residual_norm_input:bias_down",
            ":add_norm:residual",
            ":save",
            ":bias:bias_down:residual:save:pad=8",
            ":broadcast"};
  }
  if (op == "gate_mul") return {"", ":pad=3", ":pad=8", ":round_gate"};
  if (op == "gate_mul_grad") {
    return {"", ":in_place", ":minimal", ":in_place:pad=8", ":pad=3", ":broadcast", ":round_gate"};
  }
  if (op == "mlp_grad") {
    return {"",
            ":recompute",
            ":accumulate",
            ":bias:bias_down",
            ":recompute:bias",
            ":bias:bias_down:accumulate",
            ":save_dg_du:in_place",
            ":save_dg_du:recompute",
            ":recompute:bias:bias_down:accumulate:pad=8",
            ":pad=3",
            ":broadcast"};
  }
  return {"", ":in_place", ":minimal", ":in_place:pad=8", ":pad=3", ":broadcast"};
}

// The oracle is one host thread's work: fewer elements of large outputs keep that affordable.
constexpr harness::VerifyOptions kSampling{.max_operations = 2e8};

// Verifies a case with every config of every variant that takes it. Returns how many were run.
int verify_everywhere(const std::string& text) {
  const auto c = harness::parse_case(text);
  if (!c) {
    ADD_FAILURE() << text << ": " << c.error().message;
    return 0;
  }
  int runs = 0;
  harness::for_each_forced(
      *c, gpu::rig(),
      [&](const harness::ForcedRun& run) {
        if (!run.report) {
          ADD_FAILURE() << text << ": " << run.report.error().message;
          return;
        }
        EXPECT_EQ(run.report->variant, run.variant);
        EXPECT_EQ(run.report->config, run.config);
        EXPECT_TRUE(run.report->passed()) << run.report->text();
        ++runs;
      },
      kSampling);
  return runs;
}

class PerOp : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Variants, PerOp, testing::ValuesIn(kOps),
                         [](const auto& test) { return test.param; });

TEST_P(PerOp, TypesAndGates) {
  int runs = 0;
  for (const std::string& types : kTypes) {
    for (const std::string& gate : kGates) {
      runs += verify_everywhere("19x40x72:" + GetParam() + ":" + types + ":" + gate);
    }
  }
  EXPECT_GE(runs, static_cast<int>(kTypes.size() * kGates.size()));
}

TEST_P(PerOp, LayoutsAndFlags) {
  const Strings flags = flags_of(GetParam());
  for (std::size_t l = 0; l < kLayouts.size(); ++l) {
    for (std::size_t f = 0; f < flags.size(); ++f) {
      // Within the layouts all flags meet each of these shapes, and each of bf16, fp16 and fp32 in
      // a shape whose widths are multiples of 8, as tensor cores need them (every other one): types
      // advance half as fast as shapes.
      const std::string& shape = kShapes[3 + (l + f) % (kShapes.size() - 3)];
      const std::string& types = kTypes[(l / 2 + f) % 3];
      EXPECT_GT(
          verify_everywhere(shape + ":" + GetParam() + ":" + types + ":" + kLayouts[l] + flags[f]),
          0);
    }
  }
}

TEST_P(PerOp, Shapes) {
  for (const std::string& shape : kShapes) {
    for (const std::string types : {"bf16", "fp32"}) {
      EXPECT_GT(verify_everywhere(shape + ":" + GetParam() + ":" + types), 0);
    }
  }
}

// Widths that the copy engine walks, with tails behind whole tiles in every direction: rows of 128
// and 256, 64 to 192 output columns, depths of 64.
const Strings kTensorCoreShapes = {"1x8x8",         "129x72x104",   "256x200x392",
                                   "300x1032x520",  "513x264x2056", "1030x136x1544",
                                   "2060x136x3080", "2060x3080x136"};

// Shapes, layouts, types, gates and flags in turn, twice round the shapes. The last two shapes give
// a CTA several tiles, so that both consumers of the pingpong schedule come round again.
TEST_P(PerOp, TensorCoreTiles) {
  const Strings flags = flags_of(GetParam());
  for (std::size_t i = 0; i < 2 * kTensorCoreShapes.size(); ++i) {
    const std::string& shape = kTensorCoreShapes[i % kTensorCoreShapes.size()];
    const std::string& flag = flags[i % flags.size()];
    const std::string types = i % 2 == 0 ? "bf16" : "fp16";
    const bool exact = i % 3 == 0 && flag.find("norm") == std::string::npos;
    const std::string gate = exact ? "identity:fill=integers" : kGates[i % kGates.size()];
    const std::string& layout = kLayouts[i % kLayouts.size()];
    EXPECT_GT(verify_everywhere(shape + ":" + GetParam() + ":" + types + ":" + layout + ":" + gate +
                                flag),
              0);
  }
}

// Blocks of gate rows and of up rows come as they lie where a tile is a multiple of both, else by
// copies of whole blocks, or of a part.
TEST(Variants, BlocksOfRowsThatTakeTurns) {
  for (const std::string layout : {"interleaved16", "interleaved16+up_first", "interleaved24",
                                   "interleaved32", "interleaved32+up_first", "interleaved64"}) {
    for (const std::string text :
         {"300x136x1536:gate_up:identity:fill=integers:", "1030x72x1536:gate_up:fp16:bias:",
          "300x136x1536:gate_up:save:", "1030x72x1536:gate_up:fp16:bias:save:"}) {
      EXPECT_GT(verify_everywhere(text + layout), 0);
    }
  }
}

// With the identity gate and small integers there is nothing to round: any error is an index.
TEST_P(PerOp, IntegersAreExact) {
  for (const std::string& shape : kShapes) {
    for (const std::string layout : {"separate", "interleaved1", "concat"}) {
      const std::string text = shape + ":" + GetParam() + ":bf16:identity:fill=integers:" + layout;
      EXPECT_GT(verify_everywhere(text), 0);
    }
  }
}

TEST_P(PerOp, SpecialValues) {
  for (const std::string types : {"bf16", "fp16", "fp32"}) {
    for (const std::string gate :
         {"silu", "gelu_tanh", "gelu_erf", "relu", "sigmoid", "identity", "clamped_swiglu"}) {
      EXPECT_GT(
          verify_everywhere("33x24x40:" + GetParam() + ":" + types + ":" + gate + ":fill=special"),
          0);
    }
  }
}

// Rows of more columns than the threads of the norm's launch hold, and an eps that shows.
TEST(Variants, WideNorms) {
  for (const std::string text :
       {"3x9000x96:mlp:add_norm(eps=1):residual_norm_input", "20x8200x64:gate_up:norm(eps=1)"}) {
    EXPECT_GT(verify_everywhere(text), 0);
  }
}

// Pointers that are no more aligned than an element.
TEST_P(PerOp, SmallestAlignment) {
  EXPECT_GT(verify_everywhere("21x33x47:" + GetParam() + ":bf16/bf16/bf16/bf16:align=2:pad=1"), 0);
  EXPECT_GT(verify_everywhere("21x33x47:" + GetParam() + ":fp32:align=4:pad=1"), 0);
}

TEST(Variants, EveryTokenCountUpTo300InOddSteps) {
  for (int m = 1; m <= 300; m += 13) {
    EXPECT_GT(verify_everywhere(std::to_string(m) + "x24x40:mlp"), 0);
    EXPECT_GT(verify_everywhere(std::to_string(m) + "x136x392:mlp:fp16:interleaved1"), 0);
  }
}

// What the sanitizers run of the tensor-core variants: every config on a few tiles. A test a case,
// which their shards share.
using FewTiles = testing::TestWithParam<std::string>;
TEST_P(FewTiles, EveryConfig) { EXPECT_GT(verify_everywhere(GetParam() + ":bf16"), 0); }
INSTANTIATE_TEST_SUITE_P(Variants, FewTiles,
                         testing::Values("260x136x200:gate_up", "260x136x200:down",
                                         "260x136x200:mlp", "260x136x200:gate_up_grad",
                                         "260x136x200:gate_mul", "260x136x200:gate_mul_grad",
                                         "260x136x200:mlp_grad", "260x136x200:gate_up:save",
                                         "140x136x200:gate_up:save"));

TEST(Variants, ARealisticShapePasses) {
  EXPECT_GT(verify_everywhere("48x576x1536:mlp:add_norm:residual_norm_input"), 0);
  EXPECT_GT(verify_everywhere("200x1024x2816:mlp_grad:bias:bias_down:recompute"), 0);
}

// A variant that nothing forces would be dead code.
TEST(Variants, TheTableNamesACudaVariant) { EXPECT_FALSE(variant_names(Backend::kCuda).empty()); }

}  // namespace
}  // namespace sluice
