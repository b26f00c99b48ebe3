// SPDX-License-Identifier: Apache-2.0
// sluice bench: the operator against its baselines, on shapes, model presets or a checkpoint.
#include "harness/bench.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <set>

#include "cli/work.hpp"
#include "harness/checkpoint_bench.hpp"
#include "harness/provenance.hpp"

namespace sluice::cli {
namespace {

using nlohmann::ordered_json;

struct Arguments {
  WorkArguments work;
  int layers = 0;
  std::string pass = "fwd";
  bool quick = false;
  double milliseconds = 0;
  std::vector<std::string> baselines;
  std::string json;
};

std::string tera(const std::optional<double>& value, const char* unit) {
  return value ? fmt::format("{:.4g} {}", *value, unit) : std::string("unknown");
}

void print_ceilings(const harness::Ceilings& c) {
  std::string line = "read " + tera(c.read_tbps, "TB/s") + ", copy " + tera(c.copy_tbps, "TB/s");
  if (c.gemm_tflops) line += ", GEMM " + tera(c.gemm_tflops, "TFLOP/s");
  if (c.mma_sync_tflops) line += ", mma.sync " + tera(c.mma_sync_tflops, "TFLOP/s");
  if (c.fma_gflops) line += ", FMA " + tera(c.fma_gflops, "GFLOP/s");
  if (c.bf16_gflops) line += ", bf16 dots " + tera(c.bf16_gflops, "GFLOP/s");
  fmt::print("ceilings: {}{}{}\n", line, c.clocks.empty() ? "" : "; ", c.clocks);
}

std::string microseconds(double us) {
  return us >= 100 ? fmt::format("{:.0f}", us) : fmt::format("{:.3g}", us);
}

std::string percent(const std::optional<double>& part) {
  return part ? fmt::format("{:.0f}%", *part * 100) : std::string();
}

void print_rows(const std::vector<harness::Row>& rows) {
  using Align = Table::Align;
  Table table;
  for (const char* title : {"op", "model"}) table.column(title, Align::kLeft);
  for (const char* title : {"M", "D", "H"}) table.column(title, Align::kRight);
  for (const char* title : {"dtype", "gate", "variant"}) table.column(title, Align::kLeft);
  for (const char* title : {"us", "p10", "p90", "TFLOP/s", "GB/s", "roof", "of read", "of FMA"}) {
    table.column(title, Align::kRight);
  }
  table.column("baseline", Align::kLeft);
  for (const char* title : {"us", "ratio", "extra", "baseline extra", "rel err"}) {
    table.column(title, Align::kRight);
  }
  for (const harness::Row& r : rows) {
    table.row(
        {r.op + (r.pass == "fwd" ? "" : " " + r.pass),
         r.model.value_or(""),
         std::to_string(r.m),
         std::to_string(r.d),
         std::to_string(r.h),
         r.dtype,
         r.gate,
         r.variant,
         microseconds(r.us),
         microseconds(r.us_p10),
         microseconds(r.us_p90),
         fmt::format("{:.3g}", r.tflops),
         fmt::format("{:.3g}", r.gbps),
         percent(r.roof_fraction),
         percent(r.read_share),
         percent(r.fma_share),
         r.baseline.value_or("none"),
         r.baseline_us ? microseconds(*r.baseline_us) : "",
         r.ratio ? fmt::format("{:.3f}", *r.ratio) : "",
         human_bytes(static_cast<double>(r.extra_bytes)),
         r.baseline_extra_bytes ? human_bytes(static_cast<double>(*r.baseline_extra_bytes)) : "",
         r.rel_err ? fmt::format("{:.1e}", *r.rel_err) : ""});
  }
  table.print();
}

// Everything one invocation found.
struct Findings {
  std::vector<harness::Row> rows;
  ordered_json checks = ordered_json::array();
  bool passed = true;
  int unsettled = 0;
  std::string json;  // the file; empty or - for none
  harness::Meta meta;
  std::chrono::steady_clock::time_point written{};

