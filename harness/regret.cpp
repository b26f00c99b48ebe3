// SPDX-License-Identifier: Apache-2.0
#include "harness/regret.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "harness/data.hpp"

namespace sluice::harness {
namespace {

// A workspace for any of the plans, and operands to rotate over.
struct Bed {
  RigWorkspace workspace{};
  std::vector<std::unique_ptr<OperandSet>> sets;

  static Expected<Bed> make(const Case& c, Rig& rig, std::span<const Plan> plans,
                            const BenchOptions& options) {
    const Plan& largest = *std::ranges::max_element(plans, {}, &Plan::workspace_bytes);
    Bed bed;
    auto workspace = make_workspace(largest, rig);
    if (!workspace) return workspace.error();
    bed.workspace = std::move(*workspace);
    const std::size_t copies = options.copies > 0
                                   ? options.copies
                                   : timing::chain_copies(rotating_bytes(c.problem), rig.device());
    for (std::size_t i = 0; i < copies; ++i) {
      const OperandSet* const first = bed.sets.empty() ? nullptr : bed.sets.front().get();
      auto set = OperandSet::make(c, rig, Checked::kNo, first);
      if (!set) return set.error();
      bed.sets.push_back(std::move(*set));
    }
    return bed;
  }

  [[nodiscard]] std::vector<Run> runs(const Plan& plan) const {
    std::vector<Run> out;
    for (const auto& set : sets) {
      out.push_back([this, plan, operands = set->operands()](Stream stream) {
        return run(plan, operands, workspace.workspace, stream);
      });
    }
    return out;
  }
};

}  // namespace

Expected<std::vector<std::size_t>> screen(std::size_t count, const SampleOf& sample) {
  std::vector<std::pair<double, std::size_t>> others;
  double fastest = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < count; ++i) {
    const auto us = sample(i);
    if (!us && i == 0) return us.error();
    if (!us) continue;
    fastest = std::min(fastest, *us);
    if (i > 0) others.emplace_back(*us, i);
  }
  std::ranges::sort(others);
  std::vector<std::size_t> out = {0};
  for (const auto& [us, i] : others) {
    if (out.size() <= kFinalists && us <= kNoFinalist * fastest) out.push_back(i);
  }
  return out;
}

double regret_of(std::span<const Timing> timings) {
  const auto best = std::ranges::min_element(timings, {}, &Timing::median_us);
  return timings.front().median_us / best->median_us - 1;
}

Expected<Regret> measure_regret(const Case& test_case, Rig& rig, const BenchOptions& options) {
  const auto plans = candidates(test_case.problem, rig.device(), options.plan);
  if (!plans) return plans.error();
  if (plans->size() == 1) return Regret{};
  const auto bed = Bed::make(test_case, rig, *plans, options);
  if (!bed) return bed.error();
  Regret regret;
  const auto finalists = screen(plans->size(), [&](std::size_t i) -> Expected<double> {
    if (options.progress) {
      options.progress(format_case(test_case) + ": config " + std::to_string(i + 1) + " of " +
                       std::to_string(plans->size()));
    }
    auto stopwatch = make_stopwatch(rig);
    if (!stopwatch) return stopwatch.error();
    const auto handle = (*stopwatch)->prepare(bed->runs((*plans)[i]));
    if (!handle) return handle.error();
    const auto us = (*stopwatch)->time_us(*handle);
    if (us) {
      const std::string config = (*plans)[i].config_name();
      regret.samples += fmt::format("{}{} {} {:.4g}", regret.samples.empty() ? "" : " ",
                                    (*plans)[i].variant_name(), config.empty() ? "-" : config, *us);
    }
    return us;
  });
  if (!finalists) return finalists.error();
  std::vector<Candidate> candidates;
  for (const std::size_t i : *finalists) {
    candidates.push_back({(*plans)[i].config_name(), bed->runs((*plans)[i])});
  }
  auto stopwatch = make_stopwatch(rig);
  if (!stopwatch) return stopwatch.error();
  const auto timings = time_interleaved(**stopwatch, candidates, options.timer);
  if (!timings) return timings.error();
  regret.value = regret_of(*timings);
  return regret;
}

}  // namespace sluice::harness
