// SPDX-License-Identifier: Apache-2.0
// What plan() chooses, and why, in words that tests compare.
#pragma once

#include <string>
#include <string_view>

#include "harness/case.hpp"
#include "sluice/plan.hpp"

namespace sluice::gpu {

[[nodiscard]] inline Problem problem_of(const std::string& text) {
  return harness::parse_case(text).value().problem;
}

/// "cuda.sm90 gate_up=pp128x192c2g8,down=lt0", or the error's message.
[[nodiscard]] inline std::string chosen(const std::string& text, const Device& device,
                                        const Options& options = {}) {
  const auto made = plan(problem_of(text), device, options);
  return made ? std::string(made->variant_name()) + " " + made->config_name()
              : std::string(made.error().message);
}

/// The recipe's name alone, or the error's message.
[[nodiscard]] inline std::string variant_of(const std::string& text, const Device& device) {
  const auto made = plan(problem_of(text), device);
  return made ? made->variant_name() : made.error().message;
}

/// Why a recipe refuses the problem; empty where it takes it.
[[nodiscard]] inline std::string reason_of(const char* variant, const Problem& problem,
                                           const Device& device) {
  for (const Refusal& row : explain(problem, device).variants) {
    if (row.variant == variant) return row.reason;
  }
  return std::string("no ") + variant + " in the table";
}

[[nodiscard]] inline std::string reason_of(const char* variant, const std::string& text,
                                           const Device& device) {
  return reason_of(variant, problem_of(text), device);
}

/// A step of the choice; one without a name where there is none such.
[[nodiscard]] inline ExplainedStep step_of(const std::string& text, const Device& device,
                                           std::string_view name, const Options& options = {}) {
  for (const ExplainedStep& step : explain(problem_of(text), device, options).steps) {
    if (step.name == name) return step;
  }
  return {};
}

/// "norm:cuda.norm gate_up:cuda.sm90_gemm down:cuda.cublaslt", or the error's message.
[[nodiscard]] inline std::string steps_of(const std::string& text, const Device& device,
                                          const Options& options = {}) {
  const Explanation why = explain(problem_of(text), device, options);
  if (why.error) return why.error->message;
  std::string out;
  for (const ExplainedStep& step : why.steps) {
    out += (out.empty() ? "" : " ") + step.name + ":" + step.kernel;
  }
  return out;
}

}  // namespace sluice::gpu
