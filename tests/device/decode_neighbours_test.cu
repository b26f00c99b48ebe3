// SPDX-License-Identifier: Apache-2.0
// The decode recipe among other kernels: SMs that somebody else holds, and inputs that their
// producers write late. Two decodes at once and layers that share a workspace are in
// decode_test.cpp.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

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

constexpr const char* kDecode = "cuda.sm90_decode";

// The two forms of a norm; where nothing is forced there is one form.
constexpr const char* kDeferred = "gate_up=bn16r64k256s5";
constexpr const char* kLaunched = "norm=row";
struct Launch {
  const char* text;
  const char* config = nullptr;
};
constexpr Launch kLaunches[] = {
    {"1x1032x2056:mlp"},
    {"16x1032x2056:mlp"},
    {"40x1032x2056:mlp"},
    {"4x1032x2056:mlp:add_norm:residual_norm_input", kDeferred},
    {"5x1032x2056:mlp:add_norm:residual_norm_input:bias:bias_down", kDeferred},
    {"5x1032x2056:mlp:add_norm:residual_norm_input", kLaunched},
    {"1x264x6600:mlp:residual"},
    {"40x264x9000:mlp:residual"},
    {"8x1032x2056:mlp:norm:fp16"},
    {"8x1032x2056:gate_up"},
    {"8x1032x2056:gate_up:add_norm", kDeferred},
    {"13x1032x2056:gate_up:norm"},
    {"8x1032x2056:down:residual"},
    {"40x1032x2056:down:residual"},
    {"40x1032x2056:gate_up"}};

class GpuDecodeNeighbours : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs a Hopper GPU";
  }
};

Job make_launch(const Launch& launch) {
  return make_job(launch.text, {.variant = kDecode, .config = launch.config});
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
      EXPECT_TRUE(bits_of(*job.set) == expected) << job.plan.config_name() << " held " << held;
    }
  }
}

// CTAs of gate_up still run, some 500 us behind the others, when down has its first SMs: NaNs lie
// where they have not written h yet.
TEST_F(GpuDecodeNeighbours, DownReadsHWhenItIsWritten) {
  const auto sms = static_cast<unsigned>(gpu::rig().device().sm_count);
  for (const char* text :
       {"1x264x6600:mlp", "3x264x6600:mlp:fp16:interleaved1",
        "2x264x6600:mlp:add_norm:residual_norm_input", "16x264x6600:mlp:bias:bias_down:residual",
        "32x264x9000:mlp", "40x264x9000:mlp:residual", "1x2056x8648:mlp"}) {
    const auto c = harness::parse_case(text).value();
    std::vector<std::string> names = gpu::decode_configs(c.problem).deferred;
    ASSERT_FALSE(names.empty());
    names.resize(std::min<std::size_t>(names.size(), 6));
    for (const std::string& name : names) {
      SCOPED_TRACE(name);
      Job job = make_job(text, {.variant = kDecode, .config = name.c_str()});
      ASSERT_OK(job.run(gpu::rig().stream()));
      ASSERT_OK(gpu::rig().synchronize());
      expect_right(job);
      const std::string expected = bits_of(*job.set);
      const Workspace workspace = job.workspace.workspace;
      char* const payload = static_cast<char*>(workspace.data) + kWorkspaceHeaderBytes;
      for (const unsigned held : {1U, sms / 2, sms - 1}) {
        ASSERT_OK(job.set->reset_outputs());
        ASSERT_CUDA(cudaMemset(payload, 0xFF, workspace.bytes - kWorkspaceHeaderBytes));
        ASSERT_CUDA(cudaDeviceSynchronize());
        StreamGuard other;
        StreamGuard stream;
        ASSERT_OK(hold_sms(held, other.stream));
        ASSERT_OK(job.run(stream.stream));
        ASSERT_CUDA(cudaStreamSynchronize(stream.stream));
        ASSERT_CUDA(cudaStreamSynchronize(other.stream));
        ASSERT_TRUE(bits_of(*job.set) == expected) << text << " held " << held;
      }
    }
  }
}

TEST_F(GpuDecodeNeighbours, ALateProducerIsWaitedFor) {
  for (const Launch& launch : kLaunches) {
    SCOPED_TRACE(launch.text);
    gpu::expect_late_inputs_are_waited_for(harness::parse_case(launch.text).value(),
                                           {.variant = kDecode, .config = launch.config});
  }
}

}  // namespace
}  // namespace sluice
