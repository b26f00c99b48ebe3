// SPDX-License-Identifier: Apache-2.0
// gate_up and mlp under the stream-K schedule on a GPU: every tiling, odd token counts, tails
// in every direction, tiles cut into two and into many pieces, many runs on one workspace, two
// streams at once, layers chained by programmatic launches.
#include <string>
#include <vector>

#include "sm90_schedule.hpp"
#include "stream_k_shapes.hpp"

namespace sluice {
namespace {

using gpu::bits_of;
using gpu::expect_right;
using gpu::Job;
using gpu::make_job;

class GpuStreamK : public gpu::Sm90Schedule {
 protected:
  GpuStreamK() : Sm90Schedule({"sk", "sw"}) {}
};

TEST_F(GpuStreamK, OneTileOfEachOperator) {
  for (const std::string op : {"gate_up", "mlp"}) {
    for (const std::string shape : {"1x64x64:", "16x512x512:"}) {
      ASSERT_NO_FATAL_FAILURE(verify_all(shape + op + ":identity:fill=integers"));
      ASSERT_FALSE(HasFailure()) << shape << op;
    }
  }
}

// Tiles cut into two and into many pieces, beside whole ones and not at all.
TEST_F(GpuStreamK, TailsInEveryDirection) {
  for (const std::string shape : gpu::kStreamKTails) {
    for (const std::string op : {"gate_up", "mlp"}) {
      ASSERT_NO_FATAL_FAILURE(expect_exact(shape + ":" + op + ":fp16"));
      ASSERT_NO_FATAL_FAILURE(expect_exact(shape + ":" + op + ":interleaved1"));
    }
  }
}

TEST_F(GpuStreamK, EveryTokenCount) {
  for (int m = 1; m <= 300; m += m < 70 ? 4 : 23) {
    const std::string types = m % 8 == 1 ? ":bf16" : ":fp16";
    ASSERT_NO_FATAL_FAILURE(expect_exact(std::to_string(m) + "x1672x168:mlp" + types));
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
       {"33x520x392:gate_up:bias:save", "33x1672x136:gate_up:bias:save:concat+up_first",
        "137x520x1032:gate_up:bias:save:pad=8", "137x1672x264:gate_up:bias:save:concat+up_first"}) {
    ASSERT_NO_FATAL_FAILURE(verify_all(text));
  }
  ASSERT_NO_FATAL_FAILURE(verify_all("33x24x1032:mlp:fill=special"));
}

// A lost or doubled ticket, or a piece read too early, would show in the bits, or in a ticket that
// the next launch does not find at 0. No launch waits for the one before on the host's side.
TEST_F(GpuStreamK, ManyRunsOnOneWorkspaceGiveTheSameBits) {
  for (const char* text : gpu::kStreamKRepeated) {
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

TEST_F(GpuStreamK, TwoStreamsAtOnceGiveTheSameBits) {
  for (const char* text : gpu::kStreamKRepeated) {
    expect_same_bits_on_two_streams(text, configs_of(text).front());
  }
}

TEST_F(GpuStreamK, ChainedLayersEqualLayersOneByOne) {
  for (const std::string text : gpu::kStreamKChained) {
    for (const std::string& config : configs_of(text)) expect_chains(text, config);
  }
}

}  // namespace
}  // namespace sluice
