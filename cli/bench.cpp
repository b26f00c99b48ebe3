// SPDX-License-Identifier: Apache-2.0
// sluice bench: the operator against its baselines, on shapes, model presets or a checkpoint.
#include "harness/bench.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <set>

#include "cli/findings.hpp"
#include "cli/random.hpp"
#include "cli/work.hpp"
#include "harness/checkpoint_bench.hpp"
#include "harness/checkpoint_files.hpp"
#include "harness/provenance.hpp"
#include "harness/regret.hpp"

namespace sluice::cli {
namespace {

struct BenchArguments {
  WorkArguments work;
  RandomArguments random;
  int layers = 0;
  std::string pass = "fwd";
  bool quick = false;
  bool no_ceilings = false;
  double milliseconds = 0;
  std::vector<std::string> baselines;
  std::string json;
};

// `sweep`: a look at each kernel. Random shapes that turn out too large are listed and left out.
Status bench_jobs(const std::vector<Job>& jobs, harness::Rig& rig,
                  const harness::Ceilings& ceilings, harness::BenchOptions options, bool sweep,
                  const RandomArguments& random, Progress& progress, Findings& found) {
  const bool skips = random.count > 0;
  std::set<std::string> checked;
  for (const Job& job : jobs) {
    // A sweep checks each kernel once a shape, whatever M: a check reads all weights back, a
    // second.
    const std::string text = harness::format_case(job.test_case);
    const auto made = plan(job.test_case.problem, rig.device(), options.plan);
    const std::string kernel =
        text.substr(text.find('x')) + " " + (made ? made->config_name() : "");
    options.check = !sweep || !checked.contains(kernel);
    options.model = job.model;
    options.tp = job.tp;
    auto result = harness::bench_case(job.test_case, rig, ceilings, options);
    if (!result && skips && result.error().code == ErrorCode::kOutOfMemory) {
      found.skipped.push_back(case_name(job.test_case));
      continue;
    }
    if (!result) {
      return make_error(result.error().code, "%s: %s", harness::format_case(job.test_case).c_str(),
                        result.error().message);
    }
    progress.clear();
    if (result->passed()) checked.insert(kernel);
    if (job.regret && result->passed()) {
      const auto regret = harness::measure_regret(job.test_case, rig, options);
      if (!regret) return regret.error();
      for (harness::Row& row : result->rows) {
        row.regret = regret->value;
        if (random.samples) row.samples = regret->samples;
      }
      progress.clear();
    }
    for (const harness::VerifyReport& check : result->checks) {
      if (!check.passed()) tell(fmt::format("{}\n", check.text()));
    }
    SLUICE_TRY(found.add(result->rows, result->passed(), result->converged));
  }
  return {};
}

Status bench_layers(const BenchArguments& args, harness::Rig& rig,
                    const harness::Ceilings& ceilings, const harness::BenchOptions& options,
                    bool quiet, Progress& progress, Findings& found) {
  const auto loaded = args.layers > 0 ? static_cast<std::size_t>(args.layers)
                                      : std::numeric_limits<std::size_t>::max();
  const auto checkpoint = harness::open_checkpoint(args.work.checkpoint, loaded);
  if (!checkpoint) return checkpoint.error();
  if (!quiet && checkpoint->assumed_gate) {
    tell(fmt::format("sluice: {}: names no activation, silu assumed\n", checkpoint->name));
  }
  harness::CheckpointOptions layered{options, args.layers};
  for (const std::int64_t m : args.work.tokens()) {
    const auto result = harness::bench_checkpoint(*checkpoint, m, rig, ceilings, layered);
    if (!result) return result.error();
    progress.clear();
    for (const harness::LayerCheck& check : result->checks) {
      found.checks.push_back(harness::to_json(check, checkpoint->name));
      if (!check.passed()) {
        tell(fmt::format("{} M = {} layer {}: {}\n", checkpoint->name, m, check.layer,
                         harness::to_string(check.fused)));
      }
    }
    SLUICE_TRY(found.add(result->rows, result->passed(), result->converged));
  }
  return {};
}

harness::BenchOptions bench_options(const BenchArguments& args, const Context& context,
                                    const Scheduler* scheduler) {
  harness::BenchOptions options;
  options.plan = context.options(scheduler);
  if (args.pass == "bwd") {
    options.pass = harness::Pass::kBackward;
  } else if (args.pass == "full") {
    options.pass = harness::Pass::kFull;
  } else if (args.pass == "decode") {
    options.pass = harness::Pass::kDecode;
  }
  options.verify.repeat = false;
  // Tests look closely; here a wrong kernel is only to be told from a right one.
  options.verify.max_rows = 2;
  options.verify.max_operations = 2e8;
  options.copies = static_cast<std::size_t>(args.layers);
  if (args.quick) {
    options.timer.min_total_us = 50e3;
    options.timer.max_total_us = 2e6;
    options.timer.warm_up_us = 20e3;
    options.timer.min_samples = 3;
    options.timer.noise = 0.05;
    if (options.copies == 0) options.copies = 2;
  }
  options.baselines = args.baselines;
  if (args.milliseconds > 0) {
    // A sweep of many shapes: of each a few samples beside its rival's, and a look at one row.
    options.timer.min_total_us = args.milliseconds * 1e3;
    options.timer.max_total_us = std::max(10 * options.timer.min_total_us, 100e3);
    options.timer.warm_up_us = options.timer.min_total_us / 4;
    options.timer.min_samples = 5;
    options.verify.max_rows = 1;
    options.verify.max_operations = 1e6;
  }
  return options;
}

// What the rows do not say.
void tell_notes(const Findings& found, const std::vector<std::string>& baselines) {
  const bool alone =
      !found.rows.empty() && std::ranges::none_of(found.rows, [](const harness::Row& row) {
        return row.baseline.has_value();
      });
  if (alone && found.passed && !baselines.empty()) {
    tell(fmt::format("sluice: no case has the baseline {} on this device\n",
                     fmt::join(baselines, " or ")));
  }
  if (found.unsettled > 0) {
    tell(fmt::format("sluice: {} of the shapes reached the time cap above the noise goal\n",
                     found.unsettled));
  }
}

Status check_arguments(const BenchArguments& args, const Context& context) {
  SLUICE_TRY(check_random(args.random, args.work, args.pass, args.baselines, context));
  if (args.work.checkpoint.empty()) return {};
  if (args.pass != "fwd") {
    return make_error(ErrorCode::kInvalidArgument, "bench: --checkpoint has pass fwd alone");
  }
  if (!args.baselines.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "bench: --checkpoint is timed beside all baselines; --baseline is not read");
  }
  return {};
}

// The chain of operators that ratios are summed up against.
std::string chain_of(const BenchArguments& args, Backend backend) {
  if (!args.baselines.empty()) return args.baselines.front();
  if (backend == Backend::kCpu) return "own_unfused";
  return args.random.op == "gate_up" ? "cublaslt+act" : "cublaslt_chain";
}

// What is read and must not be replaced.
Expected<std::vector<std::string>> inputs_of(const BenchArguments& args, const Context& context) {
  std::vector<std::string> inputs{args.work.file, context.tune_cache};
  if (args.work.checkpoint.empty() || args.json.empty()) return inputs;
  const auto files = harness::open_checkpoint_files(args.work.checkpoint);
  if (!files) return files.error();
  inputs.insert(inputs.end(), files->paths.begin(), files->paths.end());
  return inputs;
}

int bench(const BenchArguments& args, const Context& context) {
  if (const Status s = check_arguments(args, context); !s) return fail(s.error());
  const bool random = args.random.count > 0;
  auto jobs = random ? draw_jobs(args.random, args.work) : jobs_of(args.work);
  if (!jobs) return fail(jobs.error());
  if (jobs->empty() == args.work.checkpoint.empty()) {
    return fail(kUsage, "bench: wanted cases, --file, --model or --random, or else --checkpoint");
  }
  // Found out now, not after minutes of measuring.
  const auto inputs = inputs_of(args, context);
  if (!inputs) return fail(inputs.error());
  if (const Status s = harness::check_writable(args.json, *inputs); !s) return fail(s.error());
  const auto rig = harness::open_rig(context.device, context.limits());
  if (!rig) return fail_device(rig.error(), context.device);
  if (const Status s = check_device_options(context, (*rig)->device().backend); !s) {
    return fail(s.error());
  }
  const auto scheduler = open_scheduler(context, (*rig)->device());
  if (!scheduler) return fail(scheduler.error());
  harness::BenchOptions options = bench_options(args, context, scheduler->get());
  const std::string chain = chain_of(args, (*rig)->device().backend);
  if (random) options.baselines = {chain};
  Progress progress(context.quiet);
  options.progress = [&](const std::string& text) { progress.show(text); };

  Expected<harness::Ceilings> ceilings = harness::Ceilings{};
  if (!args.no_ceilings) {
    progress.show("measuring ceilings");
    ceilings = harness::measure_ceilings(**rig, {context.threads, args.quick});
    if (!ceilings) return fail(ceilings.error());
  }
  std::optional<harness::PairedCeilings> paired;
  if ((*rig)->device().backend == Backend::kCpu && !args.no_ceilings) {
    auto made = harness::PairedCeilings::make((*rig)->device(), context.threads, args.quick);
    if (!made) return fail(made.error());
    paired.emplace(std::move(*made));
    options.paired = &*paired;
  }
  Findings found;
  found.json = args.json;
  found.meta = harness::make_meta((*rig)->device(), *ceilings, context.argc, context.argv);
  if (random || is_all_models(args.work)) found.summed_baseline = chain;
  if (random) {
    // Before each write again: another part may run at the same time.
    found.reread = [&args, draw = *jobs](Findings& f) {
      return keep_other_parts(args.random, args.pass, draw, f);
    };
    if (const Status s = found.reread(found); !s) return fail(s.error());
    *jobs = take_part(args.random, *jobs, (*rig)->free_bytes(), found);
  }
  const Status status =
      args.work.checkpoint.empty()
          ? bench_jobs(*jobs, **rig, *ceilings, options, args.milliseconds > 0, args.random,
                       progress, found)
          : bench_layers(args, **rig, *ceilings, options, context.quiet, progress, found);
  progress.clear();
  found.ended = status.has_value();
  // What was measured before a failure is told all the same.
  const bool any = status || !found.rows.empty();
  Status written;
  if (args.json != "-") {
    written = found.keep();
    if (any) found.print((*rig)->device(), *ceilings);
  } else if (any) {
    written = found.write();
  }
  if (!status) return fail(status.error());
  if (!written) return fail(written.error());
  if (!context.quiet) tell_notes(found, options.baselines);
  return found.passed ? kOk : fail(kCheckFailed, "bench: a result is wrong; it was not timed");
}

}  // namespace

