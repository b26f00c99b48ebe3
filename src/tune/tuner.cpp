// SPDX-License-Identifier: Apache-2.0
#include "tune/tuner.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "sluice/operands.hpp"
#include "tune/race.hpp"

namespace sluice::tune {
namespace {

// Idle GPUs lower their clocks, idle CPUs too: the first race waits for them.
constexpr double kWarmUpUs = 100e3;

template <std::size_t kSize>
void copy_text(const std::string& text, char (&out)[kSize]) {
  std::snprintf(out, kSize, "%s", text.c_str());
}

std::string name_of(const Plan& plan) {
  return std::string(plan.variant_name()) + " " + plan.config_name();
}

// How a candidate did at one token count of the shape under way.
struct Past {
  double run_us = 0;
  bool hopeless = false;
};
using Pasts = std::map<std::string, Past>;      // by candidate
using History = std::map<std::int64_t, Pasts>;  // by m

// Is it a waste to time this candidate? It lost by RaceOptions::hopeless at the nearest token
// counts it was timed at on both sides; or at the nearest below, with none above, and as much
// slower as the problem has more tokens, one pass would take more than `budget_us`.
bool is_waste(const History& history, const std::string& candidate, std::int64_t m, double copies,
              double budget_us) {
  const Past* low = nullptr;
  const Past* high = nullptr;
  std::int64_t low_m = 1;
  for (const auto& [past_m, pasts] : history) {  // by rising m
    const auto found = pasts.find(candidate);
    if (found == pasts.end()) continue;
    if (past_m < m) {
      low = &found->second;
      low_m = past_m;
    } else {
      high = &found->second;
      break;
    }
  }
  if (low == nullptr || !low->hopeless) return false;
  if (high != nullptr) return high->hopeless;
  const double more = static_cast<double>(m) / static_cast<double>(low_m);
  return low->run_us * more * copies > budget_us;
}

class Tuner {
 public:
  Tuner(const Device& device, const TuneOptions& options, Bench& bench, const Keep& keep)
      : device_(device), options_(options), bench_(bench), keep_(keep), start_(bench.seconds()) {}

  // Problems that differ in m alone, by rising m; `left` are those of later groups.
  Status group(std::span<TuneOutcome* const> outcomes, std::size_t left) {
    std::vector<std::int64_t> tokens;
    for (const TuneOutcome* outcome : outcomes) tokens.push_back(outcome->problem.m);
    history_.clear();
    bool is_set_up = false;
    const std::vector<std::size_t> order = spread_order(tokens);
    for (std::size_t i = 0; i < order.size(); ++i) {
      TuneOutcome& outcome = *outcomes[order[i]];
      if (options_.progress) options_.progress(done_++, count_, outcome.problem);
      auto plans = candidates(outcome.problem, device_, {.threads = options_.threads});
      if (!plans) return plans.error();
      set_choice(outcome, plans->front());
      if (plans->size() == 1) {
        outcome.state = TuneState::kOneCandidate;
        continue;
      }
      if (left_s() <= 0) {
        outcome.state = TuneState::kNoTime;
        continue;
      }
      if (!is_set_up) SLUICE_TRY(bench_.set_up(outcomes.back()->problem));
      is_set_up = true;
      const double share_us = left_s() * 1e6 / static_cast<double>(order.size() - i + left);
      SLUICE_TRY(measure(outcome, *plans, share_us));
    }
    return {};
  }

  void expect(std::size_t count) { count_ = count; }

 private:
  [[nodiscard]] double left_s() const { return options_.max_seconds - (bench_.seconds() - start_); }

  static void set_choice(TuneOutcome& outcome, const Plan& plan) {
    outcome.choice = {};
    copy_text(plan.variant_name(), outcome.choice.variant);
    copy_text(plan.config_name(), outcome.choice.config);
  }

