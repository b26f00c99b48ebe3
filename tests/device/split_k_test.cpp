// SPDX-License-Identifier: Apache-2.0
// gate_up and linear by split K on a GPU: every tiling and split, tails in every direction, fewer
// parts to finish than CTAs of a cluster, layouts, flags and gates, launches behind each other on
// one stream and on two.
#include <iterator>
#include <string>
#include <tuple>

#include "sm90_schedule.hpp"

namespace sluice {
namespace {

class GpuSplitK : public gpu::Sm90Schedule {
 protected:
  GpuSplitK() : Sm90Schedule({"=sp"}) {}
};

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

TEST_F(GpuSplitK, TwoStreamsAtOnceGiveTheSameBits) {
  for (const std::string text : {"137x2056x264:gate_up", "137x264x2056:down"}) {
    for (const std::string& config : configs_of(text)) {
      expect_same_bits_on_two_streams(text, config);
    }
  }
}

TEST_F(GpuSplitK, ChainedLayersEqualLayersOneByOne) {
  expect_chains("40x1032x2056:mlp:sigmoid", "gate_up=sp128x64k2,down=sp128x64k4");
}

}  // namespace
}  // namespace sluice
