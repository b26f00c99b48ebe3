// SPDX-License-Identifier: Apache-2.0
// What the decode variants take, refuse and choose, on any CPU.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "fake_devices.hpp"
#include "harness/case.hpp"
#include "sluice/plan.hpp"

namespace sluice {
namespace {

using gpu::h200;

Problem problem_of(const std::string& text) { return harness::parse_case(text).value().problem; }

std::string chosen(const std::string& text, const Device& device) {
  const auto made = plan(problem_of(text), device);
  return made ? std::string(made->variant_name()) + " " + made->config.name
              : std::string(made.error().message);
}

Refusal row_of(const char* variant, const std::string& text, const Device& device) {
  for (const Refusal& row : explain(problem_of(text), device).variants) {
    if (row.variant == variant) return row;
  }
  return {variant, "not in the table", false, "not in the table"};
}
std::string reason_of(const char* variant, const std::string& text, const Device& device) {
  return row_of(variant, text, device).reason;
}

TEST(CudaSm90Decode, ServesUpTo64TokensOnHopper) {
  EXPECT_EQ(chosen("1x4096x14336:mlp", h200()),
            "cuda.sm90_decode_chain sm90.decode_chain.mlp.b16r64k256s5+r64k256s5x2");
  // Each launch of the chain has the tiling that its operator would have alone.
  EXPECT_EQ(chosen("40x4096x14336:mlp", h200()),
            "cuda.sm90_decode_chain sm90.decode_chain.mlp.b64r128k128s4+r64k128s6x2");
  EXPECT_EQ(chosen("17x4096x14336:mlp", h200()),
            "cuda.sm90_decode_chain sm90.decode_chain.mlp.b32r64k128s9+r64k128s9x2");
  EXPECT_EQ(chosen("9x4096x14336:gate_up:fp16", h200()),
            "cuda.sm90_decode sm90.decode.gate_up.b16r64k256s5");
  EXPECT_EQ(chosen("40x4096x14336:down", h200()),
            "cuda.sm90_decode sm90.decode.down.b64r64k128s6x2");
  EXPECT_EQ(chosen("64x8192x28672:gate_up", h200()),
            "cuda.sm90_decode sm90.decode.gate_up.b64r128k128s4");
  EXPECT_EQ(chosen("65x4096x14336:down:residual", h200()).substr(0, 10), "cuda.sm90 ");
  // Blocks of three rows have no boxes.
  EXPECT_EQ(chosen("16x4096x14336:gate_up:interleaved3", h200()).substr(0, 17),
            "cuda.sm90_decode ");
  EXPECT_EQ(chosen("17x4096x14336:gate_up:interleaved3", h200()).substr(0, 10), "cuda.sm80 ");
  EXPECT_EQ(chosen("40x136x400:mlp:interleaved16", h200()).substr(0, 23),
            "cuda.sm90_decode_chain ");
  EXPECT_EQ(chosen("64x576x1536:mlp", h200()).substr(0, 23), "cuda.sm90_decode_chain ");
  for (const std::string text :
       {"5x72x200:gate_up:bias:interleaved3", "33x64x72:down:residual:bias_down:pad=8",
        "64x64x48:mlp:interleaved16:clamped_swiglu", "0x64x96:mlp", "1x8x8:mlp:concat+up_first",
        "16x64x96:mlp:add_norm:residual_norm_input", "3x64x96:gate_up:norm"}) {
    EXPECT_EQ(reason_of("cuda.sm90_decode", text, h200()), "") << text;
  }
}

// The norm's scale waits for the sums of products where a stage has room for its operands and the
// type for what is not scaled; elsewhere the norm is a launch.
TEST(CudaSm90Decode, DefersTheNormOfFewTokens) {
  for (const std::string text :
       {"1x4096x14336:mlp:norm", "8x4096x14336:mlp:norm", "5x4096x14336:mlp:add_norm",
        "5x4096x14336:mlp:add_norm(weight_offset=1):residual_norm_input"}) {
    EXPECT_EQ(chosen(text, h200()),
              "cuda.sm90_decode_chain sm90.decode_chain.mlp.bn16r64k256s5+r64k256s5x2");
  }
  // Shares of whole boxes may be uneven, for by rows activations weigh more.
  EXPECT_EQ(chosen("1x16384x6656:mlp:add_norm", h200()),
            "cuda.sm90_decode_chain sm90.decode_chain.mlp.bn16r64k256s5+r64k256s5");
  // Where boxes take no weights, or no x, six tokens and their residual leave room for a stage
  // less.
  for (const std::string other : {":interleaved3", ":broadcast"}) {
    EXPECT_EQ(chosen("5x4096x14336:mlp:add_norm" + other, h200()),
              "cuda.sm90_decode_chain sm90.decode_chain.mlp.n8r32k512s5+r32k512s5");
    EXPECT_EQ(chosen("6x4096x14336:mlp:add_norm" + other, h200()),
              "cuda.sm90_decode_chain sm90.decode_chain.mlp.n8r32k512s4+r32k512s5");
  }
  // Up to 300 KB of weights an SM, 39.6 MB, a launch of the norm costs less.
  EXPECT_EQ(chosen("1x2048x3216:mlp:add_norm", h200()),
            "cuda.sm90_decode_chain_norm sm90.decode_chain.mlp.b16r64k256s5+r64k256s5x2");
  EXPECT_EQ(chosen("1x2048x3224:mlp:add_norm", h200()),
            "cuda.sm90_decode_chain sm90.decode_chain.mlp.bn16r64k256s5+r64k256s5x2");
  EXPECT_NE(row_of("cuda.sm90_decode_chain", "1x576x1536:mlp:norm", h200()).yields.find("5 MB"),
            std::string::npos);
  EXPECT_EQ(row_of("cuda.sm90_decode_chain", "1x576x1536:mlp", h200()).yields, "");
  // Where x cannot come by boxes down has the rows that are first without boxes.
  EXPECT_EQ(chosen("5x2048x6144:mlp:add_norm:broadcast", h200()),
            "cuda.sm90_decode_chain sm90.decode_chain.mlp.n8r32k512s5+r16k512s4");
  // To a launch of the norm that takes no rows as wide the chain does not yield.
  EXPECT_EQ(chosen("1x65536x64:mlp:norm", h200()).substr(0, 23), "cuda.sm90_decode_chain ");
  const std::array<std::string, 2> refused[] = {
      {"9x4096x14336:mlp:add_norm", "defers the norm's scale for up to 8 tokens, got 9"},
      {"1x4096x14336:mlp:norm:fp16", "fp16 may not hold what is not scaled yet"},
      {"1x4096x14336:mlp:norm(weight_offset=0.5)", "norm.weight_offset: got 0.5, wanted 0 or 1"}};
  for (const auto& [text, reason] : refused) {
    EXPECT_EQ(chosen(text, h200()).substr(0, 28), "cuda.sm90_decode_chain_norm ") << text;
    const std::string got = reason_of("cuda.sm90_decode_chain", text, h200());
    EXPECT_NE(got.find(reason), std::string::npos) << text << ": " << got;
  }
}

// Behind gate_up by rows down stores the norm's sum, which the kernel by boxes does not.
TEST(CudaSm90Decode, BehindADeferredNormByRowsDownReadsRows) {
  std::set<std::string> kinds;
  const auto names =
      config_names("cuda.sm90_decode_chain", problem_of("8x4096x14336:mlp:add_norm"), h200());
  // gate_up by boxes with each of three tilings of down, by rows with that of rows.
  EXPECT_EQ(names.size(), 4U);
  for (const std::string& name : names) {
    const bool rows = name.find(".n8") != std::string::npos;
    const bool down_rows =
        name.find("+t") != std::string::npos || (rows && name.find("+r") != std::string::npos);
    EXPECT_TRUE(!rows || down_rows) << name;
    kinds.insert(std::string(rows ? "rows" : "boxes") + (down_rows ? "+rows" : "+boxes"));
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"boxes+boxes", "boxes+rows", "rows+rows"}));
}

