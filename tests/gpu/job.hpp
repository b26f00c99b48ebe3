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

/// The outputs of a case, rows' gaps included.
inline std::string bits_of(harness::OperandSet& set) {
  std::string bits;
  for (const Operand id : set.outputs()) {
    const auto now = set.host_matrix(id);
    EXPECT_OK(now);
    bits.append(static_cast<const char*>(now->data),
                static_cast<std::size_t>(extent_bytes(now->spec)));
  }
  return bits;
}

/// Runs a plan on the set with a workspace of its own and returns the outputs.
inline std::string run_once(harness::OperandSet& set, const char* variant, const char* config) {
  Options options;
  options.variant = variant;
  options.config = config;
  const Plan p = plan(set.test_case().problem, rig().device(), options).value();
  const auto workspace = std::move(harness::make_workspace(p, rig()).value());
  EXPECT_OK(set.reset_outputs());
  EXPECT_OK(sluice::run(p, set.operands(), workspace.workspace, rig().stream()));
  EXPECT_OK(rig().synchronize());
  return bits_of(set);
}

struct StreamGuard {
  cudaStream_t stream = nullptr;
  StreamGuard() { EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  ~StreamGuard() { EXPECT_CUDA(cudaStreamDestroy(stream)); }
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;
};

}  // namespace sluice::gpu
