// SPDX-License-Identifier: Apache-2.0
// The decode variants among other kernels: SMs that somebody else holds, and inputs that their
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

struct Launch {
  const char* text;
  const char* variant;
};
constexpr Launch kLaunches[] = {
    {"1x1032x2056:mlp", "cuda.sm90_decode_chain"},
    {"16x1032x2056:mlp", "cuda.sm90_decode_chain"},
    {"40x1032x2056:mlp", "cuda.sm90_decode_chain"},
    {"4x1032x2056:mlp:add_norm:residual_norm_input", "cuda.sm90_decode_chain"},
    {"5x1032x2056:mlp:add_norm:residual_norm_input:bias:bias_down", "cuda.sm90_decode_chain"},
    {"1x264x6600:mlp:residual", "cuda.sm90_decode_chain"},
    {"40x264x9000:mlp:residual", "cuda.sm90_decode_chain"},
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

// CTAs of gate_up still run, some 500 us behind the others, when down has its first SMs: NaNs lie
// where they have not written h yet.
TEST_F(GpuDecodeNeighbours, DownReadsHWhenItIsWritten) {
  const auto sms = static_cast<unsigned>(gpu::rig().device().sm_count);
  for (const char* text :
       {"1x264x6600:mlp", "3x264x6600:mlp:fp16:interleaved1",
        "2x264x6600:mlp:add_norm:residual_norm_input", "16x264x6600:mlp:bias:bias_down:residual",
        "32x264x9000:mlp", "40x264x9000:mlp:residual", "1x2056x8648:mlp"}) {
    const auto c = harness::parse_case(text).value();
    std::vector<std::string> names =
        config_names("cuda.sm90_decode_chain", c.problem, gpu::rig().device());
    ASSERT_FALSE(names.empty());
    names.resize(std::min<std::size_t>(names.size(), 6));
    for (const std::string& name : names) {
      SCOPED_TRACE(name);
      Job job = make_job(text, {.variant = "cuda.sm90_decode_chain", .config = name.c_str()});
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

// In one launch: n, its sum and h are NaN until the CTAs that write them have. With so few rows of
// weights, some CTAs come to down without a block of gate_up.
TEST_F(GpuDecodeNeighbours, OneLaunchReadsWhatIsWritten) {
  for (const char* text :
       {"1x1032x2056:mlp", "13x1032x2056:mlp:residual", "40x1032x2056:mlp",
        "8x1032x2056:mlp:add_norm:residual_norm_input",
        "7x2056x72:mlp:add_norm:residual_norm_input", "12x2056x72:mlp:norm:residual",
        "35x2056x72:mlp:add_norm:residual_norm_input"}) {
    const auto c = harness::parse_case(text).value();
    auto set = std::move(harness::OperandSet::make(c, gpu::rig()).value());
    const auto exact = harness::expected_outputs(*set, {.max_operations = 1e8});
    ASSERT_OK(exact);
    for (const std::string& name :
         config_names("cuda.sm90_decode", c.problem, gpu::rig().device())) {
      SCOPED_TRACE(std::string(text) + " " + name);
      Job job = make_job(text, {.variant = "cuda.sm90_decode", .config = name.c_str()});
      ASSERT_OK(job.run(gpu::rig().stream()));
      ASSERT_OK(gpu::rig().synchronize());
      expect_right(job, *exact);
      std::vector<gpu::Extent> outputs;
      for (const Operand id : job.set->outputs()) {
        outputs.push_back(gpu::extent_of(job.set->spec(id), job.set->operands()));
      }
      const Workspace workspace = job.workspace.workspace;
      char* const payload = static_cast<char*>(workspace.data) + kWorkspaceHeaderBytes;
      const StreamGuard stream;
      const auto run = [&] {
        for (const gpu::Extent& output : outputs) {
          ASSERT_CUDA(cudaMemsetAsync(output.base, 0xFF, output.bytes, stream.stream));
        }
        ASSERT_CUDA(
            cudaMemsetAsync(payload, 0xFF, workspace.bytes - kWorkspaceHeaderBytes, stream.stream));
        ASSERT_OK(job.run(stream.stream));
      };
      ASSERT_NO_FATAL_FAILURE(run());
      ASSERT_CUDA(cudaStreamSynchronize(stream.stream));
      const gpu::Snapshot expected(outputs);
      for (int round = 0; round < 50; ++round) {
        ASSERT_NO_FATAL_FAILURE(run());
        ASSERT_EQ(expected.changed(stream.stream), "") << "round " << round;
      }
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
