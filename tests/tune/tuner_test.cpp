// SPDX-License-Identifier: Apache-2.0
// The tuner on a bench with a clock of its own: candidates, order, time, what is left out.
#include "tune/tuner.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "problems.hpp"
#include "tests/unit/expect_error.hpp"

namespace sluice::tune {
namespace {

using testing::ElementsAre;
using tests::mlp;

// The CPU with every SIMD target, so that three configs can be chosen from on any machine.
Device cpu() {
  Device d = cpu_device();
  d.threads = 4;
  d.simd_targets = 7;
  return d;
}

// Times are a function of config and problem; the clock advances by what is timed.
class FakeBench final : public Bench {
 public:
  using Time = std::function<double(const std::string& config, std::int64_t m)>;
  explicit FakeBench(Time run_us) : run_us_(std::move(run_us)) {}

  Status set_up(const Problem& largest) override {
    set_ups.push_back(largest.m);
    return {};
  }
  Status prepare(std::span<const Plan> plans) override {
    for (const Plan& plan : plans) {
      if (plan.config_name() == unready) return make_error(ErrorCode::kUnsupported, "no algorithm");
    }
    plans_.assign(plans.begin(), plans.end());
    std::set<std::string> names;
    for (const Plan& plan : plans) names.insert(plan.config_name());
    prepared.emplace_back(plans.front().problem.m, names);
    return {};
  }
  Expected<double> pass_us(std::size_t index) override {
    const Plan& plan = plans_[index];
    if (plan.config_name() == broken) return make_error(ErrorCode::kDevice, "on fire");
    const double us = run_us_(plan.config_name(), plan.problem.m) * 3;
    seconds_ += us * 1e-6 + beside_s;
    return us;
  }
  [[nodiscard]] std::size_t copies() const override { return 3; }
  [[nodiscard]] double seconds() const override { return seconds_; }

  std::vector<std::int64_t> set_ups;
  std::vector<std::pair<std::int64_t, std::set<std::string>>> prepared;
  double beside_s = 0;  // what a pass takes besides its time
  std::string broken;
  std::string unready;  // a config that cannot be made ready

  [[nodiscard]] std::vector<std::int64_t> tokens() const {
    std::vector<std::int64_t> out;
    for (const auto& [m, names] : prepared) out.push_back(m);
    return out;
  }

