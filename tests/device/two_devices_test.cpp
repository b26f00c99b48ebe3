// SPDX-License-Identifier: Apache-2.0
// What a process with several GPUs relies on: every variant on a device that is not the current
// one, and two devices at once. Skipped where there is one.
#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "job.hpp"

namespace sluice {
namespace {

using gpu::expect_right;
using gpu::Job;
using gpu::make_job_on;
using harness::Rig;

// Every operator, and each kernel of the heuristics: decode (norms deferred and not), tensor cores
// with and without cuBLASLt, gradients, norms, element by element, the portable variant.
const std::vector<std::string> kCases = {
    "1x256x512:mlp",
    "4x256x512:mlp:add_norm:residual_norm_input",
    "16x256x512:mlp:add_norm:residual_norm_input",
    "40x256x512:mlp:residual",
    "130x256x512:mlp",
    "130x64x96:gate_up:interleaved1:save",
    "130x256x512:down:residual",
    "130x256x512:mlp:fp16:add_norm:residual_norm_input",
    "130x64x96:gate_up_grad",
    "130x256x512:mlp_grad",
    "64x32x48:gate_mul_grad",
    "7x20x36:mlp:bias:bias_down",
};

class TwoDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() < 2) GTEST_SKIP() << "one GPU";
    for (int ordinal = 0; ordinal < 2; ++ordinal) {
      rigs.push_back(std::move(harness::make_cuda_rig(ordinal).value()));
    }
  }
  void TearDown() override { EXPECT_CUDA(cudaSetDevice(0)); }

  std::vector<std::unique_ptr<Rig>> rigs;
};

TEST_F(TwoDevices, EachVariantOnTheOneThatIsNotCurrent) {
  for (const std::string& text : kCases) {
    const auto c = harness::parse_case(text).value();
    for (const std::string& name : variant_names(Backend::kCuda)) {
      Options options;
      options.variant = name.c_str();
      if (!plan(c.problem, rigs[1]->device(), options)) continue;
      SCOPED_TRACE(text + ", " + name);
      Job job = make_job_on(*rigs[1], text, options);
      ASSERT_CUDA(cudaSetDevice(0));
      ASSERT_OK(job.run(rigs[1]->stream()));
      int current = -1;
      ASSERT_CUDA(cudaGetDevice(&current));
      EXPECT_EQ(current, 0);
      expect_right(job);
    }
  }
}

TEST_F(TwoDevices, BothAtOnceFromAThreadEach) {
  constexpr int kRounds = 50;
  for (const std::string& text : kCases) {
    SCOPED_TRACE(text);
    Job jobs[2] = {make_job_on(*rigs[0], text), make_job_on(*rigs[1], text)};
    std::string messages[2] = {"ok", "ok"};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        for (int round = 0; round < kRounds; ++round) {
          // The other's device is current in every second round.
          const bool set = cudaSetDevice((i + round) % 2) == cudaSuccess;
          const Status status = jobs[i].run(rigs[i]->stream());
          if (!set || !status) messages[i] = set ? status.error().message : "cudaSetDevice";
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(messages[i], "ok");
      expect_right(jobs[i]);
    }
    EXPECT_EQ(gpu::bits_of(*jobs[0].set), gpu::bits_of(*jobs[1].set));
  }
}

}  // namespace
}  // namespace sluice
