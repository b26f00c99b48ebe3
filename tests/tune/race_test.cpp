// SPDX-License-Identifier: Apache-2.0
// The stop rule on samples of known distributions: who wins, who leaves when, and that noise alone
// changes nothing.
#include "tune/race.hpp"

#include <gtest/gtest.h>

#include <random>

#include "tests/unit/expect_error.hpp"

namespace sluice::tune {
namespace {

// Candidates with a true time each, and normal noise as a share of it.
class Field {
 public:
  Field(std::vector<double> true_us, double noise, unsigned seed = 1)
      : true_us_(std::move(true_us)), noise_(noise), random_(seed), taken(true_us_.size()) {}

  Sample sample() {
    return [this](std::size_t i) -> Expected<double> {
      ++taken[i];
      order.push_back(i);
      std::normal_distribution<double> draw(0.0, 1.0);
      return true_us_[i] * (1 + noise_ * draw(random_)) * factor(order.size() - 1);
    };
  }
  [[nodiscard]] RaceResult run(const RaceOptions& options = {}) {
    return race(true_us_.size(), sample(), options).value();
  }

 private:
  std::vector<double> true_us_;
  double noise_;
  std::mt19937 random_;

 public:
  std::vector<int> taken;          // samples of each
  std::vector<std::size_t> order;  // who was sampled when
  std::function<double(std::size_t)> factor = [](std::size_t) { return 1.0; };
};

TEST(Race, TheFastestWinsAndTheRestLeave) {
  Field field({100, 90, 120, 500}, 0.002);
  const RaceResult result = field.run();
  EXPECT_EQ(result.winner, 1U);
  EXPECT_TRUE(result.settled && result.finished);
  EXPECT_EQ(result.lanes[3].state, LaneState::kHopeless);
  EXPECT_EQ(field.taken[3], 2);
  EXPECT_EQ(result.lanes[2].state, LaneState::kBeaten);
  EXPECT_EQ(result.lanes[0].state, LaneState::kBeaten);
  EXPECT_EQ(result.lanes[1].state, LaneState::kAlive);
  const RaceOptions defaults;
  EXPECT_EQ(field.taken[2], static_cast<int>(defaults.min_samples) + 1);
  // Five samples of deviation 0.2 % have a median within 1 % of the truth (more than ten errors).
  EXPECT_NEAR(result.lanes[1].time.median_us, 90, 0.9);
}

TEST(Race, OneCandidateIsMeasuredAllTheSame) {
  Field field({10}, 0.01);
  const RaceResult result = field.run();
  EXPECT_EQ(result.winner, 0U);
  EXPECT_EQ(result.lanes[0].time.samples, 3U);
}

// Equal candidates: leaving the first must be rare. With two rivals and a threshold of two standard
// errors a fair draw leaves it in 2 · 2.3 % of the races; looking at five samples and more allows
// for twice that.
TEST(Race, NoiseAloneRarelyLeavesTheFirst) {
  int left = 0;
  constexpr unsigned kRaces = 500;
  for (unsigned seed = 0; seed < kRaces; ++seed) {
    left += Field({100, 100, 100}, 0.01, seed).run().winner == 0 ? 0 : 1;
  }
  EXPECT_LE(left, kRaces * 4 * 0.023);
}

// What is chosen is never slower than the first by more than the noise: two deviations here.
TEST(Race, NeverLosesByMoreThanNoise) {
  constexpr double kNoise = 0.01;
  const std::vector<double> truth = {100, 100 * (1 + 2 * kNoise), 104, 99};
  int best = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    const RaceResult result = Field(truth, kNoise, seed).run();
    EXPECT_LE(truth[result.winner], 100) << seed;
    best += result.winner == 3 ? 1 : 0;
  }
  EXPECT_GT(best, 0) << "a candidate faster by 1 % is found at times";
}

TEST(Race, AnAdvantageBeyondTheNoiseIsFound) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    EXPECT_EQ(Field({100, 105, 95}, 0.01, seed).run().winner, 2U) << seed;
  }
}