// However many tilings its launches have: a pair can be forced and measured for each.
TEST(CudaSm90Decode, TheChainOffersEveryTilingOfBothLaunches) {
  for (const std::string shape : {"9x576x1536", "9x1152x6912", "16x2048x8192", "64x2048x2048"}) {
    std::set<std::string> firsts;
    std::set<std::string> seconds;
    std::set<std::string> pairs;
    for (const std::string& name :
         config_names("cuda.sm90_decode_chain", problem_of(shape + ":mlp"), h200())) {
      EXPECT_TRUE(pairs.insert(name).second) << name;
      const std::string both = name.substr(name.rfind('.') + 1);
      const std::size_t plus = both.find('+');
      firsts.insert(both.substr(0, plus));
      // "+r64k128s6x2": of as many tokens as the first.
      std::string second = plus == std::string::npos ? both : both.substr(plus + 1);
      if (second[0] == 'r') second.insert(0, both.substr(0, both.find('r')));
      seconds.insert(second);
    }
    const auto tilings_of = [&](const std::string& op) {
      std::set<std::string> tilings;
      for (const std::string& name :
           config_names("cuda.sm90_decode", problem_of(shape + ":" + op), h200())) {
        tilings.insert(name.substr(name.rfind('.') + 1));
      }
      return tilings;
    };
    EXPECT_EQ(firsts, tilings_of("gate_up")) << shape;
    EXPECT_EQ(seconds, tilings_of("down")) << shape;
  }
}

