// SPDX-License-Identifier: Apache-2.0
// A planned case with its operands and a workspace, for tests of run(); streams and graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <utility>

#include "gpu.hpp"

namespace sluice::gpu {

struct Job {
  Plan plan;
  std::unique_ptr<harness::OperandSet> set;
  harness::RigWorkspace workspace;

  Status run(Stream stream) const {
    return sluice::run(plan, set->operands(), workspace.workspace, stream);
  }
};

inline Job make_job(const std::string& text, const Options& options = {}) {
  Job job;
  const auto c = harness::parse_case(text).value();
  job.plan = plan(c.problem, rig().device(), options).value();
  job.set = std::move(harness::OperandSet::make(c, rig()).value());
  job.workspace = std::move(harness::make_workspace(job.plan, rig()).value());
  return job;
}

inline void expect_right(Job& job) {
  const auto comparisons = harness::compare_outputs(*job.set);
  ASSERT_OK(comparisons);
  for (const auto& comparison : *comparisons) {
    EXPECT_TRUE(comparison.passed()) << harness::to_string(comparison);
  }
  EXPECT_OK(job.set->check_canaries());
}

struct StreamGuard {
  cudaStream_t stream = nullptr;
  StreamGuard() { EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  ~StreamGuard() { EXPECT_CUDA(cudaStreamDestroy(stream)); }
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;
};

}  // namespace sluice::gpu
