// SPDX-License-Identifier: Apache-2.0
// What the decode recipe takes, refuses and chooses, on any CPU.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "choice.hpp"
#include "fake_devices.hpp"
#include "sluice/plan.hpp"

namespace sluice {
namespace {

using gpu::chosen;
using gpu::h200;
using gpu::problem_of;
using gpu::step_of;

constexpr const char* kDecode = "cuda.sm90_decode";

std::string reason_of(const std::string& text, const Device& device) {
  return gpu::reason_of(kDecode, text, device);
}

// "b16r64k256s5" of "gate_up=b16r64k256s5,down=...".
std::string word_of(const std::string& config, const std::string& step) {
  const std::size_t at = config.find(step + "=");
  if (at == std::string::npos) return "";
  const std::size_t begin = at + step.size() + 1;
  return config.substr(begin, config.find(',', begin) - begin);
}

// Whether the choice is this recipe with the norm as a launch, or deferred into gate_up.
bool launches_norm(const std::string& text) {
  return chosen(text, h200()).rfind("cuda.sm90_decode norm=row,gate_up=", 0) == 0;
}

TEST(CudaSm90Decode, ServesUpTo160TokensOnHopper) {
  EXPECT_EQ(chosen("1x4096x14336:mlp", h200()),
            "cuda.sm90_decode gate_up=b16r64k256s5,down=b16r64k256s5x2");
  // Each launch of mlp has the tiling that its operator would have alone.
  EXPECT_EQ(chosen("40x4096x14336:mlp", h200()),
            "cuda.sm90_decode gate_up=b64r128k128s4,down=b64r64k128s6x2");
  EXPECT_EQ(chosen("17x4096x14336:mlp", h200()),
            "cuda.sm90_decode gate_up=b32r64k128s9,down=b32r64k128s9x2");
  EXPECT_EQ(chosen("9x4096x14336:gate_up:fp16", h200()), "cuda.sm90_decode gate_up=b16r64k256s5");
  EXPECT_EQ(chosen("40x4096x14336:down", h200()), "cuda.sm90_decode down=b64r64k128s6x2");
  EXPECT_EQ(chosen("64x8192x28672:gate_up", h200()), "cuda.sm90_decode gate_up=b64r128k128s4");
  EXPECT_EQ(chosen("65x4096x14336:mlp", h200()),
            "cuda.sm90_decode gate_up=b96r128k64s8,down=b96r64k128s5x2");
  EXPECT_EQ(chosen("96x4096x2048:gate_up", h200()), "cuda.sm90_decode gate_up=b96r64k128s5x2");
  // Then where it is estimated to be faster than tiles or cuBLASLt.
  EXPECT_EQ(chosen("128x4096x14336:mlp", h200()).substr(0, 17), "cuda.sm90_decode ");
  EXPECT_EQ(chosen("160x7168x2048:gate_up", h200()).substr(0, 17), "cuda.sm90_decode ");
  EXPECT_EQ(chosen("161x7168x2048:gate_up", h200()).substr(0, 10), "cuda.sm90 ");
  EXPECT_EQ(chosen("116x9840x10288:mlp", h200()).substr(0, 10), "cuda.sm90 ");
  EXPECT_EQ(chosen("144x11392x4352:gate_up", h200()).substr(0, 10), "cuda.sm90 ");
  const Device with = gpu::h200_with_cublaslt();
  EXPECT_EQ(chosen("96x4096x14336:down", with).substr(0, 17), "cuda.sm90_decode ");
  EXPECT_EQ(chosen("97x4096x14336:down", with).substr(0, 17), "cuda.sm90_decode ");
  EXPECT_EQ(chosen("152x5376x8256:down", with).substr(0, 10), "cuda.sm90 ");
  EXPECT_EQ(chosen("152x5376x8256:down", h200()).substr(0, 17), "cuda.sm90_decode ");
  EXPECT_EQ(chosen("160x4096x14336:down:residual", with).substr(0, 17), "cuda.sm90_decode ");
  EXPECT_EQ(chosen("145x5024x13936:down:residual", with).substr(0, 10), "cuda.sm90 ");
  EXPECT_EQ(chosen("128x4096x14336:mlp:add_norm:residual", with).substr(0, 17),
            "cuda.sm90_decode ");
  EXPECT_EQ(chosen("140x5120x20480:mlp:norm", with).substr(0, 10), "cuda.sm90 ");
  EXPECT_EQ(chosen("140x5120x20480:mlp:norm:residual", with).substr(0, 17), "cuda.sm90_decode ");
  // Rows that split sectors of L2 are copied, but of few tokens; those of whole sectors are not.
  const auto copies = [&](const std::string& text) {
    const Explanation said = explain(problem_of(text), h200());
    EXPECT_EQ(chosen(text, h200()).substr(0, 17), "cuda.sm90_decode ") << text;
    const bool says = said.steps.at(0).blocks.rfind("rows of the input copied to whole", 0) == 0;
    EXPECT_EQ(plan(problem_of(text), h200())->workspace_bytes > 0, says) << text;
    return says;
  };
  EXPECT_TRUE(copies("17x3000x4096:gate_up"));
  EXPECT_FALSE(copies("16x3000x4096:gate_up"));
  EXPECT_TRUE(copies("64x4096x3000:down"));
  EXPECT_FALSE(copies("64x3000x4096:down"));
  EXPECT_FALSE(copies("64x4096x3008:down"));
  EXPECT_FALSE(copies("128x1040x4096:gate_up"));
  const std::string wide = explain(problem_of("116x9840x10288:mlp"), h200()).reason;
  EXPECT_NE(wide.find("; not by cuda.sm90_decode: estimated at "), wide.npos) << wide;
  // Blocks of three rows have no boxes.
  EXPECT_EQ(chosen("16x4096x14336:gate_up:interleaved3", h200()).substr(0, 17),
            "cuda.sm90_decode ");
  EXPECT_EQ(chosen("17x4096x14336:gate_up:interleaved3", h200()).substr(0, 10), "cuda.sm80 ");
  EXPECT_EQ(chosen("40x136x400:mlp:interleaved16", h200()).substr(0, 17), "cuda.sm90_decode ");
  EXPECT_EQ(chosen("64x576x1536:mlp", h200()).substr(0, 17), "cuda.sm90_decode ");
  for (const std::string text :
       {"5x72x200:gate_up:bias:interleaved3", "33x64x72:down:residual:bias_down:pad=8",
        "64x64x48:mlp:interleaved16:clamped_swiglu", "0x64x96:mlp", "1x8x8:mlp:concat+up_first",
        "8x64x96:mlp:add_norm:residual_norm_input", "3x64x96:gate_up:norm"}) {
    EXPECT_EQ(reason_of(text, h200()), "") << text;
  }
}

// The norm's scale waits for the sums of products where a stage has room for its operands and the
// type for what is not scaled; elsewhere the norm is a launch.
TEST(CudaSm90Decode, DefersTheNormOfFewTokens) {
  for (const std::string text :
       {"1x4096x14336:mlp:norm", "8x4096x14336:mlp:norm", "5x4096x14336:mlp:add_norm",
        "5x4096x14336:mlp:add_norm(weight_offset=1):residual_norm_input"}) {
    EXPECT_EQ(chosen(text, h200()), "cuda.sm90_decode gate_up=bn16r64k256s5,down=b16r64k256s5x2");
  }
  // Shares of whole boxes may be uneven.
  EXPECT_EQ(chosen("1x16384x6656:mlp:add_norm", h200()),
            "cuda.sm90_decode gate_up=bn16r64k256s5,down=b16r64k256s5");
  EXPECT_EQ(chosen("8x4096x14336:gate_up:norm", h200()), "cuda.sm90_decode gate_up=bn16r64k256s5");
  // Where boxes take no weights, or no x, the norm is a launch.
  EXPECT_EQ(chosen("5x4096x14336:mlp:add_norm:interleaved3", h200()),
            "cuda.sm90_decode norm=row,gate_up=t8r32k512s5,down=t8r32k512s5");
  EXPECT_EQ(chosen("5x4096x14336:mlp:add_norm:broadcast", h200()),
            "cuda.sm90_decode norm=row,gate_up=b16r64k256s5,down=b16r64k256s5x2");
  EXPECT_EQ(chosen("5x4096x14336:gate_up:norm:interleaved3", h200()),
            "cuda.sm90_decode norm=row,gate_up=t8r32k512s5");
  EXPECT_EQ(chosen("9x4096x14336:gate_up:add_norm", h200()),
            "cuda.sm90_decode norm=row,gate_up=b16r64k256s5");
  // Up to 300 KB of weights an SM, 39.6 MB, a launch of the norm costs less.
  EXPECT_EQ(chosen("1x2048x3216:mlp:add_norm", h200()),
            "cuda.sm90_decode norm=row,gate_up=b16r64k256s5,down=b16r64k256s5x2");
  EXPECT_EQ(chosen("1x2048x3224:mlp:add_norm", h200()),
            "cuda.sm90_decode gate_up=bn16r64k256s5,down=b16r64k256s5x2");
  EXPECT_EQ(chosen("1x576x1536:gate_up:norm", h200()),
            "cuda.sm90_decode norm=row,gate_up=b16r64k256s5");
  const std::string text = "1x576x1536:mlp:norm";
  EXPECT_TRUE(launches_norm(text));
  EXPECT_EQ(step_of(text, h200(), "norm").passed_over,
            "norm in gate_up: a launch of the norm costs less than to defer it where weights are "
            "5 MB");
  EXPECT_EQ(step_of("1x4096x14336:mlp:norm", h200(), "gate_up").passed_over, "");
  // The norm's launch takes no rows as wide.
  EXPECT_EQ(chosen("1x65536x64:mlp:norm", h200()).substr(0, 27), "cuda.sm90_decode gate_up=bn");
}

TEST(CudaSm90Decode, SaysWhyItDoesNotDeferANorm) {
  const std::array<std::string, 2> refused[] = {
      {"9x4096x14336:mlp:add_norm", "defers the norm's scale for up to 8 tokens, got 9"},
      {"1x4096x14336:mlp:norm:fp16", "fp16 may not hold what is not scaled yet"},
      {"1x4096x14336:mlp:norm(weight_offset=0.5)", "norm.weight_offset: got 0.5, wanted 0 or 1"},
      {"1x4096x14336:mlp:norm:interleaved3", "blocks of 3 rows neither divide 8"},
      {"2x4096x14336:mlp:norm:broadcast", "x: "}};
  for (const auto& [text, reason] : refused) {
    EXPECT_TRUE(launches_norm(text)) << text;
    const std::string got = step_of(text, h200(), "norm").passed_over;
    EXPECT_EQ(got.rfind("norm in gate_up: ", 0), 0U) << text << ": " << got;
    EXPECT_NE(got.find(reason), std::string::npos) << text << ": " << got;
  }
}

// Either form can be forced where both are possible; a text that names no norm is of the form that
// plan() prefers.
TEST(CudaSm90Decode, EitherFormOfTheNormCanBeForced) {
  const std::string deferring = "8x4096x14336:mlp:add_norm";
  const std::string launching = "1x576x1536:mlp:norm";
  EXPECT_FALSE(launches_norm(deferring));
  EXPECT_EQ(chosen(deferring, h200(), {.variant = kDecode, .config = "norm=row"}).substr(0, 33),
            "cuda.sm90_decode norm=row,gate_up");
  EXPECT_EQ(chosen(deferring, h200(), {.config = "gate_up=b16r64k256s5"}),
            chosen(deferring, h200(), {.config = "norm=row,gate_up=b16r64k256s5"}));
  EXPECT_TRUE(launches_norm(launching));
  EXPECT_EQ(chosen(launching, h200(), {.variant = kDecode, .config = "gate_up=bn16r64k256s5"})
                .substr(0, 27),
            "cuda.sm90_decode gate_up=bn");
  // Not both: a deferred norm has a tiling of its own.
  const Options both{.variant = kDecode, .config = "norm=row,gate_up=bn16r64k256s5"};
  EXPECT_NE(chosen(deferring, h200(), both).find("config: got \"norm=row"), std::string::npos);
}

// Of a deferred norm gate_up has one tiling, down any. The norm as a launch comes after, with what
// there is without a norm.
TEST(CudaSm90Decode, OffersBothFormsOfTheNormThePreferredFirst) {
  std::set<std::string> deferred;
  std::vector<std::string> launched;
  for (const std::string& name :
       config_names(kDecode, problem_of("8x4096x14336:mlp:add_norm"), h200())) {
    if (name.rfind("norm=row,", 0) == 0) {
      launched.push_back(name.substr(9));
      continue;
    }
    EXPECT_TRUE(launched.empty()) << name;
    deferred.insert(name);
  }
  EXPECT_EQ(deferred, (std::set<std::string>{"gate_up=bn16r64k256s5,down=b16r64k256s5",
                                             "gate_up=bn16r64k256s5,down=b16r64k256s5x2",
                                             "gate_up=bn16r64k256s5,down=t8r32k512s5"}));
  EXPECT_EQ(launched, config_names(kDecode, problem_of("8x4096x14336:mlp"), h200()));
  const auto names = config_names(kDecode, problem_of("1x576x1536:mlp:norm"), h200());
  EXPECT_EQ(names.front().rfind("norm=row,", 0), 0U) << names.front();
  EXPECT_EQ(names.back().rfind("gate_up=bn", 0), 0U) << names.back();
}

// However many tilings its launches have: a pair can be forced and measured for each.
TEST(CudaSm90Decode, MlpOffersEveryTilingOfBothLaunches) {
  for (const std::string shape : {"9x576x1536", "9x1152x6912", "16x2048x8192", "64x2048x2048",
                                  "96x2048x2048", "128x2048x2048", "160x2048x2048"}) {
    std::set<std::string> firsts;
    std::set<std::string> seconds;
    std::set<std::string> pairs;
    for (const std::string& name : config_names(kDecode, problem_of(shape + ":mlp"), h200())) {
      EXPECT_TRUE(pairs.insert(name).second) << name;
      firsts.insert(word_of(name, "gate_up"));
      seconds.insert(word_of(name, "down"));
    }
    const auto tilings_of = [&](const std::string& op) {
      std::set<std::string> tilings;
      for (const std::string& name : config_names(kDecode, problem_of(shape + ":" + op), h200())) {
        tilings.insert(word_of(name, op));
      }
      return tilings;
    };
    EXPECT_EQ(firsts, tilings_of("gate_up")) << shape;
    EXPECT_EQ(seconds, tilings_of("down")) << shape;
  }
}

TEST(CudaSm90Decode, NothingNeedsACooperativeLaunch) {
  Device device = h200();
  device.cooperative_launch = false;
  for (const char* text : {"1x4096x14336:mlp", "1x4096x14336:mlp:norm", "1x4096x14336:gate_up:norm",
                           "1x4096x14336:down"}) {
    EXPECT_EQ(chosen(text, device), chosen(text, h200()));
  }
}

// h of mlp, the normalised rows of a launch of the norm (where weights are out of reach also of one
// inside gate_up), their sum where y adds what nobody keeps.
TEST(CudaSm90Decode, WorkspaceHoldsWhatTheLaunchPassesOn) {
  const auto bytes = [](const std::string& text) {
    return plan(problem_of(text), h200()).value().workspace_bytes;
  };
  constexpr std::size_t kN = 4 * 4096 * 2;
  constexpr std::size_t kH = 4 * 14336 * 2;
  EXPECT_EQ(bytes("4x4096x14336:gate_up"), 0U);
  EXPECT_EQ(bytes("4x4096x14336:down"), 0U);
  EXPECT_EQ(bytes("4x4096x14336:mlp"), kWorkspaceHeaderBytes + kH);
  EXPECT_EQ(bytes("4x4096x14336:gate_up:add_norm"), kWorkspaceHeaderBytes + kN);
  EXPECT_EQ(bytes("4x4096x14336:gate_up:norm:fp16"), kWorkspaceHeaderBytes + kN);
  EXPECT_EQ(bytes("4x4096x14336:mlp:add_norm"), kWorkspaceHeaderBytes + kH + kN);
  EXPECT_EQ(bytes("4x4096x14336:mlp:norm:residual_norm_input"), kWorkspaceHeaderBytes + kH + kN);
  EXPECT_EQ(bytes("4x4096x14336:mlp:add_norm:residual_norm_input"),
            kWorkspaceHeaderBytes + 2 * kN + kH);
  EXPECT_EQ(bytes("4x4096x14336:mlp:add_norm:residual_norm_input:fp16"),
            kWorkspaceHeaderBytes + 2 * kN + kH);
  EXPECT_EQ(bytes("40x4096x14336:down"), 0U);  // sums change hands in shared memory
}

TEST(CudaSm90Decode, SaysWhyItRefuses) {
  const std::vector<std::array<std::string, 2>> cases = {
      {"161x64x96:mlp", "takes up to 160 tokens, got 161"},
      {"4x64x96:gate_up:save", "does not store g and u"},
      {"4x64x96:mlp:save", "does not store g and u"},
      {"4x64x96:gate_mul", "has no gate_mul"},
      {"4x64x96:mlp_grad", "has no mlp_grad"},
      {"4x64x96:gate_up:fp32", "takes bf16 or fp16"},
      {"4x64x96:down:align=8", "alignment_bytes is 8"},
      {"4x60x96:gate_up", "d is 60 and h 96, wanted multiples of 8"},
      {"4x64x96:gate_up:pad=3", "w_gate: strides of rows and blocks are 134 and 0 bytes"},
      {"4x64x16777216:gate_up", "wanted less than 16777216"},
      {"17x64x96:gate_up:interleaved3", "blocks of 3 rows neither divide 8"},
      {"17x64x96:mlp:interleaved3", "blocks of 3 rows neither divide 8"},
      {"17x64x104:gate_up:interleaved16", "leave a short last block"},
      // In neither form: more tokens than are deferred, more columns than the norm's launch takes.
      {"9x65536x64:mlp:norm", "defers the norm's scale for up to 8 tokens, got 9"},
  };
  for (const auto& [text, reason] : cases) {
    const std::string got = reason_of(text, h200());
    EXPECT_NE(got.find(reason), std::string::npos) << text << ": " << got;
  }
  EXPECT_NE(reason_of("4x64x96:down", gpu::a100()).find("needs a Hopper GPU"), std::string::npos);
}

}  // namespace
}  // namespace sluice
