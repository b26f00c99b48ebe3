// SPDX-License-Identifier: Apache-2.0
// A planned case with its operands and a workspace, for tests of run(); streams and graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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

inline Job make_job_on(harness::Rig& rig, const harness::Case& c, const Options& options = {}) {
  Job job;
  job.plan = plan(c.problem, rig.device(), options).value();
  job.set = std::move(harness::OperandSet::make(c, rig).value());
  job.workspace = std::move(harness::make_workspace(job.plan, rig).value());
  return job;
}

inline Job make_job_on(harness::Rig& rig, const std::string& text, const Options& options = {}) {
  return make_job_on(rig, harness::parse_case(text).value(), options);
}

inline Job make_job(const std::string& text, const Options& options = {}) {
  return make_job_on(rig(), text, options);
}

inline void expect_right(Job& job, const std::vector<harness::ExpectedOutput>& exact) {
  const auto comparisons = harness::compare_outputs(*job.set, exact);
  ASSERT_OK(comparisons);
  for (const auto& comparison : *comparisons) {
    EXPECT_TRUE(comparison.passed()) << harness::to_string(comparison);
  }
  EXPECT_OK(job.set->check_canaries());
}

inline void expect_right(Job& job) {
  const auto exact = harness::expected_outputs(*job.set);
  ASSERT_OK(exact);
  expect_right(job, *exact);
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

/// Captures a run, replays it three times: right, and the same bits each time.
inline void expect_replays_right(Job& job) {
  auto* const stream = static_cast<cudaStream_t>(rig().stream());
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  const Status enqueued = job.run(stream);
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
  ASSERT_OK(enqueued);
  cudaGraphExec_t exec = nullptr;
  ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  const auto exact = harness::expected_outputs(*job.set);
  ASSERT_OK(exact);
  std::string first;
  for (int replay = 0; replay < 3; ++replay) {
    ASSERT_OK(job.set->reset_outputs());
    ASSERT_CUDA(cudaGraphLaunch(exec, stream));
    ASSERT_CUDA(cudaStreamSynchronize(stream));
    expect_right(job, *exact);
    const std::string bits = bits_of(*job.set);
    if (first.empty()) first = bits;
    EXPECT_TRUE(first == bits) << "other bits on replay " << replay;
  }
  ASSERT_CUDA(cudaGraphExecDestroy(exec));
  ASSERT_CUDA(cudaGraphDestroy(graph));
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

/// The configs of cuda.sm90_decode by the form of a norm: those that defer it into gate_up, or have
/// none, and those that launch it first.
struct NormForms {
  std::vector<std::string> deferred;
  std::vector<std::string> launched;
};
inline NormForms decode_configs(const Problem& problem) {
  NormForms forms;
  for (std::string& name : config_names("cuda.sm90_decode", problem, rig().device())) {
    (name.rfind("norm=row", 0) == 0 ? forms.launched : forms.deferred).push_back(std::move(name));
  }
  return forms;
}

struct StreamGuard {
  cudaStream_t stream = nullptr;
  /// Of two streams whose CTAs wait for room those of the lower number go first.
  explicit StreamGuard(int priority = 0) {
    EXPECT_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority));
  }
  ~StreamGuard() { EXPECT_CUDA(cudaStreamDestroy(stream)); }
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;
};

/// A thread a case, on two streams, each running its job `rounds` times beside the others.
inline void expect_right_in_threads(std::span<const std::string> cases, int rounds,
                                    const Options& options = {}) {
  StreamGuard streams[2];
  std::vector<Job> jobs;
  for (const std::string& text : cases) jobs.push_back(make_job(text, options));
  std::vector<std::string> messages(jobs.size(), "ok");
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < rounds; ++round) {
        const Status status = jobs[i].run(streams[i % 2].stream);
        if (!status) messages[i] = status.error().message;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const StreamGuard& guard : streams) ASSERT_CUDA(cudaStreamSynchronize(guard.stream));
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    SCOPED_TRACE(cases[i]);
    EXPECT_EQ(messages[i], "ok");
    expect_right(jobs[i]);
  }
}

}  // namespace sluice::gpu
