// SPDX-License-Identifier: Apache-2.0
// Regret on planted times, and of a choice that is known to be bad.
#include "harness/regret.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <map>
#include <sstream>

#include "harness/results_read.hpp"
#include "harness/summary.hpp"
#include "process.hpp"
#include "tests/unit/expect_error.hpp"

namespace sluice::harness {
namespace {

using ::testing::ElementsAre;

// One sample of each candidate, of the time planted for it; below 0 it fails.
struct Planted {
  std::vector<double> us;
  std::map<std::size_t, int> taken{};

  Expected<std::vector<std::size_t>> screened() {
    return screen(us.size(), [this](std::size_t i) -> Expected<double> {
      ++taken[i];
      if (us[i] < 0) return make_error(ErrorCode::kUnsupported, "no algorithm");
      return us[i];
    });
  }
};

TEST(Screen, TakesTheChoiceAndTheFiveFastest) {
  Planted planted{{50, 40, 90, 30, 60, 80, 20, 70, 10}};
  EXPECT_THAT(planted.screened().value(), ElementsAre(0, 8, 6, 3, 1, 4));
  EXPECT_EQ(planted.taken.size(), 9U);
  for (const auto& [i, count] : planted.taken) EXPECT_EQ(count, 1) << i;
  // A choice that is slow is timed all the same: its time is what is asked.
  EXPECT_THAT((Planted{{500, 10, 20}}).screened().value(), ElementsAre(0, 1, 2));
}

TEST(Screen, WhatIsTenTimesSlowerOrFailsIsLeftOut) {
  EXPECT_THAT((Planted{{50, 10, 101, -1, 99}}).screened().value(), ElementsAre(0, 1, 4));
  EXPECT_THAT((Planted{{5, 51}}).screened().value(), ElementsAre(0));
  EXPECT_TRUE(test::fails((Planted{{-1, 10}}).screened(), ErrorCode::kUnsupported, "no algorithm"));
}

Timing timing(double us) {
  Timing out;
  out.median_us = us;
  return out;
}

TEST(Regret, IsTheShareAboveTheBest) {
  const std::vector<Timing> beaten = {timing(30), timing(20), timing(25)};
  EXPECT_DOUBLE_EQ(regret_of(beaten), 0.5);
  const std::vector<Timing> best = {timing(20), timing(30)};
  EXPECT_DOUBLE_EQ(regret_of(best), 0);
}

TEST(Regret, OfASlowChoiceIsFound) {
  if (std::popcount(cpu_device().simd_targets) < 2) GTEST_SKIP() << "one SIMD target";
  const auto rig = open_rig("cpu");
  ASSERT_TRUE(rig);
  BenchOptions options;
  options.timer = {.min_total_us = 0, .max_total_us = 1e5, .warm_up_us = 0, .min_samples = 3};
  options.plan.threads = 1;
  options.copies = 1;
  const Case c = parse_case("16x256x512").value();
  const auto chosen = measure_regret(c, **rig, options);
  ASSERT_TRUE(chosen) << chosen.error().message;
  EXPECT_GE(chosen->value, 0);
  // Every config of every variant, each with its time.
  const auto plans = candidates(c.problem, (*rig)->device(), options.plan).value();
  std::istringstream samples(chosen->samples);
  std::string variant;
  std::string config;
  for (const Plan& plan : plans) {
    double us = 0;
    ASSERT_TRUE(samples >> variant >> config >> us) << chosen->samples;
    EXPECT_EQ(variant, plan.variant_name());
    EXPECT_EQ(config, plan.config_name().empty() ? "-" : plan.config_name());
    EXPECT_GT(us, 0);
  }
  EXPECT_FALSE(samples >> variant);
  options.plan.variant = "cpu.simd";
  options.plan.config = "mlp=emulated";
  const auto forced = measure_regret(c, **rig, options);
  ASSERT_TRUE(forced) << forced.error().message;
  EXPECT_GT(forced->value, 1) << "scalar code beside SIMD";
}

TEST(Summary, MeanPercentileAndLowest) {
  EXPECT_FALSE(summarise({}));
  const std::vector<CaseRatio> one = {{"a", 1.5}};
  EXPECT_DOUBLE_EQ(summarise(one)->p5, 1.5);
  // Of 41 ratios the 5th percentile is the third; halfway between two it is their middle.
  std::vector<CaseRatio> many;
  for (int i = 40; i >= 0; --i) many.push_back({std::to_string(i), 1 + i / 10.0});
  EXPECT_DOUBLE_EQ(summarise(many)->p5, 1.2);
  many.resize(31);  // 1.1 and more are 10 to 40
  EXPECT_DOUBLE_EQ(summarise(many)->p5, 2.15);
  const std::vector<CaseRatio> ratios = {{"a", 4}, {"b", 0.5}, {"c", 0.5}, {"d", 1}};
  const auto summary = summarise(ratios);
  EXPECT_EQ(summary->shapes, 4);
  EXPECT_DOUBLE_EQ(summary->mean, 1);
  EXPECT_DOUBLE_EQ(summary->lowest, 0.5);
  EXPECT_EQ(summary->lowest_case, "b");
}

// Four digits of the largest double are more than it.
TEST(ReadResults, TakesTheLargestNumbers) {
  constexpr double kMost = std::numeric_limits<double>::max();
  Row rows[2];
  rows[0].us = kMost;
  rows[1].us = -kMost;
  const auto read =
      read_results(results_text({}, {{"rows", to_json(std::span<const Row>(rows))}}), "out.json");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->rows[0]["us"], kMost);
  EXPECT_EQ(read->rows[1]["us"], -kMost);
}

TEST(ReadResults, GivesWhatWasWritten) {
  const tests::Folder folder;
  Meta meta;
  meta.device = "mine";
  meta.ratios = RatioSummary{2, 1.25, 1.5, 0.5, "a case"};
  meta.skipped = "1x8x8 2x8x8";
  Row rows[2];
  rows[0].op = rows[1].op = "mlp";
  rows[0].m = 1;
  rows[1].m = 2;
  rows[1].regret = 0.25;
  const std::string text = results_text(meta, {{"rows", to_json(std::span<const Row>(rows))}});
  const auto read = read_results_file(folder.write("out.json", text));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(nlohmann::json(read->meta), nlohmann::json(to_json(meta)));
  ASSERT_EQ(read->rows.size(), 2U);
  EXPECT_EQ(read->rows[0]["op"], "mlp");
  EXPECT_TRUE(read->rows[0]["regret"].is_null());
  EXPECT_EQ(read->rows[1]["regret"], 0.25);
  // Written again, it is the same text.
  EXPECT_EQ(results_text(meta, {{"rows", read->rows}}), text);

  for (const auto& [content, why] :
       {std::pair{"", "out.json"},
        {"{}", "it has no meta"},
        {R"({"meta":{}})", "it has no rows"},
        {R"({"meta":{},"columns":["m"],"rows":[[1,2]]})", "not as long as the columns"},
        {R"({"meta":{},"columns":[1],"rows":[[1]]})", "a column has no name"},
        {R"({"meta":{},"columns":[{"a":1}],"rows":[[1]]})", "a column has no name"},
        {R"({"meta":{},"columns":[{"a":["b"]}],"rows":[[1]]})", "none of its column's words"},
        {R"({"meta":{},"columns":[{"a":["b"]}],"rows":[["b"]]})", "none of its column's words"},
        {R"({"meta":{},"columns":["m","m"],"rows":[[1,2]]})", "a column appears twice"}}) {
    EXPECT_TRUE(test::refuses(read_results_file(folder.write("out.json", content)), why));
  }
  EXPECT_TRUE(test::refuses(read_results_file(folder.path("none")), "none: cannot be opened"));
}

}  // namespace
}  // namespace sluice::harness
