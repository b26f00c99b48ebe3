// SPDX-License-Identifier: Apache-2.0
// The scheduler on a GPU: it measures, its choices run, and it leaves the device as it was.
#include "sluice/scheduler.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "gpu.hpp"

namespace sluice::gpu {
namespace {

Problem mlp(std::int64_t m, Op op = Op::kMlp) {
  Problem p;
  p.op = op;
  p.m = m;
  p.d = 512;
  p.h = 1536;
  return p;
}

// Interleaved weights in one buffer and a gradient go the tuner's other ways of making operands.
std::vector<Problem> problems() {
  std::vector<Problem> out = {mlp(1),
                              mlp(16),
                              mlp(128),
                              mlp(128, Op::kGateUp),
                              mlp(64, Op::kDown),
                              mlp(16, Op::kGateMulGrad),
                              mlp(32)};
  out.back().layout.w_gate_up = interleaved_rows(1, 512, DType::kBF16);
  return out;
}

TEST(GpuScheduler, MeasuresAndItsChoicesArePlans) {
  const Device& device = rig().device();
  Scheduler scheduler(device);
  std::size_t free_before = 0;
  std::size_t free_after = 0;
  std::size_t total = 0;
  ASSERT_CUDA(cudaMemGetInfo(&free_before, &total));
  const std::vector<Problem> list = problems();
  const auto outcomes = scheduler.tune(list, {.max_seconds = 10});
  ASSERT_OK(outcomes);
  ASSERT_CUDA(cudaMemGetInfo(&free_after, &total));
  // Modules that were loaded on first use stay; operands do not (hundreds of MiB).
  EXPECT_LT(static_cast<double>(free_before) - static_cast<double>(free_after), 64.0 * (1 << 20));
  for (std::size_t i = 0; i < list.size(); ++i) {
    const TuneOutcome& outcome = (*outcomes)[i];
    if (outcome.state == TuneState::kOneCandidate) continue;
    EXPECT_EQ(outcome.state, TuneState::kMeasured) << to_string(list[i]);
    EXPECT_GT(outcome.choice.us, 0);
    // The untuned choice is never left for a slower one.
    EXPECT_LE(outcome.choice.us, outcome.choice.untuned_us * (1 + 1e-3)) << to_string(list[i]);
    const auto made = plan(list[i], device, {.tune = &scheduler});
    ASSERT_OK(made);
    EXPECT_EQ(made->source, ChoiceSource::kTuneTable);
    EXPECT_EQ(made->config_name(), outcome.choice.config);
    for (const TuneTime& time : outcome.times) {
      std::printf("%-28s %-40s %9.2f us  %4.1f%%  %d samples\n", to_string(list[i]).c_str(),
                  time.config, time.us, 100 * time.us_noise / time.us, time.samples);
    }
  }
}

TEST(GpuScheduler, RefusesWhatDoesNotFit) {
  Scheduler scheduler(rig().device());
  const Problem p = mlp(1);
  const auto outcomes = scheduler.tune({&p, 1}, {.max_memory_bytes = 1024});
  ASSERT_FALSE(outcomes);
  EXPECT_EQ(outcomes.error().code, ErrorCode::kOutOfMemory) << outcomes.error().message;
  EXPECT_CUDA(cudaGetLastError()) << "no error is left behind";
}

}  // namespace
}  // namespace sluice::gpu
