// SPDX-License-Identifier: Apache-2.0
// The mma.sync GEMM's choice of tiling, and what cuda.sm80 takes and refuses: arithmetic, on any
// CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "choice.hpp"
#include "cuda/sm80/table.hpp"
#include "fake_devices.hpp"
#include "sluice/plan.hpp"

namespace sluice {
namespace {

using cuda::sm80::GemmShape;
using cuda::sm80::kTilings;
using cuda::sm80::Tiling;
using gpu::a100;
using gpu::problem_of;

std::string reason_of(const Problem& problem, const Device& device) {
  return gpu::reason_of("cuda.sm80", problem, device);
}

std::vector<Tiling> ranking(const GemmShape& shape) {
  std::array<Tiling, 4> out;
  const std::size_t count = cuda::sm80::ranked(shape, out);
  EXPECT_LE(count, out.size());
  return {out.begin(), out.begin() + static_cast<std::ptrdiff_t>(count)};
}

TEST(Sm80Config, RanksEveryTilingOnceCheapestFirst) {
  for (const std::int64_t m : {0, 1, 63, 64, 65, 128, 300, 1000, 4096}) {
    for (const std::int64_t n : {8, 576, 4096, 28672}) {
      const GemmShape shape{.m = m, .n = n};
      const std::vector<Tiling> order = ranking(shape);
      ASSERT_EQ(order.size(), std::size(kTilings));
      for (const Tiling& tiling : kTilings) {
        EXPECT_EQ(std::count(order.begin(), order.end(), tiling), 1);
      }
      for (std::size_t i = 1; i < order.size(); ++i) {
        EXPECT_LE(cuda::sm80::cost(shape, order[i - 1]), cuda::sm80::cost(shape, order[i]));
      }
    }
  }
}

TEST(Sm80Config, LeavesOutWhatDoesNotFit) {
  // 99 KiB a block, as 8.6, 8.9 and 12.0 have.
  const std::vector<Tiling> order =
      ranking({.m = 4096, .n = 28672, .sm_count = 128, .smem_per_block_bytes = 99 * 1024});
  ASSERT_EQ(order.size(), std::size(kTilings) - 1);
  for (const Tiling& tiling : order) EXPECT_LE(cuda::sm80::smem_bytes(tiling), 99 * 1024);
}

TEST(Sm80Config, GoldenChoices) {
  const auto best = [](std::int64_t m, std::int64_t n) {
    char name[24];
    cuda::sm80::name_tiling(ranking({.m = m, .n = n}).front(), name);
    return std::string(name);
  };
  // Few tokens: rows beyond 64 would be multiplied for nothing.
  EXPECT_EQ(best(1, 28672), "64x128");
  EXPECT_EQ(best(64, 4096), "64x128");
  // 3584 tiles on 108 SMs: 34 rounds, 33.2 full.
  EXPECT_EQ(best(4096, 28672), "128x256");
}

TEST(CudaSm80, TakesAnyBlocksOfRowsAtSixteenBytes) {
  for (const std::string text :
       {"300x72x200:gate_up:bias:interleaved3+up_first", "33x64x72:down:residual:bias_down:pad=8",
        "33x64x48:mlp:fp16:interleaved1:clamped_swiglu", "0x64x96:mlp", "1x8x8:mlp:concat"}) {
    EXPECT_EQ(reason_of(problem_of(text), a100()), "") << text;
    EXPECT_STREQ(plan(problem_of(text), a100()).value().variant_name(), "cuda.sm80") << text;
  }
}

TEST(CudaSm80, EveryConfigIsOfferedOnceTheChoiceFirst) {
  const std::size_t tilings = std::size(kTilings);
  for (const auto& [op, count] : {std::pair<std::string, std::size_t>{"gate_up", tilings},
                                  {"down", tilings},
                                  {"mlp", 2 * tilings - 1}}) {
    const Problem problem = problem_of("512x4096x14336:" + op);
    const std::vector<std::string> names = config_names("cuda.sm80", problem, a100());
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), count) << op;
    EXPECT_EQ(names.size(), count) << op;
    EXPECT_EQ(names.front(), plan(problem, a100()).value().config_name());
  }
}

TEST(CudaSm80, LaunchesTheNormFirst) {
  for (const std::string norm : {":norm", ":add_norm:residual_norm_input"}) {
    EXPECT_EQ(gpu::steps_of("65x4096x14336" + norm, a100()),
              "norm:cuda.norm gate_up:cuda.sm80_gemm down:cuda.sm80_gemm");
    EXPECT_EQ(gpu::steps_of("65x4096x14336:gate_up:norm", a100()),
              "norm:cuda.norm gate_up:cuda.sm80_gemm");
    EXPECT_EQ(gpu::chosen("65x4096x14336" + norm, a100()),
              "cuda.sm80 norm=row," + plan(problem_of("65x4096x14336"), a100())->config_name());
  }
}

TEST(CudaSm80, SaysWhyItRefuses) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"64x64x96:mlp_grad:bf16/bf16/bf16/fp16", "dw_gate: is fp16, wanted fp32 or bf16"},
      {"64x64x96:gate_up:save:interleaved8", "g: has blocks of columns"},
      {"64x64x96:gate_mul", "has no gate_mul"},
      {"64x64x96:mlp:fp32", "takes bf16 or fp16"},
      {"64x64x96:mlp:align=8", "alignment_bytes is 8"},
      {"64x60x96:gate_up", "d is 60 and h 96, wanted multiples of 8"},
      {"64x64x96:gate_up:pad=3", "x: strides of rows and blocks are 134 and 0 bytes"},
  };
  for (const auto& [text, reason] : cases) {
    const Problem problem = problem_of(text);
    EXPECT_NE(reason_of(problem, a100()).find(reason), std::string::npos)
        << text << ": " << reason_of(problem, a100());
  }
  Device turing = a100();
  turing.compute_capability = 75;
  EXPECT_NE(reason_of(problem_of("64x64x96:mlp"), turing).find("the device is 7.5"),
            std::string::npos);
  Problem wide = problem_of("65x64x96:gate_up:concat");
  wide.layout.x.row_stride_bytes = std::int64_t{1} << 32;
  EXPECT_NE(reason_of(wide, a100()).find("x: 65 rows span more than 32 GiB"), std::string::npos)
      << reason_of(wide, a100());
  wide.m = 8;  // a tile's rows outside the matrix are its last one again
  EXPECT_EQ(reason_of(wide, a100()), "");
  Problem vast = problem_of("64x64x96:mlp");
  vast.m = std::int64_t{1} << 30;
  vast.d = vast.h = std::int64_t{1} << 15;
  EXPECT_NE(reason_of(vast, a100()).find("wanted at most 2^31 - 1"), std::string::npos);
  Problem weights = problem_of("64x64x96:mlp_grad");  // whose tiles are h by d
  weights.d = weights.h = std::int64_t{1} << 22;
  EXPECT_NE(reason_of(weights, a100()).find("wanted at most 2^31 - 1"), std::string::npos)
      << reason_of(weights, a100());
}

}  // namespace
}  // namespace sluice