  Status measure(TuneOutcome& outcome, std::vector<Plan>& plans, double share_us) {
    const std::int64_t m = outcome.problem.m;
    const auto copies = static_cast<double>(bench_.copies());
    plans.erase(std::remove_if(plans.begin() + 1, plans.end(),
                               [&](const Plan& plan) {
                                 return is_waste(history_, name_of(plan), m, copies, share_us);
                               }),
                plans.end());
    if (!bench_.prepare(plans)) {
      // What turns out only when it runs (a library that has no algorithm for the shape) costs the
      // candidate, not the tuning. The heuristic's choice has to run.
      plans.erase(
          std::remove_if(plans.begin() + 1, plans.end(),
                         [&](const Plan& plan) { return !bench_.prepare(std::span(&plan, 1)); }),
          plans.end());
      SLUICE_TRY(bench_.prepare(plans));
    }
    RaceOptions rules;
    rules.warm_up_us = std::min(warmed_up_ ? 0.0 : kWarmUpUs, share_us / 4);
    rules.budget_us = share_us;
    rules.deadline_us = left_s() * 1e6;
    rules.is_over = [this] { return left_s() <= 0; };
    warmed_up_ = true;
    const auto sample = [&](std::size_t i) -> Expected<double> {
      auto us = bench_.pass_us(i);
      if (us) return us;
      Error named = us.error();
      std::snprintf(named.message, sizeof(named.message), "%.120s: %.190s",
                    name_of(plans[i]).c_str(), us.error().message);
      return named;
    };
    const auto result = race(plans.size(), sample, rules);
    if (!result) return result.error();
    record(plans, *result, m, copies);
    outcome.times = times_of(plans, *result, copies);
    if (!result->finished) {
      outcome.state = TuneState::kNoTime;
      return {};
    }
    finish(outcome, plans, *result, copies);
    return {};
  }

  void record(const std::vector<Plan>& plans, const RaceResult& result, std::int64_t m,
              double copies) {
    Pasts& pasts = history_[m];
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const Lane& lane = result.lanes[i];
      if (lane.time.samples == 0) continue;
      pasts[name_of(plans[i])] = {lane.time.median_us / copies, lane.state == LaneState::kHopeless};
    }
  }

  // Time may end before a candidate's first sample.
  static std::vector<TuneTime> times_of(const std::vector<Plan>& plans, const RaceResult& result,
                                        double copies) {
    std::vector<TuneTime> out;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const timing::Statistics& time = result.lanes[i].time;
      if (time.samples == 0) continue;
      TuneTime& timed = out.emplace_back();
      copy_text(plans[i].variant_name(), timed.variant);
      copy_text(plans[i].config_name(), timed.config);
      timed.us = time.median_us / copies;
      timed.us_noise = time.us_noise / copies;
      timed.samples = static_cast<int>(time.samples);
    }
    return out;
  }

  void finish(TuneOutcome& outcome, const std::vector<Plan>& plans, const RaceResult& result,
              double copies) {
    const Plan& plan = plans[result.winner];
    const timing::Statistics& time = result.lanes[result.winner].time;
    const auto ns = [&](double pass_us) {
      return std::max<std::int64_t>(1, std::llround(pass_us / copies * 1e3));
    };
    Device planned = device_;
    planned.threads = plan.threads;
    Entry entry;
    entry.key = key_of(outcome.problem, planned);
    copy_text(plan.variant_name(), entry.variant);
    copy_text(plan.config_name(), entry.config);
    entry.time_ns = ns(time.median_us);
    entry.noise_ns = ns(time.us_noise);
    entry.untuned_ns = ns(result.lanes[0].time.median_us);
    keep_(entry);
    outcome.state = TuneState::kMeasured;
    outcome.choice = choice_of(entry, ChoiceSource::kTuneTable);
    outcome.us_noise = time.us_noise / copies;
    outcome.settled = result.settled;
  }

  const Device& device_;
  const TuneOptions& options_;
  Bench& bench_;
  const Keep& keep_;
  double start_;
  bool warmed_up_ = false;
  std::size_t done_ = 0;
  std::size_t count_ = 0;
  History history_;
};

Status check(std::span<const Problem> problems, const TuneOptions& options) {
  if (!(options.max_seconds > 0)) {
    return make_error(ErrorCode::kInvalidArgument, "max_seconds: got %g, wanted more than 0",
                      options.max_seconds);
  }
  if (options.max_memory_bytes < 0 || options.threads < 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "max_memory_bytes and threads: got %lld and %d, wanted 0 or more",
                      static_cast<long long>(options.max_memory_bytes), options.threads);
  }
  for (const Problem& problem : problems) {
    SLUICE_TRY(validate(problem));
    if (problem.m == 0) {
      return make_error(ErrorCode::kInvalidArgument, "m: got 0, wanted at least 1 to tune");
    }
    if (problem.reduce.kind != ReduceKind::kNone) {
      return make_error(ErrorCode::kUnsupported,
                        "reduce: a sum over ranks cannot be timed by one of them; tune the problem "
                        "without it, whose entry serves both");
    }
  }
  return {};
}

}  // namespace