// An advantage below RaceOptions::noise is not worth leaving, however well it is known.
TEST(Race, TinyAdvantagesAreNotTaken) {
  EXPECT_EQ(Field({100, 99.7}, 0).run().winner, 0U);
  EXPECT_EQ(Field({100, 99.0}, 0).run().winner, 1U);
}

TEST(Race, OneInterruptionDoesNoHarm) {
  Field field({100, 90}, 0.001);
  field.factor = [](std::size_t i) { return i == 1 ? 50.0 : 1.0; };  // the winner's first sample
  EXPECT_EQ(field.run().winner, 1U);
  Field later({100, 90}, 0.001);
  later.factor = [](std::size_t i) { return i == 5 ? 50.0 : 1.0; };
  EXPECT_EQ(later.run().winner, 1U);
}

// A machine that becomes slower by half during the race slows all alike.
TEST(Race, DriftHitsAllAlike) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    Field field({100, 95, 103}, 0.005, seed);
    field.factor = [](std::size_t i) { return 1 + 0.5 * static_cast<double>(i) / 60; };
    EXPECT_NE(field.run().winner, 2U) << seed;
  }
}

TEST(Race, TheOrderRotates) {
  Field field({10, 10, 10}, 0);
  static_cast<void>(field.run({.min_samples = 3}));
  ASSERT_GE(field.order.size(), 12U);
  EXPECT_EQ(std::vector(field.order.begin(), field.order.begin() + 12),
            (std::vector<std::size_t>{0, 1, 2, 0, 1, 2, 1, 2, 0, 2, 0, 1}));
}

TEST(Race, NoiseThatNeverSettlesEndsAtTheMostSamples) {
  Field field({100, 100}, 0.3);
  const RaceResult result = field.run({.max_samples = 20, .budget_us = 1e9});
  EXPECT_FALSE(result.settled);
  EXPECT_TRUE(result.finished);
  EXPECT_LE(field.taken[0], 21);
}

TEST(Race, TheBudgetLeavesThreeRounds) {
  Field field({100, 100}, 0.1);
  const RaceResult result = field.run({.budget_us = 1});
  EXPECT_FALSE(result.settled);
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.lanes[0].time.samples, 3U);
}

TEST(Race, TheDeadlineEndsIt) {
  Field field({100, 100}, 0);
  const RaceResult result = field.run({.deadline_us = 350});
  EXPECT_TRUE(result.finished);
  EXPECT_FALSE(result.settled);
  EXPECT_EQ(field.taken[0] + field.taken[1], 4) << "no sample begins after the deadline";
  Field none({100, 100}, 0);
  EXPECT_FALSE(none.run({.deadline_us = 100}).finished) << "nothing was compared";
  EXPECT_FALSE(none.run({.warm_up_us = 100, .deadline_us = 100}).finished);
  Field timed({100, 100}, 0);
  EXPECT_FALSE(timed.run({.is_over = [&] { return timed.order.size() >= 3; }}).settled);
  EXPECT_EQ(timed.order.size(), 3U) << "nor once it is over by the clock";
  Field alone({100}, 0);
  EXPECT_TRUE(alone.run({.deadline_us = 100}).finished);
}

// Time ends before the first round. Who leads clearly has been sampled in turn with the first.
TEST(Race, WhoLeadsAtTheDeadlineWins) {
  Field field({100, 95, 80, 5000}, 0);
  const RaceResult result = field.run({.deadline_us = 5400});
  EXPECT_TRUE(result.finished);
  EXPECT_FALSE(result.settled);
  EXPECT_EQ(result.winner, 2U);
  EXPECT_EQ(field.order, (std::vector<std::size_t>{0, 1, 2, 0, 2, 3}));
  // Within a tenth, few samples are no reason to leave the first.
  EXPECT_EQ(Field({100, 95}, 0).run({.deadline_us = 350}).winner, 0U);
  EXPECT_EQ(Field({100, 85}, 0).run({.deadline_us = 350}).winner, 1U);
  // What was not timed does not win by a time of 0.
  EXPECT_EQ(Field({100, 120, 50}, 0).run({.deadline_us = 150}).winner, 0U);
}

