// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_foreign.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "harness/foreign.hpp"
#include "harness/provenance.hpp"
#include "harness/results.hpp"
#include "harness/test_cases.hpp"

namespace sluice::cli {
namespace {

using harness::ForeignReport;
using nlohmann::ordered_json;

enum Outcome : std::uint8_t { kPassed, kFailed, kSkipped };
constexpr std::array<const char*, 3> kOutcomes = {"passed", "failed", "skipped"};
using Counts = std::array<int, 3>;  // by Outcome

// Special values of the tests' own cases may leave nothing to compare.
Outcome outcome_of(const ForeignReport& report, bool own) {
  if (!report.skipped.empty()) return kSkipped;
  const bool special = own && report.test_case.fill == harness::Fill::kSpecial;
  return (special ? report.right() : report.passed()) ? kPassed : kFailed;
}

// What repeats a case once its text is added.
std::string command_of(const ForeignArguments& args, const Context& context) {
  std::string out = context.foreign != nullptr
                        ? context.argv[0]
                        : fmt::format("sluice verify --foreign {}", args.library);
  if (args.unfused) out += " --unfused";
  if (context.device != "auto") out += " --device " + context.device;
  return out;
}

ordered_json to_json(const ForeignReport& report, Outcome outcome) {
  double worst = 0;
  double rel_err = 0;
  for (const harness::Comparison& output : report.outputs) {
    worst = std::max(worst, output.worst.ratio);
    rel_err = std::max(rel_err, output.mean_relative_error);
  }
  const bool ran = !report.outputs.empty();
  const auto number = [&](double value) {
    return ran && std::isfinite(value) ? ordered_json(value) : ordered_json();
  };
  const std::string& first = report.skipped.empty() ? report.error : report.skipped;
  const std::string& why = first.empty() ? report.stray_write : first;
  return {{"case", harness::format_case(report.test_case)},
          {"op", to_string(report.test_case.problem.op)},
          {"outcome", kOutcomes[outcome]},
          {"reason", why.empty() ? ordered_json() : ordered_json(why)},
          {"bound_share", number(worst)},
          {"rel_err", number(rel_err)}};
}

void print_counts(const std::array<Counts, kOpCount>& counts) {
  Table table;
  table.column("operator", Align::kLeft);
  for (const char* title : kOutcomes) table.column(title, Align::kRight);
  for (int i = 0; i < kOpCount; ++i) {
    const Counts& c = counts[static_cast<std::size_t>(i)];
    if (c == Counts{}) continue;
    table.row({to_string(static_cast<Op>(i)), std::to_string(c[kPassed]),
               std::to_string(c[kFailed]), std::to_string(c[kSkipped])});
  }
  table.print();
}

std::vector<harness::Case> own_cases(const harness::ForeignKernels& kernels, std::uint64_t seed) {
  std::vector<harness::Case> cases;
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<Op>(i);
    if (kernels.find(op) == nullptr) continue;
    for (harness::Case& c : harness::operator_cases(op)) {
      if (seed != 0) c.seed = seed;
      cases.push_back(c);
    }
  }
  return cases;
}

Status write_json(const std::string& path, const ordered_json& checks, const harness::Rig& rig,
                  const Context& context) {
  if (path.empty()) return {};
  const harness::Meta meta =
      harness::make_meta(rig.device(), harness::Ceilings{}, context.argc, context.argv);
  return harness::write_text(path, harness::results_text(meta, {{"checks", checks}}));
}

}  // namespace

CLI::Option* add_foreign_options(CLI::App& verb, ForeignArguments& args, const Context& context) {
  CLI::Option* library = nullptr;
  if (context.foreign == nullptr) {
    library = verb.add_option("--foreign", args.library,
                              "Check this shared library's kernels, not Sluice's: what it exports "
                              "by sluice/foreign.h")
                  ->check(named());
  }
  for (CLI::Option* option :
       {verb.add_flag("--unfused", args.unfused,
                      "Of foreign kernels: allow the roundings of a program that stores the result "
                      "of every operator"),
        verb.add_option("--json", args.json,
                        "Of foreign kernels: write JSON to this file, - for standard output")
            ->check(named())}) {
    if (library != nullptr) option->needs(library);
  }
  return library;
}

int verify_foreign(const ForeignArguments& args, std::vector<harness::Case> cases,
                   const std::string& file, std::uint64_t seed, const Context& context) {
  if (const Status writable = harness::check_writable(args.json, {args.library, file}); !writable) {
    return fail(writable.error());
  }
  // Before the library, whose runtimes may choose a device of their own.
  const auto rig = harness::open_rig(context.device, context.limits());
  if (!rig) return fail_device(rig.error(), context.device);
  if (const Status s = check_device_options(context, (*rig)->device().backend); !s) {
    return fail(s.error());
  }
  harness::ForeignKernels kernels;
  if (context.foreign != nullptr) {
    kernels = *context.foreign;
  } else {
    const auto opened = harness::open_foreign(args.library);
    if (!opened) return fail(opened.error());
    kernels = *opened;
  }
  const bool own = cases.empty();
  if (own) cases = own_cases(kernels, seed);
  harness::VerifyOptions verify;
  if (args.unfused) verify.rounds = harness::Rounds::kUnfused;

  const std::string command = command_of(args, context);
  const bool quiet = args.json == "-";
  Progress progress(context.quiet);
  std::array<Counts, kOpCount> counts{};
  Counts all{};
  ordered_json checks = ordered_json::array();
  for (const harness::Case& c : cases) {
    progress.show(fmt::format("verifying {} ({} of {} done)", harness::format_case(c),
                              checks.size(), cases.size()));
    const auto report = harness::verify_foreign(c, **rig, kernels, verify);
    if (!report) {
      progress.clear();
      return fail(exit_code(report.error()),
                  fmt::format("{}: {}", harness::format_case(c), report.error().text()));
    }
    const Outcome outcome = outcome_of(*report, own);
    ++all[outcome];
    ++counts[static_cast<std::size_t>(c.problem.op)][outcome];
    checks.push_back(to_json(*report, outcome));
    if (quiet || (own && outcome == kPassed)) continue;
    progress.clear();
    fmt::print("{}", report->text(command));
  }
  progress.clear();
  if (const Status written = write_json(args.json, checks, **rig, context); !written) {
    return fail(written.error());
  }
  if (!quiet && cases.size() > 1) print_counts(counts);
  if (all[kFailed] > 0) return kCheckFailed;
  return all[kPassed] > 0 ? kOk : fail(kUnsupported, "verify: every case was skipped");
}

}  // namespace sluice::cli
