// SPDX-License-Identifier: Apache-2.0
#include "harness/foreign.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "sluice/to_c.hpp"

namespace sluice::harness {
namespace {

static_assert(SLUICE_VERSION_MAJOR == 0 && SLUICE_VERSION_MINOR == 2,
              "a new SONAME: raise SLUICE_FOREIGN_VERSION if a struct of sluice.h broke");

// Strides as they are, none of them contiguous.
Layouts resolved(const Problem& p) {
  const auto specs = operand_specs(p);
  const auto of = [&](Operand id) { return specs[static_cast<std::size_t>(id)].layout; };
  return {.x = of(Operand::kX),
          .w_gate_up = of(Operand::kWGate),
          .w_down = of(Operand::kWDown),
          .g_u = of(Operand::kG),
          .h = of(Operand::kH),
          .y = of(Operand::kY),
          .residual = of(Operand::kResidual),
          .x_sum = of(Operand::kXSum),
          .dy = of(Operand::kDy),
          .dh = of(Operand::kDh),
          .dg_du = of(Operand::kDg),
          .dx = of(Operand::kDx),
          .dw_gate_up = of(Operand::kDwGate),
          .dw_down = of(Operand::kDwDown)};
}

// The arguments of the calls for one case; what a function leaves in them is not read again.
struct Call {
  sluice_foreign_function* function = nullptr;
  sluice_problem problem{};
  sluice_operands operands{};
  sluice_device device{};
};

std::string message_of(sluice_status code, sluice_error& error) {
  error.message[sizeof(error.message) - 1] = '\0';
  if (error.message[0] != '\0') return error.message;
  return code == SLUICE_UNSUPPORTED ? "not supported" : fmt::format("code {}", code);
}

// One call and all that it left, unless the report says that there is nothing to look at.
Expected<std::vector<Comparison>> call_once(Call call, OperandSet& set, Rig& rig,
                                            const std::vector<ExpectedOutput>& expected,
                                            ForeignReport& report) {
  sluice_error error{};
  const sluice_status code =
      call.function(&call.problem, &call.operands, &call.device, rig.stream(), &error);
  const Status done = rig.synchronize();
  if (!done) {
    return make_error(ErrorCode::kInternal, "the device failed after the call: %s",
                      done.error().message);
  }
  if (code == SLUICE_UNSUPPORTED) {
    report.skipped = message_of(code, error);
    return std::vector<Comparison>{};
  }
  if (code != SLUICE_OK) {
    report.error = message_of(code, error);
    return std::vector<Comparison>{};
  }
  if (const Status looked = set.check_canaries(); !looked) {
    if (looked.error().code != ErrorCode::kInternal) return looked.error();
    report.stray_write = looked.error().text();
  }
  return compare_outputs(set, expected);
}

}  // namespace

Expected<ForeignKernels> open_foreign(const std::string& path) {
  const auto wrong = [&](const std::string& what) {
    return make_error(ErrorCode::kInvalidArgument, "%s: %s", path.c_str(), what.c_str());
  };
  std::error_code ignored;
  // The loader would look for a name without a slash in its own folders.
  const std::filesystem::path file = std::filesystem::absolute(path, ignored);
  if (!std::filesystem::is_regular_file(file, ignored)) return wrong("no such file");
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return wrong(fmt::format("cannot be loaded: {}", dlerror()));
  auto* const version =
      reinterpret_cast<decltype(&sluice_foreign_version)>(dlsym(library, "sluice_foreign_version"));
  if (version == nullptr) {
    return wrong("has no sluice_foreign_version; sluice/foreign.h says what a library exports");
  }
  if (const std::int32_t got = version(); got != SLUICE_FOREIGN_VERSION) {
    return wrong(
        fmt::format("sluice_foreign_version is {}, wanted {}", got, SLUICE_FOREIGN_VERSION));
  }
  ForeignKernels kernels;
  bool any = false;
  for (int i = 0; i < kOpCount; ++i) {
    const std::string name = fmt::format("sluice_foreign_{}", to_string(static_cast<Op>(i)));
    auto* const function = reinterpret_cast<sluice_foreign_function*>(dlsym(library, name.c_str()));
    kernels.functions[static_cast<std::size_t>(i)] = function;
    any = any || function != nullptr;
  }
  if (!any) return wrong("has no operator, such as sluice_foreign_mlp");
  return kernels;
}

Expected<ForeignReport> verify_foreign(const Case& c, Rig& rig, const ForeignKernels& kernels,
                                       const VerifyOptions& verify) {
  ForeignReport report;
  report.test_case = c;
  Problem problem = c.problem;
  problem.layout = resolved(problem);
  Call call{.function = kernels.find(c.problem.op),
            .problem = to_c(problem),
            .device = to_c(rig.device())};
  if (call.function == nullptr) {
    report.skipped = fmt::format("has no sluice_foreign_{}", to_string(c.problem.op));
    return report;
  }
  const auto set = OperandSet::make(c, rig);
  if (!set) return set.error();
  call.operands = to_c((*set)->operands());
  const auto expected = expected_outputs(**set, verify);
  if (!expected) return expected.error();
  const auto finished = [&] {
    return !report.skipped.empty() || !report.error.empty() || !report.stray_write.empty();
  };
  auto first = call_once(call, **set, rig, *expected, report);
  if (!first) return first.error();
  report.outputs = *first;
  if (finished()) return report;
  const auto bits = output_bits(**set);
  if (!bits) return bits.error();
  SLUICE_TRY((*set)->reset_outputs(Poison::kZero));
  const auto second = call_once(call, **set, rig, *expected, report);
  if (!second) return second.error();
  if (!report.skipped.empty()) {
    report.error = "not supported on the second call: " + std::move(report.skipped);
    report.skipped.clear();
  }
  if (finished()) return report;
  for (std::size_t i = 0; i < report.outputs.size(); ++i) {
    if (report.outputs[i].passed()) report.outputs[i] = (*second)[i];
  }
  const auto changed = changed_output(**set, *bits);
  if (!changed) return changed.error();
  report.changed = *changed;
  return report;
}

bool ForeignReport::right() const noexcept {
  return skipped.empty() && error.empty() && stray_write.empty() &&
         (!outputs.empty() || test_case.problem.m == 0) &&
         std::all_of(outputs.begin(), outputs.end(),
                     [](const Comparison& output) { return output.failed == 0; });
}

bool ForeignReport::passed() const noexcept {
  return right() && std::all_of(outputs.begin(), outputs.end(),
                                [](const Comparison& output) { return output.passed(); });
}

std::string ForeignReport::text(const std::string& command) const {
  const std::string name = format_case(test_case);
  if (!skipped.empty()) return fmt::format("skipped {}: {}\n", name, skipped);
  std::string out = fmt::format("{} {}\n", passed() ? "passed" : "FAILED", name);
  if (!error.empty()) out += "  error: " + error + "\n";
  for (const Comparison& output : outputs) out += "  " + to_string(output) + "\n";
  if (!stray_write.empty()) out += "  stray write: " + stray_write + "\n";
  if (!changed.empty()) out += "  note: other bits on the second call: " + changed + "\n";
  if (!passed()) out += fmt::format("  repeat with: {} '{}'\n", command, name);
  return out;
}

}  // namespace sluice::harness