// A lucky first sample wins nothing, however little time there is: the pair that follows decides.
TEST(Race, ANoisyTieKeepsTheFirst) {
  Field lucky({100, 100}, 0);
  lucky.factor = [](std::size_t at) { return at == 1 ? 0.5 : 1.0; };
  const RaceResult result = lucky.run({.deadline_us = 300});
  EXPECT_EQ(lucky.order, (std::vector<std::size_t>{0, 1, 0, 1}));
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.winner, 0U);
  int left = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    const double deadline_us = 250 + 5 * seed;
    left += Field({100, 100, 100, 100}, 0.01, seed).run({.deadline_us = deadline_us}).winner > 0;
  }
  EXPECT_LE(left, 200 * 6 * 0.023) << "three rivals, two standard errors, looked at twice";
}

// Sixty candidates by falling promise and time for a few: half of it goes into first samples, the
// rest into rounds of the fastest.
TEST(Race, LittleTimeIsForThePromising) {
  std::vector<double> truth = {100, 105, 85, 130};
  for (int i = 0; i < 60; ++i) truth.push_back(140 + i);
  for (const bool is_deadline : {false, true}) {
    Field field(truth, 0.001);
    RaceOptions options;
    (is_deadline ? options.deadline_us : options.budget_us) = 2000;
    const RaceResult result = field.run(options);
    EXPECT_EQ(result.winner, 2U);
    EXPECT_TRUE(result.finished);
    EXPECT_FALSE(result.settled) << "others were left out";
    EXPECT_GE(field.taken[0], 4);
    EXPECT_GE(field.taken[2], 4);
    EXPECT_EQ(field.taken[5], 1);
    EXPECT_EQ(result.lanes[5].state, LaneState::kLeftOut);
    EXPECT_EQ(field.taken.back(), 0) << "there was no time for it";
    double us = 0;
    for (std::size_t i = 0; i < truth.size(); ++i) us += truth[i] * field.taken[i];
    EXPECT_LE(us, 2000 + 200);
  }
}

TEST(Race, WhatIsTenTimesSlowerIsTimedOnce) {
  Field field({1e4, 9e3, 19e3, 530e3}, 0.002);
  const RaceResult result = field.run();
  EXPECT_EQ(result.winner, 1U);
  EXPECT_EQ(field.taken[3], 1);
  EXPECT_EQ(result.lanes[3].state, LaneState::kHopeless);
  EXPECT_EQ(result.lanes[3].time.samples, 1U);
  EXPECT_EQ(field.taken[2], 2) << "twice as slow may have been interrupted";
  // A first sample that loads code is no such thing.
  Field loading({100, 90}, 0);
  loading.factor = [](std::size_t at) { return at == 1 ? 100.0 : 1.0; };
  EXPECT_EQ(loading.run().winner, 1U);
}

TEST(Race, WarmsUpTheFirst) {
  Field field({100, 100}, 0);
  const RaceResult result = field.run({.warm_up_us = 1000});
  EXPECT_EQ(result.winner, 0U);
  EXPECT_EQ(field.taken[0], field.taken[1] + 10);
}

TEST(Race, AClockThatStandsStillEnds) {
  const auto nothing = [](std::size_t) -> Expected<double> { return 0.0; };
  EXPECT_EQ(race(2, nothing, {.warm_up_us = 1}).value().winner, 0U);
}

TEST(Race, ErrorsComeThrough) {
  const auto failing = [](std::size_t i) -> Expected<double> {
    if (i == 1) return make_error(ErrorCode::kDevice, "the device is on fire");
    return 1.0;
  };
  EXPECT_TRUE(test::fails(race(2, failing, {}), ErrorCode::kDevice, "on fire"));
}

}  // namespace
}  // namespace sluice::tune