void add_bench(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand(
      "bench", "Time problems, model presets, random shapes or a checkpoint against baselines");
  const auto args = std::make_shared<BenchArguments>();
  add_work_options(*verb, args->work);
  add_random_options(*verb, args->random);
  verb->add_option("--layers", args->layers,
                   "Copies of the weights to rotate over; of a checkpoint: its first layers only")
      ->check(at_least(1));
  verb->add_option(
          "--pass", args->pass,
          "fwd, bwd (gradients), full (both) or decode (fwd right behind a kernel that writes x)")
      ->check(CLI::IsMember({"fwd", "bwd", "full", "decode"}))
      ->capture_default_str();
  verb->add_flag("--quick", args->quick, "Fewer samples and copies: a look, not a measurement");
  verb->add_flag("--no-ceilings", args->no_ceilings,
                 "Measure none, which takes seconds; shares of them are null then");
  const auto names = harness::timed_baselines();
  verb->add_option("--milliseconds", args->milliseconds,
                   "Timing of each candidate, for sweeps over many shapes; 0 for 300, or 50 quick")
      ->check(positive(true));
  verb->add_option(
          "--baseline", args->baselines,
          "Time this baseline alone; may be repeated. Rivals by bench/*.py are none of these")
      ->check(CLI::IsMember(std::vector<std::string>(names.begin(), names.end())));
  verb->add_option("--json", args->json, "Write results to this file, - for standard output")
      ->check(named());
  add_device_option(*verb, context);
  add_kernel_options(*verb, context);
  verb->callback([args, &context] { context.exit_code = bench(*args, context); });
}

}  // namespace sluice::cli