 private:
  Time run_us_;
  std::vector<Plan> plans_;
  double seconds_ = 1000;
};

struct Tuned {
  std::vector<TuneOutcome> outcomes;
  Table table;
};

Tuned tune(FakeBench& bench, const std::vector<Problem>& problems, const TuneOptions& options = {},
           const Table& known = {}) {
  Tuned tuned;
  auto outcomes = tune_all(
      problems, cpu(), options, bench, [&](const ProblemKey& key) { return known.exact(key); },
      [&](const Entry& entry) {
        tuned.table.add({&entry, 1});
      });
  EXPECT_TRUE(test::succeeds(outcomes));
  if (outcomes) tuned.outcomes = std::move(*outcomes);
  return tuned;
}

std::vector<Problem> mlps(std::initializer_list<std::int64_t> tokens) {
  std::vector<Problem> out;
  for (const std::int64_t m : tokens) out.push_back(mlp(m));
  return out;
}

// avx2 is the fastest, plan()'s own choice (avx512) the second, emulated far behind.
double avx2_wins(const std::string& config, std::int64_t m) {
  const double base = 100 * static_cast<double>(m);
  return config == "mlp=avx2" ? 0.9 * base : config == "mlp=avx512" ? base : 20 * base;
}

TEST(Candidates, AreEveryConfigButThoseForChecking) {
  const auto plans = candidates(mlp(4), cpu());
  ASSERT_TRUE(plans);
  std::vector<std::string> names;
  for (const Plan& plan : *plans) names.emplace_back(plan.config_name());
  EXPECT_THAT(names, ElementsAre("mlp=avx512", "mlp=avx2", "mlp=emulated"));
  EXPECT_EQ(candidates(mlp(4), cpu(), {.threads = 3}).value().front().threads, 3);
  Problem fp64 = mlp(4);
  fp64.x_dtype = fp64.w_dtype = fp64.y_dtype = DType::kF64;
  const auto only = candidates(fp64, cpu());
  ASSERT_TRUE(only);
  ASSERT_EQ(only->size(), 1U);
  EXPECT_STREQ(only->front().variant_name(), "cpu.reference");
}

TEST(Order, EndsFirstThenTheWidestGap) {
  const auto order = [](const std::vector<std::int64_t>& sorted) {
    std::vector<std::int64_t> out;
    for (const std::size_t i : spread_order(sorted)) out.push_back(sorted[i]);
    return out;
  };
  EXPECT_THAT(order({1, 2, 4, 8, 16}), ElementsAre(1, 16, 4, 2, 8));
  EXPECT_THAT(order({1, 100, 101, 102}), ElementsAre(1, 102, 100, 101));
  EXPECT_THAT(order({5}), ElementsAre(5));
  EXPECT_THAT(order({5, 6}), ElementsAre(5, 6));
  EXPECT_THAT(order({}), ElementsAre());
  std::vector<std::int64_t> many;
  for (std::int64_t m = 1; m <= 300; ++m) many.push_back(m * m);
  auto all = order(many);
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, many) << "every one once";
}

TEST(Tuner, EntersTheFastest) {
  FakeBench bench(avx2_wins);
  const Tuned tuned = tune(bench, mlps({4, 1}));
  ASSERT_EQ(tuned.outcomes.size(), 2U);
  for (const TuneOutcome& outcome : tuned.outcomes) {
    EXPECT_EQ(outcome.state, TuneState::kMeasured);
    EXPECT_STREQ(outcome.choice.variant, "cpu.simd");
    EXPECT_STREQ(outcome.choice.config, "mlp=avx2");
    EXPECT_TRUE(outcome.settled);
  }
  EXPECT_EQ(tuned.outcomes[0].problem.m, 4) << "in the order given";
  EXPECT_DOUBLE_EQ(tuned.outcomes[0].choice.us, 360);
  EXPECT_DOUBLE_EQ(tuned.outcomes[0].choice.untuned_us, 400);
  ASSERT_EQ(tuned.outcomes[0].times.size(), 3U);
  EXPECT_STREQ(tuned.outcomes[0].times[0].config, "mlp=avx512") << "the untuned one first";
  EXPECT_DOUBLE_EQ(tuned.outcomes[0].times[1].us, 360);
  EXPECT_STREQ(tuned.outcomes[0].times[2].variant, "cpu.simd");
  EXPECT_EQ(tuned.outcomes[0].times[2].samples, 1) << "hopeless";
  const Entry* entry = tuned.table.exact(key_of(mlp(1), cpu()));
  ASSERT_NE(entry, nullptr);
  EXPECT_STREQ(entry->config, "mlp=avx2");
  EXPECT_EQ(entry->time_ns, 90000);
  EXPECT_EQ(entry->untuned_ns, 100000);
  EXPECT_THAT(bench.set_ups, ElementsAre(4)) << "one set-up a shape, for its largest m";
}

TEST(Tuner, KeysHoldTheThreadsOfThePlan) {
  FakeBench bench(avx2_wins);
  const Tuned tuned = tune(bench, mlps({4}), {.threads = 2});
  Device two = cpu();
  two.threads = 2;
  EXPECT_NE(tuned.table.exact(key_of(mlp(4), two)), nullptr);
  EXPECT_EQ(tuned.table.exact(key_of(mlp(4), cpu())), nullptr);
}

TEST(Tuner, ACandidateThatCannotBeMadeReadyIsLeftOut) {
  FakeBench bench(avx2_wins);
  bench.unready = "mlp=avx2";
  const Tuned tuned = tune(bench, mlps({2}));
  ASSERT_EQ(tuned.outcomes.size(), 1U);
  EXPECT_EQ(tuned.outcomes[0].state, TuneState::kMeasured);
  EXPECT_STREQ(tuned.outcomes[0].choice.config, "mlp=avx512");
}

TEST(Tuner, KnownProblemsAreNotMeasuredUnlessAgain) {
  FakeBench bench(avx2_wins);
  const Tuned first = tune(bench, mlps({1, 2}));
  bench.prepared.clear();
  const Tuned second = tune(bench, mlps({1, 2, 3}), {}, first.table);
  EXPECT_THAT(bench.tokens(), ElementsAre(3));
  EXPECT_EQ(second.outcomes[0].state, TuneState::kKnown);
  EXPECT_STREQ(second.outcomes[0].choice.config, "mlp=avx2");
  EXPECT_EQ(second.outcomes[2].state, TuneState::kMeasured);
  bench.prepared.clear();
  const Tuned again = tune(bench, mlps({1, 2}), {.again = true}, first.table);
  EXPECT_THAT(bench.tokens(), ElementsAre(1, 2));
  EXPECT_EQ(again.outcomes[0].state, TuneState::kMeasured);
}

TEST(Tuner, ProblemsThatComeTwiceAreMeasuredOnce) {
  FakeBench bench(avx2_wins);
  std::vector<std::size_t> done;
  std::vector<Problem> problems = mlps({2, 2, 2});
  problems[1].gate = Gate::clamped_swiglu();  // as long, and another activation's limit
  problems[1].gate.activation = problems[0].gate.activation;
  problems[2].alignment_bytes *= 2;
  const Tuned tuned =
      tune(bench, problems, {.progress = [&](std::size_t i, std::size_t count, const Problem& p) {
             EXPECT_EQ(count, 1U);
             EXPECT_EQ(p.m, 2);
             done.push_back(i);
           }});
  EXPECT_THAT(bench.tokens(), ElementsAre(2));
  EXPECT_THAT(done, ElementsAre(0));
  EXPECT_STREQ(tuned.outcomes[2].choice.config, "mlp=avx2");
  EXPECT_EQ(tuned.outcomes[1].problem.gate.limit, problems[1].gate.limit);
  EXPECT_EQ(tuned.outcomes[2].problem.alignment_bytes, problems[2].alignment_bytes);
}

TEST(Tuner, OneCandidateIsNothingToMeasure) {
  FakeBench bench(avx2_wins);
  Problem p = mlp(2);
  p.x_dtype = p.w_dtype = p.y_dtype = DType::kF64;
  const Tuned tuned = tune(bench, {p});
  EXPECT_EQ(tuned.outcomes[0].state, TuneState::kOneCandidate);
  EXPECT_STREQ(tuned.outcomes[0].choice.variant, "cpu.reference");
  EXPECT_TRUE(bench.prepared.empty() && bench.set_ups.empty());
  EXPECT_TRUE(tuned.table.entries().empty()) << "what was not measured is not in the table";
}

TEST(Tuner, WhatIsHopelessOnBothSidesIsNotTimedBetween) {
  FakeBench bench(avx2_wins);
  tune(bench, mlps({1, 2, 3, 4, 5}), {.max_seconds = 1e6});
  ASSERT_EQ(bench.prepared.size(), 5U);
  for (std::size_t i = 0; i < bench.prepared.size(); ++i) {
    EXPECT_EQ(bench.prepared[i].second.contains("mlp=emulated"), i < 2) << i;
    EXPECT_TRUE(bench.prepared[i].second.contains("mlp=avx2"));
    EXPECT_TRUE(bench.prepared[i].second.contains("mlp=avx512"));
  }
}

// A candidate that is hopeless at one end alone may win in the middle.
TEST(Tuner, WhatIsHopelessOnOneSideIsTimed) {
  FakeBench bench([](const std::string& config, std::int64_t m) {
    return config == "mlp=emulated" && m == 1 ? 1000.0 : 100.0 + static_cast<double>(m);
  });
  tune(bench, mlps({1, 4, 16}), {.max_seconds = 1e6});
  for (const auto& [m, names] : bench.prepared) EXPECT_EQ(names.size(), 3U) << m;
}

// At M = 1 emulated takes 2 ms, a pass of three 6 ms. At M = 4096 a pass could take 25 s, which is
// more than the share of the time that is left.
TEST(Tuner, WhatIsHopelessAndTooLongIsNotTimed) {
  FakeBench bench(avx2_wins);
  const Tuned tuned = tune(bench, mlps({1, 4096}), {.max_seconds = 20});
  EXPECT_THAT(bench.prepared[1].second, ElementsAre("mlp=avx2", "mlp=avx512"));
  EXPECT_EQ(tuned.outcomes[1].state, TuneState::kMeasured);
}

TEST(Tuner, TimeEndsItAndTheNearestServes) {
  FakeBench bench(
      [](const std::string& config, std::int64_t) { return config == "mlp=avx2" ? 0.85e5 : 1e5; });
  std::vector<Problem> problems;
  for (std::int64_t m = 1; m <= 64; ++m) problems.push_back(mlp(m));
  const double before = bench.seconds();
  const Tuned tuned = tune(bench, problems, {.max_seconds = 30});
  // A pass takes 0.3 s at most: the last sample may begin just before the end.
  EXPECT_LE(bench.seconds() - before, 30.3);
  int measured = 0;
  int without = 0;
  for (const TuneOutcome& outcome : tuned.outcomes) {
    measured += outcome.state == TuneState::kMeasured ? 1 : 0;
    without += outcome.state == TuneState::kNoTime ? 1 : 0;
    // What was measured lies around the rest.
    const Entry* near = tuned.table.nearest(key_of(outcome.problem, cpu()));
    if (near != nullptr) {
      EXPECT_STREQ(near->config, "mlp=avx2");
    }
  }
  EXPECT_EQ(measured + without, 64);
  EXPECT_GE(measured, 2);
  EXPECT_GT(without, 0);
  EXPECT_EQ(tuned.outcomes[0].state, TuneState::kMeasured);
  EXPECT_EQ(tuned.outcomes[63].state, TuneState::kMeasured);
}

// What a pass does besides its time counts too: here a hundred times as much.
TEST(Tuner, TimeIsTheClocks) {
  FakeBench bench([](const std::string&, std::int64_t) { return 1e4; });
  bench.beside_s = 3;
  const double before = bench.seconds();
  const Tuned tuned = tune(bench, mlps({16}), {.max_seconds = 5});
  EXPECT_LE(bench.seconds() - before, 5 + 2 * 3.1);
  EXPECT_FALSE(tuned.outcomes[0].settled && tuned.outcomes[0].state == TuneState::kMeasured);
}

// A candidate that time left out has no time of 0, which would be the fastest.
TEST(Tuner, TimesAreOfWhatWasTimed) {
  FakeBench slow([](const std::string&, std::int64_t) { return 1e6; });
  const Tuned late = tune(slow, mlps({16}), {.max_seconds = 1});
  EXPECT_EQ(late.outcomes[0].state, TuneState::kNoTime);
  EXPECT_TRUE(late.outcomes[0].times.empty());
  FakeBench bench(avx2_wins);
  const Tuned timed = tune(bench, mlps({16}));
  EXPECT_EQ(timed.outcomes[0].times.size(), 3U);
  for (const TuneTime& time : timed.outcomes[0].times) EXPECT_GT(time.samples, 0) << time.config;
}

// Time ends with the first samples: the portable kernel alone takes half of it, once.
TEST(Tuner, TheBestSoFarIsKeptWhenTimeEnds) {
  FakeBench bench([](const std::string& config, std::int64_t) {
    return config == "mlp=emulated" ? 0.53e6 : config == "mlp=avx2" ? 0.6e5 : 0.9e5;
  });
  const Tuned tuned = tune(bench, mlps({4195}), {.max_seconds = 2.4});
  const TuneOutcome& outcome = tuned.outcomes[0];
  EXPECT_EQ(outcome.state, TuneState::kMeasured);
  EXPECT_FALSE(outcome.settled);
  EXPECT_STREQ(outcome.choice.config, "mlp=avx2");
  EXPECT_EQ(outcome.times.size(), 3U);
  const Entry* kept = tuned.table.exact(key_of(mlp(4195), cpu()));
  ASSERT_NE(kept, nullptr);
  EXPECT_STREQ(kept->config, "mlp=avx2");
  EXPECT_EQ(outcome.times[0].samples, 1) << "in turn with the fastest, after its first";
  EXPECT_EQ(outcome.times[2].samples, 1) << "the portable kernel";
}

// The bar of the command: a model's 66 token counts within a minute, at GPU-like times.
TEST(Tuner, AModelFitsInAMinute) {
  FakeBench bench([](const std::string& config, std::int64_t m) {
    return (config == "mlp=avx2" ? 99.9 : 100.0) + static_cast<double>(m);
  });
  std::vector<Problem> problems = mlps({128, 256});
  for (std::int64_t m = 1; m <= 64; ++m) problems.push_back(mlp(m));
  const double before = bench.seconds();
  const Tuned tuned = tune(bench, problems);
  EXPECT_LT(bench.seconds() - before, 60);
  for (const TuneOutcome& outcome : tuned.outcomes) EXPECT_EQ(outcome.state, TuneState::kMeasured);
}

TEST(Tuner, ErrorsNameTheCandidateAndKeepWhatWasMeasured) {
  FakeBench bench(avx2_wins);
  bench.broken = "mlp=avx2";
  std::size_t kept = 0;
  const auto failed = tune_all(
      mlps({1}), cpu(), {}, bench, [](const ProblemKey&) { return nullptr; },
      [&](const Entry&) { ++kept; });
  EXPECT_TRUE(test::fails(failed, ErrorCode::kDevice, "cpu.simd mlp=avx2: on fire"));
  EXPECT_EQ(kept, 0U);
}

TEST(Tuner, RefusesWhatCannotBeTuned) {
  FakeBench bench(avx2_wins);
  const auto outcome = [&](const Problem& p, const TuneOptions& options = {}) {
    return tune_all(
        {&p, 1}, cpu(), options, bench, [](const ProblemKey&) { return nullptr; },
        [](const Entry&) {});
  };
  EXPECT_TRUE(test::refuses(outcome(mlp(0)), "m: got 0, wanted at least 1 to tune"));
  EXPECT_TRUE(test::refuses(outcome(mlp(-1)), "m: got -1"));
  EXPECT_TRUE(test::refuses(outcome(mlp(1), {.max_seconds = 0}), "max_seconds: got 0"));
  EXPECT_TRUE(test::refuses(outcome(mlp(1), {.max_seconds = std::nan("")}), "max_seconds"));
  EXPECT_TRUE(test::refuses(outcome(mlp(1), {.threads = -1}), "0 and -1, wanted 0 or more"));
  EXPECT_TRUE(test::refuses(outcome(mlp(1), {.max_memory_bytes = -1}), "-1 and 0"));
  EXPECT_TRUE(bench.prepared.empty());
}

}  // namespace
}  // namespace sluice::tune