  Status write() const {
    ordered_json out = harness::results_json(meta, rows);
    if (!checks.empty()) out["checks"] = checks;
    return harness::write_text(json, out.dump(2) + "\n");
  }

  // After every shape, once a second: who stops a long bench keeps what was measured.
  Status add(const std::vector<harness::Row>& more, bool right, bool converged) {
    passed = passed && right;
    unsettled += converged ? 0 : 1;
    rows.insert(rows.end(), more.begin(), more.end());
    const auto now = std::chrono::steady_clock::now();
    if (now - written < std::chrono::seconds(1)) return {};
    written = now;
    return keep();
  }

  // What there is, in the file.
  Status keep() const { return json.empty() || json == "-" ? Status{} : write(); }
};

Status bench_jobs(const std::vector<Job>& jobs, harness::Rig& rig,
                  const harness::Ceilings& ceilings, harness::BenchOptions options, bool sweep,
                  Progress& progress, Findings& found) {
  std::set<std::string> checked;
  for (const Job& job : jobs) {
    // A sweep checks each kernel once a shape, whatever M: a check reads all weights back, a
    // second.
    const std::string text = harness::format_case(job.test_case);
    const auto made = plan(job.test_case.problem, rig.device(), options.plan);
    const std::string kernel = text.substr(text.find('x')) + " " + (made ? made->config.name : "");
    options.check = !sweep || !checked.contains(kernel);
    options.model = job.model;
    options.tp = job.tp;
    const auto result = harness::bench_case(job.test_case, rig, ceilings, options);
    if (!result) {
      return make_error(result.error().code, "%s: %s", harness::format_case(job.test_case).c_str(),
                        result.error().message);
    }
    progress.clear();
    if (result->passed()) checked.insert(kernel);
    for (const harness::VerifyReport& check : result->checks) {
      if (!check.passed()) fmt::print(stderr, "{}\n", check.text());
    }
    SLUICE_TRY(found.add(result->rows, result->passed(), result->converged));
  }
  return {};
}

Status bench_layers(const Arguments& args, harness::Rig& rig, const harness::Ceilings& ceilings,
                    const harness::BenchOptions& options, bool quiet, Progress& progress,
                    Findings& found) {
  const auto checkpoint = harness::open_checkpoint(args.work.checkpoint);
  if (!checkpoint) return checkpoint.error();
  if (!quiet && checkpoint->assumed_gate) {
    fmt::print(stderr, "sluice: {}: names no activation, silu assumed\n", checkpoint->name);
  }
  harness::CheckpointOptions layered{options, args.layers};
  for (const std::int64_t m : args.work.tokens()) {
    const auto result = harness::bench_checkpoint(*checkpoint, m, rig, ceilings, layered);
    if (!result) return result.error();
    progress.clear();
    for (const harness::LayerCheck& check : result->checks) {
      found.checks.push_back(harness::to_json(check, checkpoint->name));
      if (!check.passed()) {
        fmt::print(stderr, "{} M = {} layer {}: {}\n", checkpoint->name, m, check.layer,
                   harness::to_string(check.fused));
      }
    }
    SLUICE_TRY(found.add(result->rows, result->passed(), result->converged));
  }
  return {};
}

harness::BenchOptions bench_options(const Arguments& args, const Context& context,
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
  const bool alone = std::ranges::none_of(
      found.rows, [](const harness::Row& row) { return row.baseline.has_value(); });
  if (alone && found.passed && !baselines.empty()) {
    fmt::print(stderr, "sluice: no case has the baseline {} on this device\n",
               fmt::join(baselines, " or "));
  }
  if (found.unsettled > 0) {
    fmt::print(stderr, "sluice: {} of the shapes reached the time cap above the noise goal\n",
               found.unsettled);
  }
}

int bench(const Arguments& args, const Context& context) {
  const auto jobs = jobs_of(args.work);
  if (!jobs) return fail(jobs.error());
  if (jobs->empty() == args.work.checkpoint.empty()) {
    return fail(kUsage, "bench: wanted cases, --file or --model, or else --checkpoint");
  }
  if (!args.work.checkpoint.empty() && args.pass != "fwd") {
    return fail(kUsage, "bench: --checkpoint has pass fwd alone");
  }
  // Found out now, not after minutes of measuring.
  if (const Status s = harness::check_writable(args.json); !s) return fail(s.error());
  const auto rig = harness::open_rig(context.device, context.max_simd.c_str());
  if (!rig) return fail_device(rig.error(), context.device);
  const auto scheduler = open_scheduler(context, (*rig)->device());
  if (!scheduler) return fail(scheduler.error());
  harness::BenchOptions options = bench_options(args, context, scheduler->get());
  Progress progress(context.quiet);
  options.progress = [&](const std::string& text) { progress.show(text); };

  progress.show("measuring ceilings");
  const auto ceilings = harness::measure_ceilings(**rig, {context.threads, args.quick});
  if (!ceilings) return fail(ceilings.error());
  std::optional<harness::PairedCeilings> paired;
  if ((*rig)->device().backend == Backend::kCpu) {
    auto made = harness::PairedCeilings::make((*rig)->device(), context.threads, args.quick);
    if (!made) return fail(made.error());
    paired.emplace(std::move(*made));
    options.paired = &*paired;
  }
  Findings found;
  found.json = args.json;
  found.meta = harness::make_meta((*rig)->device(), *ceilings, context.argc, context.argv);
  const Status status =
      args.work.checkpoint.empty()
          ? bench_jobs(*jobs, **rig, *ceilings, options, args.milliseconds > 0, progress, found)
          : bench_layers(args, **rig, *ceilings, options, context.quiet, progress, found);
  progress.clear();
  const Status kept = found.keep();
  if (!status) return fail(status.error());
  if (!kept) return fail(kept.error());
  if (!context.quiet) tell_notes(found, args.baselines);

  if (args.json == "-") {
    if (const Status written = found.write(); !written) return fail(written.error());
  } else {
    fmt::print("{}: {}\n", to_string((*rig)->device().backend), (*rig)->device().name);
    print_ceilings(*ceilings);
    if (!found.checks.empty()) {
      double worst = 0;
      for (const auto& check : found.checks) {
        worst = std::max(worst, check["worst_bound_share"].get<double>());
      }
      fmt::print("checked against fp64: {} layers, worst element at {:.2g} of its bound\n",
                 found.checks.size(), worst);
    }
    print_rows(found.rows);
  }
  return found.passed ? kOk : fail(kCheckFailed, "bench: a result is wrong; it was not timed");
}

}  // namespace

void add_bench(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand(
      "bench", "Time problems, model presets or a checkpoint against their baselines");
  const auto args = std::make_shared<Arguments>();
  add_work_options(*verb, args->work);
  verb->add_option("--layers", args->layers,
                   "Copies of the weights to rotate over; of a checkpoint: its first layers only")
      ->check(at_least(1));
  verb->add_option(
          "--pass", args->pass,
          "fwd, bwd (gradients), full (both) or decode (fwd right behind a kernel that writes x)")
      ->check(CLI::IsMember({"fwd", "bwd", "full", "decode"}))
      ->capture_default_str();
  verb->add_flag("--quick", args->quick, "Fewer samples and copies: a look, not a measurement");
  const auto names = harness::timed_baselines();
  verb->add_option("--milliseconds", args->milliseconds,
                   "Timing of each candidate, for sweeps over many shapes; 0 for 300, or 50 quick")
      ->check(positive(true));
  verb->add_option(
          "--baseline", args->baselines,
          "Time this baseline alone; may be repeated. Rivals by bench/*.py are none of these")
      ->check(CLI::IsMember(std::vector<std::string>(names.begin(), names.end())));
  verb->add_option("--json", args->json, "Write results to this file, - for standard output");
  add_device_option(*verb, context);
  add_kernel_options(*verb, context);
  verb->callback([args, &context] { context.exit_code = bench(*args, context); });
}

}  // namespace sluice::cli
