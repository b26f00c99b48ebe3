// SPDX-License-Identifier: Apache-2.0
// sluice verify: any case against the fp64 oracle, on any device, by any variant.
#include "harness/verify.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <memory>

#include "cli/cli.hpp"
#include "cli/verify_foreign.hpp"
#include "harness/case.hpp"
#include "harness/verify_steps.hpp"

namespace sluice::cli {
namespace {

struct VerifyArguments {
  std::vector<std::string> cases;
  std::string file;
  std::uint64_t seed = 0;
  bool all_variants = false;
  bool step = false;
  ForeignArguments foreign;
};

struct Tally {
  int passed = 0;
  int failed = 0;
  int refused = 0;
};

// One case by one variant. An error of the library ends the program's work with its exit code.
Expected<bool> verify_one(const harness::Case& c, harness::Rig& rig, const Options& options,
                          Progress& progress, Tally& tally) {
  progress.show(
      fmt::format("verifying {} ({} done)", harness::format_case(c), tally.passed + tally.failed));
  const auto report = harness::verify_case(c, rig, options);
  if (!report) return report.error();
  progress.clear();
  std::string text = report->text();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  fmt::print("{}\n", text);
  ++(report->passed() ? tally.passed : tally.failed);
  return report->passed();
}

// The same, each step of the plan by itself.
Expected<bool> verify_by_step(const harness::Case& c, harness::Rig& rig, const Options& options,
                              Progress& progress, Tally& tally) {
  progress.show(fmt::format("verifying the steps of {}", harness::format_case(c)));
  const auto report = harness::verify_steps(c, rig, options);
  if (!report) return report.error();
  progress.clear();
  fmt::print("{}", report->text());
  ++(report->passed() ? tally.passed : tally.failed);
  return report->passed();
}

Status verify_all_variants(const harness::Case& c, harness::Rig& rig, Options options, bool step,
                           Progress& progress, Tally& tally) {
  for (const std::string& name : variant_names(rig.device().backend)) {
    options.variant = name.c_str();
    options.config = nullptr;
    const auto result = (step ? verify_by_step : verify_one)(c, rig, options, progress, tally);
    if (result) continue;
    if (result.error().code != ErrorCode::kUnsupported) return result.error();
    progress.clear();
    fmt::print("skip {}: {}\n", harness::format_case(c), result.error().text());
    ++tally.refused;
  }
  return {};
}

int verify(const VerifyArguments& args, const Context& context) {
  const bool foreign = context.foreign != nullptr || !args.foreign.library.empty();
  std::vector<std::string> texts = args.cases;
  if (!args.file.empty()) {
    const auto lines = read_problem_file(args.file);
    if (!lines) return fail(lines.error());
    texts.insert(texts.end(), lines->begin(), lines->end());
  }
  if (texts.empty() && !foreign) return fail(kUsage, "verify: wanted a case or --file");
  std::vector<harness::Case> cases;
  for (const std::string& text : texts) {
    const auto parsed = harness::parse_case(text);
    if (!parsed) return fail(kUsage, fmt::format("{}: {}", text, parsed.error().text()));
    cases.push_back(*parsed);
    if (args.seed != 0) cases.back().seed = args.seed;
  }
  if (foreign) return verify_foreign(args.foreign, cases, args.file, args.seed, context);
  const auto rig = harness::open_rig(context.device, context.limits());
  if (!rig) return fail_device(rig.error(), context.device);
  if (const Status s = check_device_options(context, (*rig)->device().backend); !s) {
    return fail(s.error());
  }

  const auto scheduler = open_scheduler(context, (*rig)->device());
  if (!scheduler) return fail(scheduler.error());
  const Options options = context.options(scheduler->get());

  Progress progress(context.quiet);
  Tally tally;
  for (const harness::Case& c : cases) {
    Status status;
    if (args.all_variants) {
      status = verify_all_variants(c, **rig, options, args.step, progress, tally);
    } else if (const auto one =
                   (args.step ? verify_by_step : verify_one)(c, **rig, options, progress, tally);
               !one) {
      status = one.error();
    }
    if (!status) {
      progress.clear();
      return fail(exit_code(status.error()),
                  fmt::format("{}: {}", harness::format_case(c), status.error().text()));
    }
  }
  progress.clear();
  if (tally.passed + tally.failed + tally.refused > 1) {
    fmt::print("{} passed, {} failed, {} refused\n", tally.passed, tally.failed, tally.refused);
  }
  if (tally.failed > 0) return kCheckFailed;
  return tally.passed > 0 ? kOk : fail(kUnsupported, "verify: no variant takes any of the cases");
}

}  // namespace

void add_verify(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand(
      "verify", "Check problems against the fp64 oracle: values, stray writes, same bits twice");
  const auto args = std::make_shared<VerifyArguments>();
  verb->add_option("case", args->cases,
                   "Problems, such as 33x576x1536:fp16:gelu_tanh:concat; of foreign kernels the "
                   "tests' own where none is given");
  verb->add_option("--file", args->file, "Problems from a file, one a line, # for comments")
      ->check(named());
  verb->add_option("--seed", args->seed, "Of the data; overrides the cases' own")
      ->check(integer(1, std::numeric_limits<std::uint64_t>::max()));
  add_device_option(*verb, context);
  CLI::Option* const library = add_foreign_options(*verb, args->foreign, context);
  if (library != nullptr) {  // else Sluice's own kernels are not asked
    CLI::Option* const all = verb->add_flag("--all-variants", args->all_variants,
                                            "By every variant of the device in turn");
    CLI::Option* const step = verb->add_flag(
        "--step", args->step,
        "Each step of the plan on the inputs that it really has; names the first wrong one");
    add_kernel_options(*verb, context);
    for (const char* single : {"--variant", "--config", "--tune-cache"}) {
      all->excludes(verb->get_option(single));
      library->excludes(verb->get_option(single));
    }
    library->excludes(all)->excludes(step)->excludes(verb->get_option("--threads"));
  }
  verb->callback([args, &context] { context.exit_code = verify(*args, context); });
}

}  // namespace sluice::cli
