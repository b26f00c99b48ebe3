// SPDX-License-Identifier: Apache-2.0
// The decode variants among other kernels: SMs that somebody else holds, and inputs that their
// producers write late. Two decodes at once and layers that share a workspace are in
// decode_test.cpp.
#include <cuda_runtime_api.h>

#include <string>

#include "job.hpp"
#include "neighbours.cuh"

namespace sluice {
namespace {

using gpu::bits_of;
using gpu::expect_right;
using gpu::hold_sms;
using gpu::Job;
using gpu::make_job;
using gpu::StreamGuard;

struct Launch {
  const char* text;
  const char* variant;
};
constexpr Launch kLaunches[] = {
    {"1x1032x2056:mlp", "cuda.sm90_decode_chain"},
    {"16x1032x2056:mlp", "cuda.sm90_decode_chain"},
    {"40x1032x2056:mlp", "cuda.sm90_decode_chain"},
    {"4x1032x2056:mlp:add_norm:residual_norm_input", "cuda.sm90_decode_chain"},
    {"8x1032x2056:mlp", "cuda.sm90_decode"},
    {"8x1032x2056:mlp:norm", "cuda.sm90_decode"},
    {"8x1032x2056:down:residual", "cuda.sm90_decode"},
    {"40x1032x2056:down:residual", "cuda.sm90_decode"},
    {"40x1032x2056:mlp", "cuda.sm90_decode"}};

class GpuDecodeNeighbours : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs a Hopper GPU";
  }
};

Job make_launch(const Launch& launch) {
  Options options;
  options.variant = launch.variant;
  return make_job(launch.text, options);
}

// A launch gets some SMs late, or none until the others are done: what waits inside must not wait
// for who cannot start.
TEST_F(GpuDecodeNeighbours, SmsThatAreHeldDelayAndNoMore) {
  const auto sms = static_cast<unsigned>(gpu::rig().device().sm_count);
  for (const Launch& launch : kLaunches) {
    Job job = make_launch(launch);
    ASSERT_OK(job.run(gpu::rig().stream()));
    ASSERT_OK(gpu::rig().synchronize());
    expect_right(job);
    const std::string expected = bits_of(*job.set);
    for (const unsigned held : {1U, sms / 2, sms - 1, sms}) {
      ASSERT_OK(job.set->reset_outputs());
      StreamGuard other;
      StreamGuard stream;
      for (int i = 0; i < 4; ++i) {
        ASSERT_OK(hold_sms(held, other.stream));
        for (int k = 0; k < 3; ++k) ASSERT_OK(job.run(stream.stream));
      }
      ASSERT_CUDA(cudaStreamSynchronize(stream.stream));
      ASSERT_CUDA(cudaStreamSynchronize(other.stream));
      EXPECT_TRUE(bits_of(*job.set) == expected) << job.plan.config.name << " held " << held;
    }
  }
}

TEST_F(GpuDecodeNeighbours, ALateProducerIsWaitedFor) {
  for (const Launch& launch : kLaunches) {
    SCOPED_TRACE(launch.text);
    gpu::expect_late_inputs_are_waited_for(harness::parse_case(launch.text).value(),
                                           {.variant = launch.variant});
  }
}

}  // namespace
}  // namespace sluice
