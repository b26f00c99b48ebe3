// SPDX-License-Identifier: Apache-2.0
// sluice bench: the operator against its baselines, on shapes, model presets or a checkpoint.
#include "harness/bench.hpp"

#include <fmt/format.h>

#include <memory>

#include "cli/cli.hpp"
#include "harness/checkpoint_bench.hpp"
#include "harness/models.hpp"
#include "harness/provenance.hpp"

namespace sluice::cli {
namespace {

using nlohmann::ordered_json;

struct Arguments {
  std::vector<std::string> cases;
  std::string file;
  std::vector<std::string> models;
  std::string checkpoint;
  std::vector<std::int64_t> tokens = {1, 16, 128, 512};
  std::string dtype;
  int tp = 1;
  int layers = 0;
  std::string pass = "fwd";
  bool quick = false;
  std::string json;
};

// One case to run, and what its rows say of the model.
struct Job {
  harness::Case test_case;
  std::optional<std::string> model;
  int tp = 1;
};

Status add_text_jobs(const Arguments& args, std::vector<Job>& jobs) {
  std::vector<std::string> texts = args.cases;
  if (!args.file.empty()) {
    const auto lines = read_problem_file(args.file);
    if (!lines) return lines.error();
    texts.insert(texts.end(), lines->begin(), lines->end());
  }
  for (const std::string& text : texts) {
    const auto parsed = harness::parse_case(text + (args.dtype.empty() ? "" : ":" + args.dtype));
    if (!parsed) {
      return make_error(ErrorCode::kInvalidArgument, "%s: %s", text.c_str(),
                        parsed.error().message);
    }
    jobs.push_back({*parsed, std::nullopt, 1});
  }
  return {};
}

Status add_model_jobs(const Arguments& args, std::vector<Job>& jobs) {
  const std::string dtype = args.dtype.empty() ? "bf16" : args.dtype;
  for (const std::string& name : args.models) {
    const auto model = harness::find_model(name);
    if (!model) return model.error();
    if (std::find(model->tp.begin(), model->tp.end(), args.tp) == model->tp.end()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "tp: got %d, wanted one that fits %s (see `sluice list models`)", args.tp,
                        model->name.c_str());
    }
    for (const std::int64_t m : args.tokens) {
      // With tensor parallelism the down bias is added once, by the engine, after the sum.
      const auto parsed = harness::parse_case(
          fmt::format("{}x{}x{}:{}:{}:{}{}{}", m, model->d, model->h / args.tp, dtype, model->gate,
                      model->layout, model->bias ? ":bias" : "",
                      model->bias && args.tp == 1 ? ":bias_down" : ""));
      if (!parsed) return parsed.error();
      jobs.push_back({*parsed, model->name, args.tp});
    }
  }
  return {};
}

std::string tera(const std::optional<double>& value, const char* unit) {
  return value ? fmt::format("{:.4g} {}", *value, unit) : std::string("unknown");
}

void print_ceilings(const harness::Ceilings& c) {
  std::string line = "read " + tera(c.read_tbps, "TB/s") + ", copy " + tera(c.copy_tbps, "TB/s");
  if (c.gemm_tflops) line += ", GEMM " + tera(c.gemm_tflops, "TFLOP/s");
  if (c.fma_gflops) line += ", FMA " + tera(c.fma_gflops, "GFLOP/s");
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
  for (const char* title : {"us", "p10", "p90", "TFLOP/s", "GB/s", "roof"}) {
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
};

Status bench_jobs(const std::vector<Job>& jobs, harness::Rig& rig,
                  const harness::Ceilings& ceilings, harness::BenchOptions options,
                  Progress& progress, Findings& found) {
  for (const Job& job : jobs) {
    options.model = job.model;
    options.tp = job.tp;
    const auto result = harness::bench_case(job.test_case, rig, ceilings, options);
    if (!result) {
      return make_error(result.error().code, "%s: %s", harness::format_case(job.test_case).c_str(),
                        result.error().message);
    }
    progress.clear();
    for (const harness::VerifyReport& check : result->checks) {
      if (!check.passed()) fmt::print(stderr, "{}\n", check.text());
    }
    found.passed = found.passed && result->passed();
    found.unsettled += result->converged ? 0 : 1;
    found.rows.insert(found.rows.end(), result->rows.begin(), result->rows.end());
  }
  return {};
}

Status bench_layers(const Arguments& args, harness::Rig& rig, const harness::Ceilings& ceilings,
                    const harness::BenchOptions& options, bool quiet, Progress& progress,
                    Findings& found) {
  const auto checkpoint = harness::open_checkpoint(args.checkpoint);
  if (!checkpoint) return checkpoint.error();
  if (!quiet && checkpoint->assumed_gate) {
    fmt::print(stderr, "sluice: {}: names no activation, silu assumed\n", checkpoint->name);
  }
  harness::CheckpointOptions layered{options, args.layers};
  for (const std::int64_t m : args.tokens) {
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
    found.passed = found.passed && result->passed();
    found.unsettled += result->converged ? 0 : 1;
    found.rows.insert(found.rows.end(), result->rows.begin(), result->rows.end());
  }
  return {};
}

Expected<harness::BenchOptions> bench_options(const Arguments& args, const Context& context) {
  harness::BenchOptions options;
  options.plan = context.options();
  if (args.pass == "bwd") {
    options.pass = harness::Pass::kBackward;
  } else if (args.pass == "full") {
    options.pass = harness::Pass::kFull;
  }
  options.verify.repeat = false;
  options.verify.max_rows = 2;
  options.copies = static_cast<std::size_t>(args.layers);
  if (args.quick) {
    options.timer.min_total_us = 50e3;
    options.timer.max_total_us = 2e6;
    options.timer.warm_up_us = 20e3;
    options.timer.min_samples = 3;
    options.timer.noise = 0.05;
    options.verify.max_operations = 2e8;
    if (options.copies == 0) options.copies = 2;
  }
  return options;
}

int bench(const Arguments& args, const Context& context) {
  std::vector<Job> jobs;
  if (const Status s = add_text_jobs(args, jobs); !s) return fail(s.error());
  if (const Status s = add_model_jobs(args, jobs); !s) return fail(s.error());
  if (jobs.empty() == args.checkpoint.empty()) {
    return fail(kUsage, "bench: wanted cases, --file or --model, or else --checkpoint");
  }
  if (!args.checkpoint.empty() && args.pass != "fwd") {
    return fail(kUsage, "bench: --checkpoint has pass fwd alone");
  }
  // Found out now, not after minutes of measuring.
  if (const Status s = harness::check_writable(args.json); !s) return fail(s.error());
  const auto rig = harness::open_rig(context.device);
  if (!rig) return fail_device(rig.error(), context.device);
  auto options = bench_options(args, context);
  if (!options) return fail(options.error());
  Progress progress(context.quiet);
  options->progress = [&](const std::string& text) { progress.show(text); };

  progress.show("measuring ceilings");
  const auto ceilings = harness::measure_ceilings(**rig, {context.threads, args.quick});
  if (!ceilings) return fail(ceilings.error());
  Findings found;
  const Status status =
      args.checkpoint.empty()
          ? bench_jobs(jobs, **rig, *ceilings, *options, progress, found)
          : bench_layers(args, **rig, *ceilings, *options, context.quiet, progress, found);
  progress.clear();
  if (!status) return fail(status.error());
  if (!context.quiet && found.unsettled > 0) {
    fmt::print(stderr, "sluice: {} of the shapes reached the time cap above the noise goal\n",
               found.unsettled);
  }

  if (!args.json.empty()) {
    ordered_json out = harness::results_json(
        harness::make_meta((*rig)->device(), *ceilings, context.argc, context.argv), found.rows);
    if (!found.checks.empty()) out["checks"] = found.checks;
    const Status written = harness::write_text(args.json, out.dump(2) + "\n");
    if (!written) return fail(written.error());
  }
  if (args.json != "-") {
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
  verb->add_option("case", args->cases, "Problems, such as 128x4096x14336:bf16:silu");
  verb->add_option("--file", args->file, "Problems from a file, one a line, # for comments");
  verb->add_option("--model", args->models, "Model presets (see `sluice list models`)")
      ->delimiter(',');
  verb->add_option("--checkpoint", args->checkpoint,
                   "All MLPs of a safetensors file, an index.json or a folder that holds one");
  verb->add_option("--tokens", args->tokens, "M, for --model and --checkpoint")
      ->delimiter(',')
      ->check(at_least(1))
      ->capture_default_str();
  verb->add_option("--dtype", args->dtype, "bf16, fp16, fp32 or x/w/y, added to every problem");
  verb->add_option("--tp", args->tp, "Tensor-parallel size of --model: H is divided by it")
      ->check(at_least(1))
      ->capture_default_str();
  verb->add_option("--layers", args->layers,
                   "Copies of the weights to rotate over; of a checkpoint: its first layers only")
      ->check(at_least(1));
  verb->add_option("--pass", args->pass, "fwd, bwd (gradients) or full (both)")
      ->check(CLI::IsMember({"fwd", "bwd", "full"}))
      ->capture_default_str();
  verb->add_flag("--quick", args->quick, "Fewer samples and copies: a look, not a measurement");
  verb->add_option("--json", args->json, "Write results to this file, - for standard output");
  add_device_option(*verb, context);
  add_kernel_options(*verb, context);
  verb->callback([args, &context] { context.exit_code = bench(*args, context); });
}

}  // namespace sluice::cli
