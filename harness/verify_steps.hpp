// SPDX-License-Identifier: Apache-2.0
// Step by step: each step of a plan runs on the inputs that it really has, and its outputs are
// compared with fp64 of those, so that the first step that is wrong is named. What `sluice verify
// --step` calls.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "harness/verify.hpp"

namespace sluice::harness {

struct StepReport {
  std::string name;    ///< "gate_up"
  std::string kernel;  ///< "cuda.sm90_gemm"
  bool skipped = false;
  std::vector<Comparison> outputs;
  [[nodiscard]] bool passed() const noexcept;
};

struct StepsReport {
  Case test_case{};
  std::string variant;
  std::string config;
  std::vector<StepReport> steps;

  [[nodiscard]] bool passed() const noexcept { return first_wrong() < 0; }
  /// The first step that did not pass; -1 for none.
  [[nodiscard]] int first_wrong() const noexcept;
  /// A line a step and one for each of its outputs; the first wrong step last, by name.
  [[nodiscard]] std::string text() const;
};

/// Called behind each step that ran, before its outputs are read: a test plants faults there.
using AfterStep = std::function<Status(int step, const StepCall& call, Rig& rig)>;

/// Errors are those of plan(), run_step() and the rig; a wrong result is a report that did not
/// pass. A case with m = 0 has no steps to report.
[[nodiscard]] Expected<StepsReport> verify_steps(const Case& c, Rig& rig,
                                                 const Options& options = {},
                                                 const VerifyOptions& verify = {},
                                                 const AfterStep& after_step = {});

/// The same by a plan of the case that the caller made.
[[nodiscard]] Expected<StepsReport> verify_steps(const Case& c, Rig& rig, const Plan& plan,
                                                 const VerifyOptions& verify = {},
                                                 const AfterStep& after_step = {});

}  // namespace sluice::harness
