// SPDX-License-Identifier: Apache-2.0
// Tests of one schedule of the Hopper GEMM: every config of it against the oracle and cuda.simt,
// two streams at once, layers chained by programmatic launches.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "job.hpp"

namespace sluice::gpu {

/// Small integers through the identity gate have one right answer: these configs of cuda.sm90 must
/// give the bits of cuda.simt in every element.
inline void expect_exact(const std::string& text, const std::vector<std::string>& configs) {
  const auto c = harness::parse_case(text + ":identity:fill=integers").value();
  auto set = std::move(harness::OperandSet::make(c, rig()).value());
  const std::string expected = run_once(*set, "cuda.simt", nullptr);
  for (const std::string& config : configs) {
    const std::string got = run_once(*set, "cuda.sm90", config.c_str());
    ASSERT_EQ(got.size(), expected.size());
    const auto [at, other] = std::mismatch(expected.begin(), expected.end(), got.begin());
    ASSERT_EQ(at - expected.begin(), static_cast<std::ptrdiff_t>(expected.size()))
        << text << " " << config << ": first wrong byte";
    EXPECT_OK(set->check_canaries());
  }
}

class Sm90Schedule : public testing::Test {
 protected:
  /// `marks`: what names of the schedule's configs contain.
  explicit Sm90Schedule(std::vector<std::string> marks) : marks_(std::move(marks)) {}

  void SetUp() override {
    if (rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs a Hopper GPU";
  }

  /// The configs of a problem in which a launch is of the schedule.
  [[nodiscard]] std::vector<std::string> configs_of(const Problem& problem) const {
    std::vector<std::string> names = config_names(kVariant, problem, rig().device());
    std::erase_if(names, [&](const std::string& name) {
      return std::ranges::none_of(
          marks_, [&](const std::string& mark) { return name.find(mark) != std::string::npos; });
    });
    EXPECT_FALSE(names.empty());
    return names;
  }
  [[nodiscard]] std::vector<std::string> configs_of(const std::string& text) const {
    return configs_of(harness::parse_case(text).value().problem);
  }

  static Options forced(const std::string& config) {
    Options options;
    options.variant = kVariant;
    options.config = config.c_str();
    return options;
  }

  /// Every config against the oracle.
  void verify_all(const std::string& text) const {
    const auto c = harness::parse_case(text).value();
    harness::Verification verification(c, rig(), {.max_operations = 1e7});
    for (const std::string& config : configs_of(c.problem)) {
      const auto report = verification.run(forced(config));
      ASSERT_OK(report) << text << " " << config;
      EXPECT_TRUE(report->passed()) << report->text();
    }
  }

  void expect_exact(const std::string& text) const { gpu::expect_exact(text, configs_of(text)); }

  /// Two streams at once: CTAs of a launch start while others of it wait for room, in any order,
  /// which nothing may depend on.
  static void expect_same_bits_on_two_streams(const std::string& text, const std::string& config) {
    Job jobs[2] = {make_job(text, forced(config)), make_job(text, forced(config))};
    StreamGuard streams[2];
    std::string first[2];
    for (int i = 0; i < 2; ++i) {
      ASSERT_OK(jobs[i].run(streams[i].stream));
      ASSERT_CUDA(cudaStreamSynchronize(streams[i].stream));
      first[i] = bits_of(*jobs[i].set);
      ASSERT_OK(jobs[i].set->reset_outputs());
    }
    for (int r = 0; r < 200; ++r) ASSERT_OK(jobs[r % 2].run(streams[r % 2].stream));
    for (int i = 0; i < 2; ++i) {
      ASSERT_CUDA(cudaStreamSynchronize(streams[i].stream));
      EXPECT_TRUE(bits_of(*jobs[i].set) == first[i]) << text << " " << config;
    }
  }

  /// Layers of a model, x of each being y of the one before, programmatic launches one behind the
  /// other, against the same layers with a wait after each: a launch that reads too early changes
  /// bits.
  static void expect_chains(const std::string& text, const std::string& config) {
    constexpr int kLayers = 12;
    Job jobs[2] = {make_job(text, forced(config)), make_job(text, forced(config))};
    StreamGuard guard;
    std::string bits[2];
    for (const bool wait : {true, false}) {
      for (int i = 0; i < kLayers; ++i) {
        Operands operands = jobs[i % 2].set->operands();
        if (i > 0) operands.x = jobs[(i + 1) % 2].set->operands().y;
        ASSERT_OK(sluice::run(jobs[0].plan, operands, jobs[0].workspace.workspace, guard.stream));
        if (wait) {
          ASSERT_CUDA(cudaStreamSynchronize(guard.stream));
        }
      }
      ASSERT_CUDA(cudaStreamSynchronize(guard.stream));
      bits[wait ? 0 : 1] = bits_of(*jobs[(kLayers - 1) % 2].set);
    }
    EXPECT_TRUE(bits[0] == bits[1]) << config;
  }

 private:
  static constexpr const char* kVariant = "cuda.sm90";
  std::vector<std::string> marks_;
};

}  // namespace sluice::gpu
