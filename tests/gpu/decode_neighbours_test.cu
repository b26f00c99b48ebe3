// SPDX-License-Identifier: Apache-2.0
// The decode variants among other kernels: SMs that somebody else holds, and an x that its producer
// writes late. Two decodes at once and layers that share a workspace are in decode_test.cpp.
#include <cuda_runtime_api.h>

#include <string>
#include <utility>
#include <vector>

#include "cuda/launch.hpp"
#include "cuda/ptx/grid_dependency.cuh"
#include "job.hpp"
#include "neighbours.cuh"

namespace sluice {
namespace {

using cuda::LaunchShape;
using gpu::bits_of;
using gpu::expect_right;
using gpu::hold_sms;
using gpu::Job;
using gpu::make_job;
using gpu::spin_ns;
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

struct LateParams {
  const uint4* from;
  uint4* to;
  std::size_t count;
  std::uint64_t ns;
};
// Lets the next launch start at once, and writes what that reads only later.
__global__ void copy_late(const __grid_constant__ LateParams p) {
  cuda::ptx::launch_dependents();
  cuda::ptx::wait_for_prerequisites();
  spin_ns(p.ns);
  for (std::size_t i = threadIdx.x; i < p.count; i += blockDim.x) p.to[i] = p.from[i];
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

// The launch starts while x and the residual are still to be written, and again while the launch
// before runs.
TEST_F(GpuDecodeNeighbours, ALateProducerIsWaitedFor) {
  for (const Launch& launch : kLaunches) {
    Job job = make_launch(launch);
    const Operands operands = job.set->operands();
    const Problem& p = job.plan.problem;
    const auto bytes = static_cast<std::size_t>(p.m * p.d * size_bytes(p.x_dtype));
    struct Late {
      void* to;
      harness::RigBuffer kept;
    };
    std::vector<Late> inputs;
    for (const void* input : {operands.x, operands.x_residual}) {
      if (input == nullptr) continue;
      inputs.push_back({const_cast<void*>(input),
                        std::move(harness::RigBuffer::make(gpu::rig(), bytes).value())});
      ASSERT_CUDA(cudaMemcpy(inputs.back().kept.data(), input, bytes, cudaMemcpyDeviceToDevice));
    }
    ASSERT_OK(job.run(gpu::rig().stream()));
    ASSERT_OK(gpu::rig().synchronize());
    expect_right(job);
    const std::string expected = bits_of(*job.set);
    StreamGuard guard;
    LaunchShape shape;
    shape.block.x = 256;
    shape.programmatic = true;
    for (int round = 0; round < 10; ++round) {
      ASSERT_OK(job.set->reset_outputs());
      for (const Late& input : inputs) {
        ASSERT_CUDA(cudaMemsetAsync(input.to, 0xFF, bytes, guard.stream));  // NaN
      }
      for (const Late& input : inputs) {
        const LateParams late{reinterpret_cast<const uint4*>(input.kept.data()),
                              static_cast<uint4*>(input.to), bytes / sizeof(uint4), 50'000};
        ASSERT_OK(cuda::launch<&copy_late>(0, shape, guard.stream, late));
      }
      ASSERT_OK(job.run(guard.stream));
      ASSERT_CUDA(cudaStreamSynchronize(guard.stream));
      ASSERT_TRUE(bits_of(*job.set) == expected) << job.plan.config.name << " round " << round;
    }
  }
}

}  // namespace
}  // namespace sluice