std::vector<std::size_t> spread_order(std::span<const std::int64_t> sorted) {
  std::vector<std::size_t> order;
  if (sorted.empty()) return order;
  order.push_back(0);
  if (sorted.size() > 1) order.push_back(sorted.size() - 1);
  std::vector<std::size_t> there = order;  // by index
  while (order.size() < sorted.size()) {
    // The widest gap by the ratio of its ends that holds something.
    std::size_t widest = 0;
    double ratio = 0;
    for (std::size_t i = 0; i + 1 < there.size(); ++i) {
      if (there[i + 1] - there[i] < 2) continue;
      const double gap =
          static_cast<double>(sorted[there[i + 1]]) / static_cast<double>(sorted[there[i]]);
      if (gap > ratio) ratio = gap, widest = i;
    }
    const auto low = static_cast<double>(sorted[there[widest]]);
    const auto high = static_cast<double>(sorted[there[widest + 1]]);
    const auto middle = static_cast<std::int64_t>(std::sqrt(low * high));
    const auto begin = sorted.begin() + static_cast<std::ptrdiff_t>(there[widest]) + 1;
    const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(there[widest + 1]) - 1;
    const auto at = static_cast<std::size_t>(std::lower_bound(begin, end, middle) - sorted.begin());
    order.push_back(at);
    there.insert(there.begin() + static_cast<std::ptrdiff_t>(widest) + 1, at);
  }
  return order;
}

TuneChoice choice_of(const Entry& entry, ChoiceSource source) noexcept {
  TuneChoice choice;
  std::memcpy(choice.variant, entry.variant, sizeof(choice.variant));
  std::memcpy(choice.config, entry.config, sizeof(choice.config));
  choice.source = source;
  choice.m = entry.key.m;
  choice.d = entry.key.d;
  choice.h = entry.key.h;
  choice.us = static_cast<double>(entry.time_ns) * 1e-3;
  choice.untuned_us = static_cast<double>(entry.untuned_ns) * 1e-3;
  return choice;
}

Expected<std::vector<TuneOutcome>> tune_all(
    std::span<const Problem> problems, const Device& device, const TuneOptions& options,
    Bench& bench, const std::function<const Entry*(const ProblemKey&)>& known, const Keep& keep) {
  SLUICE_TRY(check(problems, options));
  Device planned = device;
  planned.threads = options.threads == 0 ? std::max(1, device.threads) : options.threads;
  std::vector<TuneOutcome> outcomes(problems.size());
  // Groups in the order in which their first problem comes; in a group by m, duplicates left out.
  std::vector<std::map<std::int64_t, std::size_t>> groups;
  std::vector<ProblemKey> shapes;
  std::size_t count = 0;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    outcomes[i].problem = problems[i];
    const ProblemKey key = key_of(problems[i], planned);
    if (const Entry* entry = known(key); entry != nullptr && !options.again) {
      outcomes[i].state = TuneState::kKnown;
      outcomes[i].choice = choice_of(*entry, ChoiceSource::kTuneTable);
      outcomes[i].us_noise = static_cast<double>(entry->noise_ns) * 1e-3;
      continue;
    }
    const auto same = std::find_if(shapes.begin(), shapes.end(),
                                   [&](const ProblemKey& k) { return k.same_shape(key); });
    const auto at = static_cast<std::size_t>(same - shapes.begin());
    if (same == shapes.end()) {
      shapes.push_back(key);
      groups.emplace_back();
    }
    count += groups[at].try_emplace(key.m, i).second ? 1 : 0;
  }
  Tuner tuner(device, options, bench, keep);
  tuner.expect(count);
  for (const auto& group : groups) {
    std::vector<TuneOutcome*> members;
    members.reserve(group.size());
    for (const auto& [m, index] : group) members.push_back(&outcomes[index]);
    count -= members.size();
    SLUICE_TRY(tuner.group(members, count));
  }
  // Problems that came twice.
  for (std::size_t i = 0; i < problems.size(); ++i) {
    if (outcomes[i].state == TuneState::kKnown) continue;
    const ProblemKey key = key_of(problems[i], planned);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!shapes[g].same_shape(key)) continue;
      outcomes[i] = outcomes[groups[g].at(key.m)];
      outcomes[i].problem = problems[i];
    }
  }
  return outcomes;
}

}  // namespace sluice::tune
