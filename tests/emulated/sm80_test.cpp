// SPDX-License-Identifier: Apache-2.0
// cuda.sm80's tiles against the fp64 oracle without a GPU: the kernels' sources, planned for an
// A100 and run by the emulator.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "cuda/sm80/sums.cuh"
#include "emulated_rig.hpp"
#include "emulator.hpp"
#include "harness/verify.hpp"
#include "host_cuda/fake_devices.hpp"

namespace sluice {
namespace {

using cuda::sm80::sum_at;

// Verifies the case with each of these tilings of the step.
void expect_right(const std::string& text, const std::string& step,
                  const std::vector<std::string>& tilings) {
  SCOPED_TRACE(text);
  emulator::EmulatedRig rig(gpu::a100());
  const harness::Case c = harness::parse_case(text).value();
  Options options;
  options.variant = "cuda.sm80";
  harness::Verification verification(c, rig, {.repeat = false});
  static_cast<void>(emulator::take_conflicts());
  for (const std::string& tiling : tilings) {
    std::string config = step;
    config += "=" + tiling;
    options.config = config.c_str();
    const auto report = verification.run(options);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report->passed()) << report->text();
    EXPECT_EQ(emulator::take_conflicts(), 0) << config << " reads shared memory in more cycles";
  }
}

const std::vector<std::string> kEveryTiling = [] {
  std::vector<std::string> names;
  for (const cuda::sm80::Tiling& tiling : cuda::sm80::kTilings) {
    char name[32];
    cuda::sm80::name_tiling(tiling, name);
    names.emplace_back(name);
  }
  return names;
}();
const std::vector<std::string> kSmall = {"64x128"};

// Odd tails in every direction, more than one tile, fewer stages of k than the ring has and more.
TEST(Sm80, GateUp) {
  expect_right("130x264x72:gate_up:bias", "gate_up", kEveryTiling);
  expect_right("70x72x136:gate_up:bias:save", "gate_up", kEveryTiling);
  expect_right("1x8x8:gate_up:save:fp16", "gate_up", kSmall);
  expect_right("70x40x136:gate_up:save:fp16:gelu_erf:concat+up_first:pad=8", "gate_up", kSmall);
  expect_right("130x72x264:mlp:save:clamped_swiglu", "gate_up", kSmall);
}

TEST(Sm80, Linear) { expect_right("70x136x264:down:bias_down:residual", "down", kEveryTiling); }

TEST(Sm80, HiddenGradients) {
  expect_right("130x264x72:gate_up_grad", "gate_up_grad", kEveryTiling);
  expect_right("70x40x136:gate_up_grad:fp16:in_place:clamped_swiglu", "gate_up_grad", kSmall);
  expect_right("70x40x136:gate_up_grad:minimal:gelu_tanh:pad=8", "gate_up_grad", kSmall);
  expect_right("1x8x8:gate_up_grad", "gate_up_grad", kSmall);
}

TEST(Sm80, WholeBackwardPass) {
  for (const char* step : {"gate_up_grad", "input_grad", "weight_grad"}) {
    expect_right("262x136x264:mlp_grad", step, kEveryTiling);
  }
  expect_right("1x8x8:mlp_grad:recompute", "gate_up", kSmall);
  expect_right("130x72x136:mlp_grad:fp16:recompute:interleaved8", "input_grad", kSmall);
  expect_right("130x72x120:mlp_grad:fp16:recompute:interleaved3", "input_grad", kSmall);
  expect_right("130x136x72:mlp_grad:accumulate:concat+up_first:pad=8", "weight_grad", kSmall);
  expect_right("33x136x72:mlp_grad:bf16/bf16/bf16/fp32:accumulate:save_dg_du:in_place",
               "weight_grad", kSmall);
  expect_right("33x136x72:mlp_grad:bf16/bf16/bf16/fp32:recompute:interleaved1", "weight_grad",
               kSmall);
}

// What the lanes of a phase touch: half a warp that writes two floats each, a quarter that reads
// four.
template <int kTileN>
void expect_sums_without_conflicts() {
  const auto banks = [](int at) { return at / 4 % 32; };
  for (int row0 = 0; row0 < 8; row0 += 4) {
    for (int col0 = 0; col0 < kTileN; col0 += 8) {
      std::set<int> pairs;
      for (int lane = 0; lane < 16; ++lane) {
        pairs.insert(banks(sum_at<kTileN>(row0 + lane / 4, col0 + lane % 4 * 2)));
      }
      EXPECT_EQ(pairs.size(), 16U) << row0 << " " << col0;
    }
  }
  for (const int columns : {8, 16}) {  // of a thread; 16 where gate and up take turns
    for (int row = 0; row < 8; ++row) {
      for (int col0 = 0; col0 + 8 * columns <= kTileN; col0 += 8 * columns) {
        std::set<int> fours;
        for (int lane = 0; lane < 8; ++lane) {
          const int col = col0 + lane * columns;
          fours.insert(banks(sum_at<kTileN>(row, col)));
          EXPECT_EQ(sum_at<kTileN>(row, col) ^ 16, sum_at<kTileN>(row, col + 4));
        }
        EXPECT_EQ(fours.size(), 8U) << row << " " << col0;
      }
    }
  }
}

TEST(Sm80, SumsTouchAllBanksOnce) {
  expect_sums_without_conflicts<256>();
  expect_sums_without_conflicts<128>();
}

}  // namespace
}  // namespace sluice
