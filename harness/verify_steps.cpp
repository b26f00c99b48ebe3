// SPDX-License-Identifier: Apache-2.0
#include "harness/verify_steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "harness/oracle.hpp"

namespace sluice::harness {
namespace {

// A matrix of the device on the host, with its layout.
struct Copy {
  std::vector<std::max_align_t> bytes;
  [[nodiscard]] char* data() noexcept { return reinterpret_cast<char*>(bytes.data()); }
};

Expected<Copy> download(const OperandSpec& spec, const void* from, Rig& rig) {
  const auto size = static_cast<std::size_t>(extent_bytes(spec));
  Copy copy;
  copy.bytes.resize(size / sizeof(std::max_align_t) + 1);
  SLUICE_TRY(rig.download(copy.data(), from, size));
  return copy;
}

bool is_written(const OperandSpec& spec) {
  return spec.access == Access::kWrite || spec.access == Access::kReadWrite;
}

// What the step reads, as it is before the step runs.
class Inputs {
 public:
  Status read(const StepCall& call, Rig& rig) {
    for (const OperandSpec& spec : operand_specs(call.problem)) {
      const void* const pointer = address(call.operands, spec.id);
      const bool is_read = spec.access == Access::kRead || spec.access == Access::kReadWrite;
      if (!is_read || pointer == nullptr) continue;
      auto copy = download(spec, pointer, rig);
      if (!copy) return copy.error();
      Copy& kept = copies_[static_cast<std::size_t>(spec.id)];
      kept = std::move(*copy);
      set_address(operands_, spec.id, kept.data());
    }
    return {};
  }
  [[nodiscard]] const Operands& operands() const noexcept { return operands_; }

 private:
  std::array<Copy, kOperandCount> copies_;
  Operands operands_{};
};

Status compare(const StepCall& call, const Case& c, const VerifyOptions& verify,
               const Inputs& inputs, Rig& rig, StepReport& report) {
  Oracle oracle(call.problem, inputs.operands());
  for (const OperandSpec& spec : operand_specs(call.problem)) {
    const void* const pointer = address(call.operands, spec.id);
    if (!is_written(spec) || pointer == nullptr) continue;
    auto got = download(spec, pointer, rig);
    if (!got) return got.error();
    const HostMatrix matrix{spec, got->data()};
    const auto expected =
        expected_output(call.problem, spec, c.seed, oracle, verify, verify.max_operations / 2);
    Comparator comparator(spec.id, spec.dtype);
    for (const ExpectedElement& e : expected.elements) {
      comparator.add(e.row, e.col, e.value, matrix.at(e.row, e.col));
    }
    report.outputs.push_back(comparator.result());
  }
  return {};
}

}  // namespace

bool StepReport::passed() const noexcept {
  return std::all_of(outputs.begin(), outputs.end(),
                     [](const Comparison& c) { return c.failed == 0; });
}

int StepsReport::first_wrong() const noexcept {
  const auto wrong = std::find_if(steps.begin(), steps.end(),
                                  [](const StepReport& step) { return !step.passed(); });
  return wrong == steps.end() ? -1 : static_cast<int>(wrong - steps.begin());
}

std::string StepsReport::text() const {
  std::string out = fmt::format("{} {}: {}, config {}, {} step{}\n", passed() ? "passed" : "FAILED",
                                format_case(test_case), variant, config, steps.size(),
                                steps.size() == 1 ? "" : "s");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const StepReport& step = steps[i];
    out += fmt::format("  step {} {} by {}{}\n", i + 1, step.name, step.kernel,
                       step.skipped ? ": skipped, nobody reads it" : "");
    for (const Comparison& c : step.outputs) out += "    " + to_string(c) + "\n";
  }
  if (passed()) return out;
  const StepReport& wrong = steps[static_cast<std::size_t>(first_wrong())];
  const auto output = std::find_if(wrong.outputs.begin(), wrong.outputs.end(),
                                   [](const Comparison& c) { return c.failed > 0; });
  out +=
      fmt::format("  the first wrong step is {}, {} by {}: {} at ({}, {})\n", first_wrong() + 1,
                  wrong.name, wrong.kernel, operand_spec(test_case.problem, output->operand).name,
                  output->worst.row, output->worst.col);
  return out;
}

Expected<StepsReport> verify_steps(const Case& c, Rig& rig, const Options& options,
                                   const VerifyOptions& verify, const AfterStep& after_step) {
  const auto made = plan(c.problem, rig.device(), options);
  if (!made) return made.error();
  return verify_steps(c, rig, *made, verify, after_step);
}

Expected<StepsReport> verify_steps(const Case& c, Rig& rig, const Plan& plan,
                                   const VerifyOptions& verify, const AfterStep& after_step) {
  StepsReport report{c, plan.variant_name(), plan.config_name(), {}};
  if (c.problem.m == 0) return report;
  const auto set = OperandSet::make(c, rig);
  if (!set) return set.error();
  const auto memory = make_workspace(plan, rig);
  if (!memory) return memory.error();
  const Operands& operands = (*set)->operands();
  for (int i = 0; i < plan.step_count; ++i) {
    const auto call = step_call(plan, i, operands, memory->workspace);
    if (!call) return call.error();
    StepReport& step = report.steps.emplace_back();
    step.name = call->name;
    step.kernel = call->kernel;
    step.skipped = call->skipped;
    if (call->skipped) continue;
    Inputs inputs;
    SLUICE_TRY(inputs.read(*call, rig));
    SLUICE_TRY(run_step(plan, i, operands, memory->workspace, rig.stream()));
    SLUICE_TRY(rig.synchronize());
    if (after_step) SLUICE_TRY(after_step(i, *call, rig));
    SLUICE_TRY(compare(*call, c, verify, inputs, rig, step));
  }
  return report;
}

}  // namespace sluice::harness
