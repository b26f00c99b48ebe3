// SPDX-License-Identifier: Apache-2.0
// The timer on a stopwatch whose times are known.
#include "harness/timer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>
#include <thread>

#include "harness/rig.hpp"

namespace sluice::harness {
namespace {

using ::testing::ElementsAre;

// Returns scripted times and remembers the order of its calls.
class ScriptedStopwatch final : public Stopwatch {
 public:
  explicit ScriptedStopwatch(std::vector<std::function<double(int)>> times)
      : times_(std::move(times)), calls_(times_.size()) {}
  Expected<std::size_t> prepare(std::vector<Run> runs) override {
    if (runs.empty()) return make_error(ErrorCode::kInvalidArgument, "empty");
    return prepared_++;
  }
  Expected<double> time_us(std::size_t handle) override {
    order.push_back(handle);
    return times_[handle](calls_[handle]++);
  }
  std::vector<std::size_t> order;

 private:
  std::vector<std::function<double(int)>> times_;
  std::vector<int> calls_;
  std::size_t prepared_ = 0;
};

Run nothing() {
  return [](Stream) -> Status { return {}; };
}

TimerOptions plain() {
  return {.min_total_us = 0, .max_total_us = 1e9, .warm_up_us = 0, .min_samples = 3, .noise = 1};
}

TEST(Timer, QuantilesInterpolate) {
  const timing::Statistics t = timing::statistics({50, 10, 40, 20, 30});
  EXPECT_EQ(t.samples, 5U);
  EXPECT_DOUBLE_EQ(t.median_us, 30);
  EXPECT_DOUBLE_EQ(t.p10_us, 10 + 0.4 * 10);
  EXPECT_DOUBLE_EQ(t.p90_us, 40 + 0.6 * 10);
  EXPECT_DOUBLE_EQ(timing::statistics({7}).p90_us, 7);
  EXPECT_EQ(timing::statistics({}).samples, 0U);
}

// The estimate must be that of the true standard error, on samples of a known distribution.
TEST(Timer, NoiseIsTheMediansStandardError) {
  constexpr int kSamples = 2001;
  std::vector<double> samples;
  for (int i = 0; i < kSamples; ++i) {
    // Quantiles of a uniform distribution on [0, 1): density 1, so the median's standard error is
    // 1 / (2 sqrt(n)).
    samples.push_back((i + 0.5) / kSamples);
  }
  const double truth = 0.5 / std::sqrt(kSamples);
  const double estimate = timing::statistics(samples).us_noise;
  // Uniform samples are not normal: p90 - p10 = 0.8, so the estimate is 1.253 * 0.8 / 2.563 of
  // 1 / sqrt(n) by its definition; the truth is half of 1 / sqrt(n).
  EXPECT_NEAR(estimate / truth, 2 * 1.253 * 0.8 / 2.563, 2.0 / kSamples);
}

TEST(Timer, CandidatesTakeTurnsInRotatingOrder) {
  ScriptedStopwatch watch({[](int) { return 5.0; }, [](int) { return 7.0; }});
  const std::vector<Candidate> candidates = {{"a", {nothing()}}, {"b", {nothing()}}};
  const auto timings = time_interleaved(watch, candidates, plain());
  ASSERT_TRUE(timings);
  // One pass each to warm up, then three rounds.
  EXPECT_THAT(watch.order, ElementsAre(0, 1, 0, 1, 1, 0, 1, 0));
  EXPECT_EQ((*timings)[0].name, "a");
  EXPECT_DOUBLE_EQ((*timings)[0].median_us, 5);
  EXPECT_DOUBLE_EQ((*timings)[1].median_us, 7);
  EXPECT_TRUE((*timings)[1].converged);
}

TEST(Timer, ASampleIsAPassOverItsRuns) {
  ScriptedStopwatch watch({[](int) { return 12.0; }});
  const auto timings =
      time_interleaved(watch, {{{"a", {nothing(), nothing(), nothing()}}}}, plain());
  ASSERT_TRUE(timings);
  EXPECT_DOUBLE_EQ(timings->front().median_us, 4);
  EXPECT_EQ(timings->front().runs, 3 * timings->front().samples);
}

TEST(Timer, WarmUpIsNotCounted) {
  // 100 while cold: three passes of 100 make 300.
  ScriptedStopwatch watch({[](int call) { return call < 3 ? 100.0 : 1.0; }});
  TimerOptions options = plain();
  options.warm_up_us = 250;
  const auto timings = time_interleaved(watch, {{{"a", {nothing()}}}}, options);
  ASSERT_TRUE(timings);
  EXPECT_DOUBLE_EQ(timings->front().p90_us, 1);
}

TEST(Timer, GoesOnUntilTheNoiseGoal) {
  // Alternates between 90 and 110: noise falls with the square root of the samples.
  const auto wavering = [](int call) { return call % 2 == 0 ? 90.0 : 110.0; };
  ScriptedStopwatch watch({wavering});
  TimerOptions options = plain();
  options.noise = 0.01;
  const auto timings = time_interleaved(watch, {{{"a", {nothing()}}}}, options);
  ASSERT_TRUE(timings);
  const Timing& t = timings->front();
  EXPECT_TRUE(t.converged);
  EXPECT_LE(t.us_noise, options.noise * t.median_us);
  EXPECT_GT(t.samples, options.min_samples);
}

TEST(Timer, TheCapEndsItUnsettled) {
  const auto wavering = [](int call) { return call % 2 == 0 ? 50.0 : 150.0; };
  ScriptedStopwatch watch({wavering});
  TimerOptions options = plain();
  options.noise = 1e-9;
  options.max_total_us = 1000;
  const auto timings = time_interleaved(watch, {{{"a", {nothing()}}}}, options);
  ASSERT_TRUE(timings);
  EXPECT_FALSE(timings->front().converged);
  EXPECT_EQ(timings->front().samples, 10U);
}

TEST(Timer, TheCapWaitsForThreeSamples) {
  ScriptedStopwatch watch({[](int) { return 5000.0; }});
  TimerOptions options = plain();
  options.min_samples = 11;
  options.max_total_us = 1000;
  const auto timings = time_interleaved(watch, {{{"a", {nothing()}}}}, options);
  ASSERT_TRUE(timings);
  EXPECT_EQ(timings->front().samples, 3U);
}

TEST(Timer, RunsLongEnough) {
  ScriptedStopwatch watch({[](int) { return 10.0; }});
  TimerOptions options = plain();
  options.min_total_us = 1000;
  const auto timings = time_interleaved(watch, {{{"a", {nothing()}}}}, options);
  ASSERT_TRUE(timings);
  EXPECT_EQ(timings->front().samples, 100U);
}

TEST(Timer, ErrorsComeThrough) {
  ScriptedStopwatch watch({[](int) { return 1.0; }});
  EXPECT_FALSE(time_interleaved(watch, {}, plain()));
  EXPECT_FALSE(time_interleaved(watch, {{{"a", {}}}}, plain()));
  auto cpu = timing::make_cpu_stopwatch();
  EXPECT_FALSE(cpu->prepare({}));
  const harness::Run failing = [](Stream) -> Status {
    return make_error(ErrorCode::kDevice, "the device is on fire");
  };
  const auto timings = time_interleaved(*cpu, {{{"a", {failing}}}}, plain());
  ASSERT_FALSE(timings);
  EXPECT_STREQ(timings.error().message, "the device is on fire");
}

TEST(Timer, TheCpuStopwatchMeasuresTime) {
  const auto rig = open_rig("cpu");
  ASSERT_TRUE(rig);
  auto watch = make_stopwatch(**rig);
  ASSERT_TRUE(watch);
  constexpr auto kNap = std::chrono::milliseconds(5);
  const harness::Run nap = [&](Stream) -> Status {
    std::this_thread::sleep_for(kNap);
    return {};
  };
  const auto handle = (*watch)->prepare({nap, nap});
  ASSERT_TRUE(handle);
  EXPECT_GE((*watch)->time_us(*handle).value(), 2 * std::chrono::microseconds(kNap).count());
}

TEST(Timer, RotationIsFourCachesWithinReason) {
  EXPECT_EQ(timing::rotation_copies(1000, 1000), 4U);
  EXPECT_EQ(timing::rotation_copies(1001, 1000), 4U);
  EXPECT_EQ(timing::rotation_copies(999, 1000), 5U);
  EXPECT_EQ(timing::rotation_copies(1 << 20, 0), 1U);
  EXPECT_EQ(timing::rotation_copies(0, 1 << 20), 1024U);
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_EQ(timing::rotation_copies(timing::kMaxRotationBytes / 2, huge), 2U);
  EXPECT_EQ(timing::rotation_copies(huge, huge), 1U);
}

// Weights and what lies beside them for each layer; of a training step everything.
TEST(Timer, ActivationsOfInferenceDoNotRotate) {
  const auto rotating = [](Op op, bool saves) {
    Problem p;
    p.op = op;
    p.save_g_u = saves;
    std::string out;
    for (int i = 0; i < kOperandCount; ++i) {
      if (timing::rotates(p, static_cast<Operand>(i))) out += std::to_string(i) + " ";
    }
    return out;
  };
  std::string weights;
  for (const Operand id : {Operand::kNormWeight, Operand::kWGate, Operand::kWUp, Operand::kWDown,
                           Operand::kBGate, Operand::kBUp, Operand::kBDown}) {
    weights += std::to_string(static_cast<int>(id)) + " ";
  }
  std::string all;
  for (int i = 0; i < kOperandCount; ++i) all += std::to_string(i) + " ";
  for (const Op op : {Op::kMlp, Op::kGateUp, Op::kDown}) EXPECT_EQ(rotating(op, false), weights);
  EXPECT_EQ(rotating(Op::kMlp, true), all);
  EXPECT_EQ(rotating(Op::kGateUp, true), all);
  for (const Op op : {Op::kGateMul, Op::kGateMulGrad, Op::kGateUpGrad, Op::kMlpGrad}) {
    EXPECT_EQ(rotating(op, false), all);
  }
}

TEST(Timer, AShortChainOfAGpuHasTheLayersOfAModel) {
  Device gpu;
  gpu.backend = Backend::kCuda;
  EXPECT_EQ(timing::chain_runs(8, 600, gpu), 32U);
  EXPECT_EQ(timing::chain_runs(9, 600, gpu), 36U);      // whole walks
  EXPECT_EQ(timing::chain_runs(8, 1000, gpu), 32U);     // four milliseconds
  EXPECT_EQ(timing::chain_runs(8, 1001, gpu), 24U);     // and no more
  EXPECT_EQ(timing::chain_runs(8, 50e3, gpu), 8U);      // one walk in any case
  EXPECT_EQ(timing::chain_runs(40, 200, gpu), 40U);     // enough
  EXPECT_EQ(timing::chain_runs(8, 0, gpu), 8U);         // no ceiling is known
  EXPECT_EQ(timing::chain_runs(8, 600, Device{}), 8U);  // a CPU starts nothing
}

}  // namespace
}  // namespace sluice::harness