TEST(CudaSm90Decode, OneLaunchNeedsAGridBarrier) {
  Device device = h200();
  device.cooperative_launch = false;
  EXPECT_EQ(reason_of("cuda.sm90_decode_chain", "1x4096x14336:mlp", device), "");
  EXPECT_EQ(reason_of("cuda.sm90_decode", "1x4096x14336:down", device), "");
  EXPECT_NE(reason_of("cuda.sm90_decode", "1x4096x14336:mlp", device)
                .find("one launch of mlp meets at a grid barrier"),
            std::string::npos);
  EXPECT_NE(reason_of("cuda.sm90_decode", "1x4096x14336:gate_up:norm", device).find("the norm"),
            std::string::npos);
}

// h of mlp, the normalised rows, their sum where y adds what nobody keeps.
TEST(CudaSm90Decode, WorkspaceHoldsWhatTheLaunchPassesOn) {
  const auto bytes = [](const std::string& text) {
    return plan(problem_of(text), h200()).value().workspace_bytes;
  };
  constexpr std::size_t kN = 4 * 4096 * 2;
  constexpr std::size_t kH = 4 * 14336 * 2;
  EXPECT_EQ(bytes("4x4096x14336:gate_up"), 0U);
  EXPECT_EQ(bytes("4x4096x14336:down"), 0U);
  EXPECT_EQ(bytes("4x4096x14336:mlp"), kWorkspaceHeaderBytes + kH);
  EXPECT_EQ(bytes("4x4096x14336:gate_up:norm"), kWorkspaceHeaderBytes + kN);
  EXPECT_EQ(bytes("4x4096x14336:mlp:add_norm"), kWorkspaceHeaderBytes + kH);
  EXPECT_EQ(bytes("4x4096x14336:mlp:norm:residual_norm_input"), kWorkspaceHeaderBytes + kH);
  EXPECT_EQ(bytes("4x4096x14336:mlp:add_norm:residual_norm_input"),
            kWorkspaceHeaderBytes + kN + kH);
  EXPECT_EQ(bytes("4x4096x14336:mlp:add_norm:residual_norm_input:fp16"),
            kWorkspaceHeaderBytes + 2 * kN + kH);
  EXPECT_EQ(bytes("40x4096x14336:down"), 0U);  // sums change hands in shared memory
}

TEST(CudaSm90Decode, SaysWhyItRefuses) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"cuda.sm90_decode", "65x64x96:mlp", "takes up to 64 tokens, got 65"},
      {"cuda.sm90_decode", "4x64x96:gate_up:save", "does not store g and u"},
      {"cuda.sm90_decode", "4x64x96:gate_mul", "has no gate_mul"},
      {"cuda.sm90_decode", "4x64x96:mlp:fp32", "takes bf16 or fp16"},
      {"cuda.sm90_decode", "4x64x96:mlp:align=8", "alignment_bytes is 8"},
      {"cuda.sm90_decode", "4x60x96:gate_up", "d is 60 and h 96, wanted multiples of 8"},
      {"cuda.sm90_decode", "4x64x96:gate_up:pad=3", "x: a stride of 134 bytes is no multiple"},
      {"cuda.sm90_decode", "4x64x16777216:gate_up", "wanted less than 16777216"},
      {"cuda.sm90_decode", "17x64x96:gate_up:interleaved3", "blocks of 3 rows neither divide 8"},
      {"cuda.sm90_decode", "17x64x104:gate_up:interleaved16", "leave a short last block"},
      {"cuda.sm90_decode_chain", "4x64x96:down", "is for mlp; down is one launch anyway"},
  };
  for (const auto& [variant, text, reason] : cases) {
    const std::string got = reason_of(variant.c_str(), text, h200());
    EXPECT_NE(got.find(reason), std::string::npos) << text << ": " << got;
  }
  Device old = h200();
  old.arch = Arch::kAmpere;
  old.compute_capability = 80;
  EXPECT_NE(reason_of("cuda.sm90_decode", "4x64x96:mlp", old).find("needs a Hopper GPU"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice
