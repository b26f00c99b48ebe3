// SPDX-License-Identifier: Apache-2.0
// gate_up and linear by split K on a GPU: every tiling and split, tails in every direction, fewer
// parts to finish than CTAs of a cluster, layouts, flags and gates, launches behind each other on
// one stream and on two.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include "job.hpp"

namespace sluice {
namespace {

using gpu::bits_of;
using gpu::Job;
using gpu::make_job;
using gpu::run_once;
using gpu::StreamGuard;

constexpr const char* kVariant = "cuda.sm90";

class GpuSplitK : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs a Hopper GPU";
  }
};

// The configs of a problem whose one launch is split K: 64 or 128 weight rows, by 2, 4 and 8.
std::vector<std::string> configs_of(const Problem& problem) {
  std::vector<std::string> names = config_names(kVariant, problem, gpu::rig().device());
  std::erase_if(names, [](const std::string& n) { return n.find("=sp") == std::string::npos; });
  EXPECT_FALSE(names.empty());
  return names;
}

Options forced(const std::string& config) {
  Options options;
  options.variant = kVariant;
  options.config = config.c_str();
  return options;
}

// Every config against the oracle.
void verify_all(const std::string& text) {
  const auto c = harness::parse_case(text).value();
  harness::Verification verification(c, gpu::rig(), {.max_operations = 1e7});
  for (const std::string& config : configs_of(c.problem)) {
    const auto report = verification.run(forced(config));
    ASSERT_OK(report) << text << " " << config;
    EXPECT_TRUE(report->passed()) << report->text();
  }
}

// Small integers have one right answer: every config must give the bits of cuda.simt.
void expect_exact(const std::string& text) {
  const auto c = harness::parse_case(text + ":identity:fill=integers").value();
  auto set = std::move(harness::OperandSet::make(c, gpu::rig()).value());
  const std::string expected = run_once(*set, "cuda.simt", nullptr);
  for (const std::string& config : configs_of(c.problem)) {
    const std::string got = run_once(*set, kVariant, config.c_str());
    const auto [at, other] = std::mismatch(expected.begin(), expected.end(), got.begin());
    ASSERT_EQ(at - expected.begin(), static_cast<std::ptrdiff_t>(expected.size()))
        << text << " " << config << ": first wrong byte";
    EXPECT_OK(set->check_canaries());
  }
}

TEST_F(GpuSplitK, TailsInEveryDirection) {
  // m x k x columns: one part longer than another, a part of few columns, one and several tiles.
  for (const auto& [m, k, n] : {std::tuple{1, 1024, 8},
                                {3, 1032, 40},
                                {64, 1288, 104},
                                {65, 2056, 136},
                                {100, 4424, 264},
                                {128, 1024, 512},
                                {129, 1544, 72},
                                {192, 1096, 200},
                                {257, 8456, 136},
                                {300, 3080, 328}}) {
    const auto shape = [m](int d, int h) {
      return std::to_string(m) + "x" + std::to_string(d) + "x" + std::to_string(h);
    };
    ASSERT_NO_FATAL_FAILURE(expect_exact(shape(k, n) + ":gate_up:fp16"));
    ASSERT_NO_FATAL_FAILURE(expect_exact(shape(k, n) + ":gate_up:interleaved1"));
    ASSERT_NO_FATAL_FAILURE(expect_exact(shape(n, k) + ":down:fp16"));
    ASSERT_NO_FATAL_FAILURE(expect_exact(shape(n, k) + ":down:residual:bias_down"));
  }
}

TEST_F(GpuSplitK, LayoutsGatesAndFlags) {
  const char* const layouts[] = {"separate",     "concat+up_first",       "interleaved1",
                                 "interleaved4", "interleaved8+up_first", "interleaved16"};
  const char* const gates[] = {"silu",           "gelu_tanh", "gelu_erf",
                               "clamped_swiglu", "relu",      "sigmoid"};
  for (std::size_t i = 0; i < std::size(layouts); ++i) {
    const std::string rest = std::string(":") + gates[i] + ":" + layouts[i];
    ASSERT_NO_FATAL_FAILURE(verify_all("97x1544x304:gate_up:bias" + rest));
    ASSERT_NO_FATAL_FAILURE(verify_all("130x1024x256:gate_up:bias:fp16" + rest));
  }
  for (const char* text :
       {"130x1480x256:gate_up:save:pad=8", "130x1024x256:gate_up:bias:save:fp16:concat+up_first",
        "70x264x1544:down:residual:in_place", "33x24x1032:down:fill=special",
        "130x264x2056:down:bias_down:residual:pad=8:fp16"}) {
    ASSERT_NO_FATAL_FAILURE(verify_all(text));
  }
}

// Two streams at once, whose clusters wait for room in any order, launches behind each other in
// each.
TEST_F(GpuSplitK, ManyRunsOnTwoStreamsGiveTheSameBits) {
  for (const char* text : {"137x2056x264:gate_up", "137x264x2056:down"}) {
    const auto c = harness::parse_case(text).value();
    for (const std::string& config : configs_of(c.problem)) {
      Job jobs[2] = {make_job(text, forced(config)), make_job(text, forced(config))};
      StreamGuard streams[2];
      std::string first[2];
      for (int i = 0; i < 2; ++i) {
        ASSERT_OK(jobs[i].run(streams[i].stream));
        ASSERT_CUDA(cudaStreamSynchronize(streams[i].stream));
        first[i] = bits_of(*jobs[i].set);
        ASSERT_OK(jobs[i].set->reset_outputs());
      }
      for (int r = 0; r < 200; ++r) ASSERT_OK(jobs[r % 2].run(streams[r % 2].stream));
      for (int i = 0; i < 2; ++i) {
        ASSERT_CUDA(cudaStreamSynchronize(streams[i].stream));
        EXPECT_TRUE(bits_of(*jobs[i].set) == first[i]) << text << " " << config;
      }
    }
  }
}

// Layers of a model, x of each being y of the one before, programmatic launches one behind the
// other, against the same layers with a wait after each: a launch that reads too early changes
// bits.
TEST_F(GpuSplitK, ChainedLayersEqualLayersOneByOne) {
  constexpr int kLayers = 12;
  const std::string text = "40x1032x2056:mlp:sigmoid";
  const std::string config = "gate_up=sp128x64k2,down=sp128x64k4";
  Job jobs[2] = {make_job(text, forced(config)), make_job(text, forced(config))};
  StreamGuard guard;
  std::string bits[2];
  for (const bool wait : {true, false}) {
    for (int i = 0; i < kLayers; ++i) {
      Operands operands = jobs[i % 2].set->operands();
      if (i > 0) operands.x = jobs[(i + 1) % 2].set->operands().y;
      ASSERT_OK(sluice::run(jobs[0].plan, operands, jobs[0].workspace.workspace, guard.stream));
      if (wait) {
        ASSERT_CUDA(cudaStreamSynchronize(guard.stream));
      }
    }
    ASSERT_CUDA(cudaStreamSynchronize(guard.stream));
    bits[wait ? 0 : 1] = bits_of(*jobs[(kLayers - 1) % 2].set);
  }
  EXPECT_TRUE(bits[0] == bits[1]);
}

}  // namespace
}  // namespace sluice
