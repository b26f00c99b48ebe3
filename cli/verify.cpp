// SPDX-License-Identifier: Apache-2.0
// sluice verify: any case against the fp64 oracle, on any device, by any variant.
#include "harness/verify.hpp"

#include <fmt/format.h>

#include <memory>

#include "cli/cli.hpp"
#include "harness/case.hpp"

namespace sluice::cli {
namespace {

struct Arguments {
  std::vector<std::string> cases;
  std::string file;
  std::uint64_t seed = 0;
  bool all_variants = false;
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

Status verify_all_variants(const harness::Case& c, harness::Rig& rig, Options options,
                           Progress& progress, Tally& tally) {
  for (const std::string& name : variant_names(rig.device().backend)) {
    options.variant = name.c_str();
    options.config = nullptr;
    const auto result = verify_one(c, rig, options, progress, tally);
    if (result) continue;
    if (result.error().code != ErrorCode::kUnsupported) return result.error();
    progress.clear();
    fmt::print("skip {}: {}\n", harness::format_case(c), result.error().text());
    ++tally.refused;
  }
  return {};
}

int verify(const Arguments& args, const Context& context) {
  std::vector<std::string> texts = args.cases;
  if (!args.file.empty()) {
    const auto lines = read_problem_file(args.file);
    if (!lines) return fail(lines.error());
    texts.insert(texts.end(), lines->begin(), lines->end());
  }
  if (texts.empty()) return fail(kUsage, "verify: wanted a case or --file");
  std::vector<harness::Case> cases;
  for (const std::string& text : texts) {
    const auto parsed = harness::parse_case(text);
    if (!parsed) return fail(kUsage, fmt::format("{}: {}", text, parsed.error().text()));
    cases.push_back(*parsed);
    if (args.seed != 0) cases.back().seed = args.seed;
  }
  const auto rig = harness::open_rig(context.device, context.max_simd.c_str());
  if (!rig) return fail_device(rig.error(), context.device);

  const auto scheduler = open_scheduler(context, (*rig)->device());
  if (!scheduler) return fail(scheduler.error());
  const Options options = context.options(scheduler->get());

  Progress progress(context.quiet);
  Tally tally;
  for (const harness::Case& c : cases) {
    Status status;
    if (args.all_variants) {
      status = verify_all_variants(c, **rig, options, progress, tally);
    } else if (const auto one = verify_one(c, **rig, options, progress, tally); !one) {
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
  const auto args = std::make_shared<Arguments>();
  verb->add_option("case", args->cases, "Problems, such as 33x576x1536:fp16:gelu_tanh:concat");
  verb->add_option("--file", args->file, "Problems from a file, one a line, # for comments");
  verb->add_option("--seed", args->seed, "Of the data; overrides the cases' own")
      ->check(at_least(1));
  verb->add_flag("--all-variants", args->all_variants, "By every variant of the device in turn");
  add_device_option(*verb, context);
  add_kernel_options(*verb, context);
  verb->callback([args, &context] { context.exit_code = verify(*args, context); });
}

}  // namespace sluice::cli
