// SPDX-License-Identifier: Apache-2.0
// gate_up, down and mlp under the stream-K schedule on a GPU: every tiling, odd token counts, tails
// in every direction, tiles cut into two and into many pieces, many runs on one workspace, two
// streams at once, layers chained by programmatic launches.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <vector>

#include "job.hpp"

namespace sluice {
namespace {

using gpu::bits_of;
using gpu::expect_right;
using gpu::Job;
using gpu::make_job;
using gpu::run_once;
using gpu::StreamGuard;

constexpr const char* kVariant = "cuda.sm90";

class GpuStreamK : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs a Hopper GPU";
  }
};

// The configs of a problem in which a launch is stream-K.
std::vector<std::string> configs_of(const Problem& problem) {
  std::vector<std::string> names = config_names(kVariant, problem, gpu::rig().device());
  std::erase_if(names, [](const std::string& n) {
    return n.find("sk") == std::string::npos && n.find("sw") == std::string::npos;
  });
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

// Small integers through the identity gate have one right answer: every config must give the bits
// of cuda.simt in every element.
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

TEST_F(GpuStreamK, OneTileOfEachOperator) {
  for (const std::string op : {"down", "gate_up", "mlp"}) {
    for (const std::string shape : {"1x64x64:", "16x512x512:"}) {
      ASSERT_NO_FATAL_FAILURE(verify_all(shape + op + ":identity:fill=integers"));
      ASSERT_FALSE(HasFailure()) << shape << op;
    }
  }
}

// Tiles cut once, cut into many pieces (8 columns out of 4400) and not at all, one a worker and
// several.
TEST_F(GpuStreamK, TailsInEveryDirection) {
  for (const std::string shape :
       {"3x8x8", "17x72x104", "33x1032x264", "64x264x4400", "65x4424x136", "100x8456x1544",
        "129x520x2056", "137x1032x456", "144x72x104", "145x2056x136", "160x1032x4400",
        "193x1544x392", "257x2056x1032", "300x136x3080", "40x72x29568"}) {
    for (const std::string op : {"gate_up", "down", "mlp"}) {
      ASSERT_NO_FATAL_FAILURE(expect_exact(shape + ":" + op + ":fp16"));
      ASSERT_NO_FATAL_FAILURE(expect_exact(shape + ":" + op + ":interleaved1"));
    }
  }
}

TEST_F(GpuStreamK, EveryTokenCount) {
  for (int m = 1; m <= 300; m += m < 70 ? 4 : 23) {
    const std::string types = m % 8 == 1 ? ":bf16" : ":fp16";
    ASSERT_NO_FATAL_FAILURE(expect_exact(std::to_string(m) + "x200x1352:mlp" + types));
  }
}

TEST_F(GpuStreamK, LayoutsAndFlags) {
  const char* const layouts[] = {"separate",     "concat+up_first",       "interleaved1",
                                 "interleaved4", "interleaved8+up_first", "interleaved16"};
  const char* const gates[] = {"silu", "gelu_tanh", "clamped_swiglu", "relu"};
  std::size_t i = 0;
  for (const std::string layout : layouts) {
    const std::string gate = std::string(":") + gates[i++ % 4] + ":" + layout;
    ASSERT_NO_FATAL_FAILURE(verify_all("33x520x400:gate_up:bias" + gate));
    ASSERT_NO_FATAL_FAILURE(verify_all("90x264x528:mlp:bias:bias_down:residual:pad=8" + gate));
  }
  for (const char* text :
       {"33x520x392:gate_up:bias:save", "33x520x392:gate_up:bias:save:concat+up_first",
        "137x520x1032:gate_up:bias:save:pad=8", "137x520x1032:gate_up:bias:save:concat+up_first"}) {
    ASSERT_NO_FATAL_FAILURE(verify_all(text));
  }
  ASSERT_NO_FATAL_FAILURE(verify_all("70x264x1544:down:residual:in_place"));
  ASSERT_NO_FATAL_FAILURE(verify_all("33x24x1032:mlp:fill=special"));
}

constexpr const char* kRepeated[] = {"64x1032x2056:mlp", "20x264x8200:down", "300x1032x2056:mlp",
                                     "137x1032x2056:gate_up"};

// A lost or doubled ticket, or a piece read too early, would show in the bits, or in a ticket that
// the next launch does not find at 0. No launch waits for the one before on the host's side.
TEST_F(GpuStreamK, ManyRunsOnOneWorkspaceGiveTheSameBits) {
  for (const char* text : kRepeated) {
    const auto c = harness::parse_case(text).value();
    const std::vector<std::string> configs = configs_of(c.problem);
    for (const std::string& config : configs) {
      Job job = make_job(text, forced(config));
      ASSERT_OK(job.run(gpu::rig().stream()));
      ASSERT_OK(gpu::rig().synchronize());
      if (config == configs.front()) expect_right(job);
      const std::string first = bits_of(*job.set);
      for (int round = 0; round < 3; ++round) {
        ASSERT_OK(job.set->reset_outputs());
        for (int i = 0; i < 25; ++i) ASSERT_OK(job.run(gpu::rig().stream()));
        ASSERT_OK(gpu::rig().synchronize());
        ASSERT_TRUE(bits_of(*job.set) == first) << text << " " << config << " round " << round;
      }
    }
  }
}

// Two streams at once: CTAs of a launch start while others of it wait for room, in any order, which
// nothing may depend on.
TEST_F(GpuStreamK, TwoStreamsAtOnceGiveTheSameBits) {
  for (const char* text : kRepeated) {
    const std::string config = configs_of(harness::parse_case(text).value().problem).front();
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
      EXPECT_TRUE(bits_of(*jobs[i].set) == first[i]) << text;
    }
  }
}

// Layers of a model, x of each being y of the one before, programmatic launches one behind the
// other, against the same layers with a wait after each: who reads too early changes bits.
TEST_F(GpuStreamK, ChainedLayersEqualLayersOneByOne) {
  constexpr int kLayers = 12;
  const std::string text = "40x1032x2056:mlp:sigmoid";
  for (const std::string& config : configs_of(harness::parse_case(text).value().problem)) {
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
    EXPECT_TRUE(bits[0] == bits[1]) << config;
  }
}

}  // namespace
}  // namespace sluice
