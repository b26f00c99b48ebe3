// SPDX-License-Identifier: Apache-2.0
// sluice tune: times what can be chosen and keeps the choices in a file.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>

#include "cli/work.hpp"
#include "harness/checkpoint.hpp"
#include "harness/checkpoint_bench.hpp"

namespace sluice::cli {
namespace {

struct TuneArguments {
  WorkArguments work;
  double seconds = 60;
  std::int64_t memory_mib = 0;
  bool again = false;
  bool candidates = false;
};

// Where the cache lies unless it is named: the user's folder for caches.
std::string default_path() {
  const auto folder_of = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  std::filesystem::path folder = folder_of("XDG_CACHE_HOME");
  if (!folder.is_absolute()) {
    folder = folder_of("HOME");
    if (!folder.is_absolute()) return "";
    folder /= ".cache";
  }
  return (folder / "sluice" / "tune").string();
}

Expected<std::vector<Problem>> problems_of(const WorkArguments& work) {
  std::vector<Problem> problems;
  const auto jobs = jobs_of(work);
  if (!jobs) return jobs.error();
  for (const Job& job : *jobs) problems.push_back(job.test_case.problem);
  if (work.checkpoint.empty()) return problems;
  const auto checkpoint = harness::open_checkpoint(work.checkpoint, 0);
  if (!checkpoint) return checkpoint.error();
  for (const std::int64_t m : work.tokens()) {
    const auto test_case = harness::checkpoint_case(*checkpoint, m);
    if (!test_case) return test_case.error();
    problems.push_back(test_case->problem);
  }
  return problems;
}

std::string four_digits(double us) { return us > 0 ? fmt::format("{:.4g}", us) : ""; }

void print_outcomes(const std::vector<TuneOutcome>& outcomes) {
  Table table;
  table.column("op", Align::kLeft);
  for (const char* title : {"M", "D", "H"}) table.column(title, Align::kRight);
  for (const char* title : {"dtype", "", "config"}) table.column(title, Align::kLeft);
  for (const char* title : {"us", "noise", "untuned us", "speed-up", "timed"}) {
    table.column(title, Align::kRight);
  }
  for (const TuneOutcome& o : outcomes) {
    const bool measured = o.state == TuneState::kMeasured;
    table.row({to_string(o.problem.op), std::to_string(o.problem.m), std::to_string(o.problem.d),
               std::to_string(o.problem.h), to_string(o.problem.x_dtype),
               std::string(to_string(o.state)) + (o.settled ? "" : ", unsettled"), o.choice.config,
               four_digits(o.choice.us),
               o.choice.us > 0 ? fmt::format("{:.1f}%", 100 * o.us_noise / o.choice.us) : "",
               four_digits(o.choice.untuned_us),
               o.choice.us > 0 ? fmt::format("{:.3f}", o.choice.untuned_us / o.choice.us) : "",
               measured ? std::to_string(o.times.size()) : ""});
  }
  table.print();
}

// Every candidate, the fastest first.
void print_candidates(const std::vector<TuneOutcome>& outcomes) {
  Table table;
  table.column("op", Align::kLeft);
  for (const char* title : {"M", "D", "H"}) table.column(title, Align::kRight);
  for (const char* title : {"variant", "config"}) table.column(title, Align::kLeft);
  for (const char* title : {"us", "noise", "samples"}) table.column(title, Align::kRight);
  for (const TuneOutcome& o : outcomes) {
    std::vector<TuneTime> times = o.times;
    std::stable_sort(times.begin(), times.end(),
                     [](const TuneTime& a, const TuneTime& b) { return a.us < b.us; });
    for (const TuneTime& t : times) {
      table.row({to_string(o.problem.op), std::to_string(o.problem.m), std::to_string(o.problem.d),
                 std::to_string(o.problem.h), t.variant, t.config, four_digits(t.us),
                 fmt::format("{:.1f}%", t.us > 0 ? 100 * t.us_noise / t.us : 0),
                 std::to_string(t.samples)});
    }
  }
  fmt::print("\n");
  table.print();
  fmt::print("\n");
}

int count_of(const std::vector<TuneOutcome>& outcomes, TuneState state) {
  return static_cast<int>(std::count_if(outcomes.begin(), outcomes.end(),
                                        [&](const TuneOutcome& o) { return o.state == state; }));
}

// Makes the folder of the default path; that of a named one is the user's business.
std::string cache_path(const Context& context) {
  if (!context.tune_cache.empty()) return context.tune_cache;
  std::string path = default_path();
  std::error_code ignored;  // writing tells it
  if (!path.empty()) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  }
  return path;
}

int tune(const TuneArguments& args, const Context& context) {
  const auto problems = problems_of(args.work);
  if (!problems) return fail(problems.error());
  if (problems->empty()) return fail(kUsage, "tune: wanted cases, --file, --model or --checkpoint");
  const std::string path = cache_path(context);
  if (path.empty()) return fail(kUsage, "tune: no HOME to keep the cache in; name --tune-cache");
  const auto device = find_device(context);
  if (!device) return fail_device(device.error(), context.device);
  if (const Status s = check_device_options(context, device->backend); !s) return fail(s.error());

  Scheduler scheduler(*device);
  const auto loaded = scheduler.load(path.c_str());
  if (!loaded) return fail(loaded.error());
  if (!context.quiet && loaded->foreign + loaded->damaged > 0) {
    tell(fmt::format("sluice: {}\n", loaded->message));
  }
  // Found out now, not after a minute of measuring.
  if (const Status writable = scheduler.save(path.c_str()); !writable) {
    return fail(writable.error());
  }
  Progress progress(context.quiet);
  const auto start = std::chrono::steady_clock::now();
  auto kept = start;
  // Between problems: who stops a long run keeps what was measured. That it cannot be is told last.
  const auto keep = [&] {
    const auto now = std::chrono::steady_clock::now();
    if (now - kept < std::chrono::seconds(1)) return;
    kept = now;
    [[maybe_unused]] const Status ignored = scheduler.save(path.c_str());
  };
  const auto outcomes = scheduler.tune(
      *problems,
      {.max_seconds = args.seconds,
       .max_memory_bytes = args.memory_mib << 20,
       .threads = context.threads,
       .again = args.again,
       .progress = [&](std::size_t done, std::size_t count, const Problem& problem) {
         keep();
         progress.show(fmt::format("tuning {} ({} of {} done)", to_string(problem), done, count));
       }});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  progress.clear();
  // What was measured before an error is kept.
  const Status saved = scheduler.save(path.c_str());
  if (!outcomes) return fail(outcomes.error());
  if (!saved) return fail(saved.error());

  fmt::print("{}: {}\n", to_string(device->backend), device->name);
  print_outcomes(*outcomes);
  if (args.candidates) print_candidates(*outcomes);
  fmt::print("{} measured, {} known, {} with one candidate, {} left for want of time; {:.1f} s\n",
             count_of(*outcomes, TuneState::kMeasured), count_of(*outcomes, TuneState::kKnown),
             count_of(*outcomes, TuneState::kOneCandidate), count_of(*outcomes, TuneState::kNoTime),
             took.count());
  fmt::print("kept in {}: name it with --tune-cache or SLUICE_TUNE_CACHE\n", path);
  return kOk;
}

}  // namespace

void add_tune(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand(
      "tune", "Time all variants and configs for problems, and keep the fastest in a file");
  const auto args = std::make_shared<TuneArguments>();
  add_work_options(*verb, args->work);
  verb->add_option("--seconds", args->seconds, "For all problems together")
      ->check(positive())
      ->capture_default_str();
  verb->add_option("--memory", args->memory_mib,
                   "MiB of device memory for operands; 0 for a quarter of the device's")
      ->check(integer(0, std::numeric_limits<std::int64_t>::max() >> 20));
  verb->add_flag("--again", args->again, "Measure also what the cache knows");
  verb->add_flag("--candidates", args->candidates, "Print the times of every candidate too");
  add_threads_option(*verb, context);
  add_tune_cache_option(*verb, context);
  add_device_option(*verb, context);
  verb->callback([args, &context] { context.exit_code = tune(*args, context); });
}

}  // namespace sluice::cli
