// SPDX-License-Identifier: Apache-2.0
// The training kernels on a GPU: one-row and tiled launches of gate_mul give the same bits, each
// proved to be the one that ran; gate_up_grad's bits repeat whatever the tiling.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gpu.hpp"
#include "math/float_types.hpp"

namespace sluice {
namespace {

using harness::Case;
using harness::OperandSet;

// The bytes of every output of a problem on the operands of a set, or some of another, run by a
// forced variant and config that the plan confirms.
std::vector<std::string> outputs_of(const Problem& problem, const Operands& operands,
                                    OperandSet& set, const char* variant, const char* config) {
  harness::Rig& rig = gpu::rig();
  Options options;
  options.variant = variant;
  options.config = config;
  const auto made = plan(problem, rig.device(), options);
  EXPECT_OK(made);
  if (!made) return {};
  EXPECT_STREQ(made->variant_name(), variant);
  EXPECT_EQ(made->config_name(), config);
  EXPECT_OK(set.reset_outputs());
  auto workspace = harness::make_workspace(*made, rig);
  EXPECT_OK(workspace);
  EXPECT_OK(run(*made, operands, workspace->workspace, rig.stream()));
  EXPECT_OK(rig.synchronize());
  EXPECT_OK(set.check_canaries());
  std::vector<std::string> out;
  for (const Operand id : set.outputs()) {
    const auto matrix = set.host_matrix(id);
    EXPECT_OK(matrix);
    if (!matrix) return {};
    out.emplace_back(static_cast<const char*>(matrix->data),
                     static_cast<std::size_t>(extent_bytes(matrix->spec)));
  }
  return out;
}

std::vector<std::string> outputs_of(const Case& c, OperandSet& set, const char* variant,
                                    const char* config) {
  return outputs_of(c.problem, set.operands(), set, variant, config);
}

// Where two outputs first differ, or nothing.
std::string difference(const OperandSet& set, const std::vector<std::string>& a,
                       const std::vector<std::string>& b) {
  if (a.size() != b.size() || a.empty()) return "no outputs to compare";
  for (std::size_t i = 0; i < a.size(); ++i) {
    const OperandSpec& spec = set.spec(set.outputs()[i]);
    for (std::int64_t row = 0; row < spec.rows; ++row) {
      for (std::int64_t col = 0; col < spec.cols; ++col) {
        const auto at = static_cast<std::size_t>(offset_bytes(spec.layout, spec.dtype, row, col));
        const auto bytes = static_cast<std::size_t>(size_bytes(spec.dtype));
        if (std::memcmp(a[i].data() + at, b[i].data() + at, bytes) != 0) {
          return std::string(spec.name) + " differs at (" + std::to_string(row) + ", " +
                 std::to_string(col) + ")";
        }
      }
    }
  }
  return {};
}

// Widths of the seed's test: ragged last tiles, an exact one, and one beyond 65536.
TEST(GpuTraining, RowAndTiledGiveTheSameBits) {
  for (const std::string shape : {"4x1x11009", "3x1x14337", "4x1x16384", "3x1x65537"}) {
    for (const std::string op : {"gate_mul", "gate_mul_grad"}) {
      for (const std::string type : {"bf16", "fp32"}) {
        for (const std::string gate : {"silu", "silu(gate_multiplier=1.3)"}) {
          for (const std::string layout : {"separate", "concat", "separate:pad=3"}) {
            const std::string text = shape + ":" + op + ":" + type + ":" + gate + ":" + layout;
            SCOPED_TRACE(text);
            const Case c = harness::parse_case(text).value();
            auto set = std::move(OperandSet::make(c, gpu::rig()).value());
            const auto row = outputs_of(c, *set, "cuda.elementwise", (op + "=row").c_str());
            for (const char* tiling : {"=tiled", "=tiled64", "=tiled1024"}) {
              const auto tiled = outputs_of(c, *set, "cuda.elementwise", (op + tiling).c_str());
              EXPECT_EQ(difference(*set, row, tiled), "") << tiling;
            }
          }
        }
      }
    }
  }
}

// In place the gradient overwrites what it reads: the bits must be those of separate outputs.
TEST(GpuTraining, InPlaceGivesTheSameBits) {
  for (const std::string config : {"gate_mul_grad=row", "gate_mul_grad=tiled"}) {
    for (const std::string width : {"11009", "14336"}) {
      const std::string text = "5x1x" + width + ":gate_mul_grad";
      SCOPED_TRACE(text + " " + config);
      const Case apart = harness::parse_case(text).value();
      const Case in_place = harness::parse_case(text + ":in_place").value();
      auto first = std::move(OperandSet::make(apart, gpu::rig()).value());
      auto second = std::move(OperandSet::make(in_place, gpu::rig()).value());
      const auto a = outputs_of(apart, *first, "cuda.elementwise", config.c_str());
      const auto b = outputs_of(in_place, *second, "cuda.elementwise", config.c_str());
      ASSERT_EQ(first->outputs(), second->outputs());
      EXPECT_EQ(difference(*first, a, b), "");
    }
  }
}

// Every activation, type, alignment and stride against fp64, by both walks.
TEST(GpuTraining, ElementwiseAgainstTheOracle) {
  const std::vector<std::string> texts = {
      "3x1x11009:gate_mul:gelu_tanh",
      "3x1x11009:gate_mul_grad:gelu_erf:fp16",
      "7x1x2049:gate_mul_grad:clamped_swiglu:concat",
      "7x1x2048:gate_mul:relu:align=2",
      "5x1x1000:gate_mul_grad:sigmoid:align=2:pad=1",
      "5x1x1001:gate_mul_grad:identity:fp32:align=4:in_place",
      "9x1x4096:gate_mul_grad:broadcast",
      "9x1x33:gate_mul_grad:minimal:concat+up_first",
      "70001x1x3:gate_mul:pad=1",
      "7x1x2049:gate_mul:round_gate:gelu_tanh:concat",
      "5x1x4096:gate_mul:round_gate:fp16:silu(gate_multiplier=1.3,output_multiplier=0.7)",
      "3x1x11009:gate_mul_grad:round_gate:gelu_tanh:in_place",
      "5x1x4096:gate_mul_grad:round_gate:fp16:clamped_swiglu",
      "5x1x1001:gate_mul_grad:round_gate:fp32",
      "33x1x520:gate_mul_grad:round_gate:fill=special",
      "64x1x520:gate_mul_grad:round_gate:identity:fill=integers",
      "33x1x520:gate_mul_grad:fill=special",
      "33x1x520:gate_mul:clamped_swiglu:fill=special",
      "64x1x520:gate_mul_grad:identity:fill=integers",
  };
  for (const std::string& text : texts) {
    const Case c = harness::parse_case(text).value();
    harness::Verification verification(c, gpu::rig());
    for (const std::string& config :
         config_names("cuda.elementwise", c.problem, gpu::rig().device())) {
      Options options;
      options.variant = "cuda.elementwise";
      options.config = config.c_str();
      const auto report = verification.run(options);
      ASSERT_OK(report);
      EXPECT_EQ(report->config, config);
      EXPECT_TRUE(report->passed()) << report->text();
    }
  }
}

// Every tiling sums in the same order, so the tiling cannot show in the bits. Tails in m, D and H;
// several tiles a CTA, so that g and u are fetched behind stores.
TEST(GpuTraining, GateUpGradByEveryTiling) {
  if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs Hopper";
  for (const std::string text :
       {"128x64x128:gate_up_grad:identity:fill=integers",
        "300x136x392:gate_up_grad:identity:fill=integers", "1x8x8:gate_up_grad",
        "129x72x200:gate_up_grad:clamped_swiglu:fp16", "260x200x1032:gate_up_grad:concat:in_place",
        "513x264x520:gate_up_grad:minimal:pad=8", "2060x136x3080:gate_up_grad:gelu_erf",
        "4100x128x1544:gate_up_grad:in_place",
        // One row of tiles, two and three: 66, 33 and 22 columns of whole tiles, then narrow ones.
        "256x64x12808:gate_up_grad", "300x64x6408:gate_up_grad:gelu_tanh:in_place",
        "700x72x4424:gate_up_grad:concat"}) {
    SCOPED_TRACE(text);
    const Case c = harness::parse_case(text).value();
    auto set = std::move(OperandSet::make(c, gpu::rig()).value());
    harness::Verification verification(c, gpu::rig(), {.max_operations = 1e8});
    std::vector<std::string> first;
    for (const std::string& config : config_names("cuda.sm90", c.problem, gpu::rig().device())) {
      Options options;
      options.variant = "cuda.sm90";
      options.config = config.c_str();
      const auto report = verification.run(options);
      ASSERT_OK(report);
      EXPECT_TRUE(report->passed()) << report->text();
      const auto bits = outputs_of(c, *set, "cuda.sm90", config.c_str());
      if (first.empty()) first = bits;
      EXPECT_EQ(difference(*set, first, bits), "") << config;
    }
    EXPECT_FALSE(first.empty());
  }
}

// dx, the weights' and the biases' gradients by every tiling: tails everywhere, saved and
// recomputed g and u, sums into what is there, 16-bit gradients, weights whose rows take turns.
// At D = 17000 dx is best in tiles of 192 columns (GemmConfig.GoldenChoicesOfGrads).
TEST(GpuTraining, MlpGradByEveryTiling) {
  if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs Hopper";
  for (const std::string text :
       {"64x64x128:mlp_grad:identity:fill=integers", "64x12808x256:mlp_grad:accumulate",
        "64x17000x72:mlp_grad", "72x256x12808:mlp_grad:bf16/bf16/bf16/bf16",
        "130x136x200:mlp_grad:identity:fill=integers:accumulate", "1x8x8:mlp_grad",
        "300x136x392:mlp_grad:bias:bias_down", "300x136x392:mlp_grad:recompute:bias:bias_down",
        "129x72x264:mlp_grad:recompute:interleaved1:accumulate", "200x200x328:mlp_grad:fp16:pad=8",
        "257x264x520:mlp_grad:bf16/bf16/bf16/bf16:accumulate:concat",
        "200x136x392:mlp_grad:save_dg_du:in_place:bias",
        "257x264x520:mlp_grad:save_dg_du:in_place:concat:pad=8",
        "129x72x264:mlp_grad:save_dg_du:recompute:bias"}) {
    SCOPED_TRACE(text);
    const Case c = harness::parse_case(text).value();
    const auto configs = config_names("cuda.sm90", c.problem, gpu::rig().device());
    EXPECT_FALSE(configs.empty());
    harness::Verification verification(c, gpu::rig(), {.max_operations = 1e8});
    for (const std::string& config : configs) {
      Options options;
      options.variant = "cuda.sm90";
      options.config = config.c_str();
      const auto report = verification.run(options);
      ASSERT_OK(report);
      EXPECT_TRUE(report->passed()) << report->text();
    }
  }
}

// Saving g and u changes nothing of h, and what is saved is right, by every tiling.
TEST(GpuTraining, GateUpSavesGAndU) {
  if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs Hopper";
  for (const std::string text :
       {"128x64x128:gate_up:identity:fill=integers", "300x136x392:gate_up:bias:concat",
        "1x8x8:gate_up", "257x72x200:gate_up:fp16:concat+up_first:bias",
        "2060x136x1544:gate_up:bias", "130x72x104:mlp"}) {
    SCOPED_TRACE(text);
    const Case plain = harness::parse_case(text).value();
    const Case saving = harness::parse_case(text + ":save").value();
    auto plain_set = std::move(OperandSet::make(plain, gpu::rig()).value());
    auto saving_set = std::move(OperandSet::make(saving, gpu::rig()).value());
    harness::Verification verification(saving, gpu::rig());
    for (const std::string& config :
         config_names("cuda.sm90", saving.problem, gpu::rig().device())) {
      Options options;
      options.variant = "cuda.sm90";
      options.config = config.c_str();
      const auto report = verification.run(options);
      ASSERT_OK(report);
      EXPECT_TRUE(report->passed()) << report->text();
      outputs_of(plain, *plain_set, "cuda.sm90", config.c_str());
      outputs_of(saving, *saving_set, "cuda.sm90", config.c_str());
      const Operand last = plain.problem.op == Op::kMlp ? Operand::kY : Operand::kH;
      const auto want = plain_set->host_matrix(last);
      const auto got = saving_set->host_matrix(last);
      ASSERT_OK(want);
      ASSERT_OK(got);
      EXPECT_EQ(
          std::memcmp(want->data, got->data, static_cast<std::size_t>(extent_bytes(want->spec))), 0)
          << config;
    }
  }
}

// One weight as gate and up: no tensor map leads from it to itself, and gate_up takes another
// kernel.
TEST(GpuTraining, OneWeightAsGateAndUp) {
  if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs Hopper";
  for (const std::string text :
       {"5x512x1024:gate_up", "33x512x1024:mlp", "300x512x1024:gate_up:bias",
        "300x512x1024:mlp:fp16", "300x512x1024:gate_up:save", "5x512x1024:gate_up:norm",
        "8x512x1024:mlp:add_norm", "1x512x1024:gate_up odd", "16x512x1024:gate_up odd",
        "300x512x1024:gate_up odd"}) {
    SCOPED_TRACE(text);
    const std::size_t odd = text.find(" odd");  // rows of x and h at any distance
    Case c = harness::parse_case(text.substr(0, odd)).value();
    if (odd != text.npos) {
      c.problem.layout.x.row_stride_bytes = 2 * c.problem.d + 2;
      c.problem.layout.h.row_stride_bytes = 2 * c.problem.h + 2;
    }
    auto set = std::move(OperandSet::make(c, gpu::rig()).value());
    auto copy = std::move(OperandSet::make(c, gpu::rig()).value());  // the same numbers elsewhere
    for (const char* const variant : {"cuda.sm90_decode", "cuda.sm90"}) {
      if (c.problem.m > 160 && std::string(variant) == "cuda.sm90_decode") continue;
      for (const std::string& config : config_names(variant, c.problem, gpu::rig().device())) {
        if (config.find("gate_up=lt") != std::string::npos) continue;
        Operands operands = set->operands();
        operands.w_up = copy->operands().w_gate;
        const auto want = outputs_of(c.problem, operands, *set, variant, config.c_str());
        operands.w_up = operands.w_gate;
        const auto got = outputs_of(c.problem, operands, *set, variant, config.c_str());
        ASSERT_EQ(want.size(), got.size());
        for (std::size_t i = 0; i < want.size(); ++i) {
          const DType dtype = set->spec(set->outputs()[i]).dtype;
          for (std::size_t at = 0; at + 1 < want[i].size(); at += 2) {
            const double a = math::load(want[i].data() + at, dtype);
            const double b = math::load(got[i].data() + at, dtype);
            ASSERT_LE(std::abs(a - b), 0.02 * std::max(1.0, std::abs(a)))
                << config << ", " << at / 2;
          }
        }
      }
    }
  }
}

// How the weights lie shows in no bit of h, g and u, by every tiling: rows one by one, and in
// blocks that come as they lie, by whole blocks and by parts of one.
TEST(GpuTraining, PlacementOfWeightsChangesNoBit) {
  if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs Hopper";
  for (const std::string shape : {"300x136x960:gate_up:bias", "1030x72x1920:gate_up:fp16"}) {
    const Case apart = harness::parse_case(shape + ":save").value();
    auto set = std::move(OperandSet::make(apart, gpu::rig()).value());
    for (const std::string layout : {"interleaved1", "interleaved16", "interleaved16+up_first",
                                     "interleaved24", "interleaved32+up_first", "interleaved64"}) {
      const Case placed = harness::parse_case(shape + ":" + layout).value();
      auto weights = std::move(OperandSet::make(placed, gpu::rig()).value());
      Problem problem = apart.problem;
      problem.layout.w_gate_up = placed.problem.layout.w_gate_up;
      Operands operands = set->operands();
      operands.w_gate = weights->operands().w_gate;
      operands.w_up = weights->operands().w_up;
      for (const std::string& name :
           config_names("cuda.sm90", apart.problem, gpu::rig().device())) {
        const auto want = outputs_of(apart, *set, "cuda.sm90", name.c_str());
        const auto got = outputs_of(problem, operands, *set, "cuda.sm90", name.c_str());
        EXPECT_EQ(difference(*set, want, got), "") << shape << " " << layout << " " << name;
      }
    }
  }
}

}  // namespace
}  // namespace sluice
