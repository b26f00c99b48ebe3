// SPDX-License-Identifier: Apache-2.0
#include "tune/race.hpp"

#include <algorithm>
#include <cmath>

namespace sluice::tune {
namespace {

// Below three samples there is no median to speak of.
constexpr std::size_t kLeastSamples = 3;
// Standard errors of a difference: to drop a candidate for good, and to leave the first one.
constexpr double kBeatenErrors = 3.0;
constexpr double kWinErrors = 2.0;

class Race {
 public:
  Race(std::size_t count, const Sample& sample, const RaceOptions& options)
      : sample_(sample), options_(options), samples_(count) {
    result_.lanes.resize(count);
  }

  Expected<RaceResult> run() {
    SLUICE_TRY(warm_up());
    SLUICE_TRY(heat());
    for (std::size_t round = 0; !done(round); ++round) {
      const std::vector<std::size_t> order = alive();
      for (std::size_t i = 0; i < order.size() && !is_late(); ++i) {
        const std::size_t lane = order[(i + round) % order.size()];
        const auto us = take(lane);
        if (!us) return us.error();
        samples_[lane].push_back(*us);
        result_.lanes[lane].time = timing::statistics(samples_[lane]);
      }
      if (round + 1 >= options_.min_samples) drop_beaten();
    }
    result_.winner = winner();
    return result_;
  }

 private:
  Expected<double> take(std::size_t lane) {
    auto us = sample_(lane);
    // Guards against a clock that does not advance.
    if (us) spent_us_ += std::max(*us, 1e-3);
    return us;
  }

  Status warm_up() {
    while (spent_us_ < options_.warm_up_us) {
      const auto us = take(0);
      if (!us) return us.error();
    }
    return {};
  }

  // First samples.
  Status heat() {
    double fastest = 0;
    for (std::size_t i = 0; i < samples_.size() && !is_late(); ++i) {
      const auto us = take(i);
      if (!us) return us.error();
      result_.lanes[i].time = timing::statistics({*us});
      fastest = i == 0 ? *us : std::min(fastest, *us);
    }
    for (Lane& lane : result_.lanes) {
      if (lane.time.median_us <= options_.hopeless * fastest || is_late()) continue;
      const auto again = take(static_cast<std::size_t>(&lane - result_.lanes.data()));
      if (!again) return again.error();
      lane.time = timing::statistics({std::min(lane.time.median_us, *again)});
      if (lane.time.median_us > options_.hopeless * fastest) lane.state = LaneState::kHopeless;
    }
    return {};
  }

  [[nodiscard]] std::vector<std::size_t> alive() const {
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < result_.lanes.size(); ++i) {
      if (result_.lanes[i].state == LaneState::kAlive) out.push_back(i);
    }
    return out;
  }

  // The fastest median of those left; the earlier of equals.
  [[nodiscard]] std::size_t fastest() const {
    const std::vector<std::size_t> left = alive();
    return *std::min_element(left.begin(), left.end(), [&](std::size_t a, std::size_t b) {
      return time(a).median_us < time(b).median_us;
    });
  }

  [[nodiscard]] const timing::Statistics& time(std::size_t lane) const {
    return result_.lanes[lane].time;
  }
  [[nodiscard]] double lag_us(std::size_t lane, std::size_t best) const {
    return time(lane).median_us - time(best).median_us;
  }
  // The spread of few samples is smaller than the distribution's: of five normal ones p90 - p10 is
  // 0.70 of it, of nine 0.81, of twenty 0.90, on average. 1 + 4/n makes up for it and leaves some
  // room for the spread's own chance.
  [[nodiscard]] double error_us(std::size_t lane) const {
    const auto samples = static_cast<double>(time(lane).samples);
    return time(lane).us_noise * (1 + 4 / samples);
  }
  [[nodiscard]] double lag_error_us(std::size_t lane, std::size_t best) const {
    return std::hypot(error_us(lane), error_us(best));
  }

  void drop_beaten() {
    const std::size_t best = fastest();
    for (const std::size_t i : alive()) {
      const double clear =
          std::max(options_.noise * time(best).median_us, kBeatenErrors * lag_error_us(i, best));
      if (lag_us(i, best) > clear) result_.lanes[i].state = LaneState::kBeaten;
    }
  }

  [[nodiscard]] bool is_late() const { return spent_us_ >= options_.deadline_us; }

  bool done(std::size_t rounds) {
    if (is_late()) {
      result_.settled = false;
      result_.finished = rounds >= kLeastSamples;
      return true;
    }
    if (rounds < kLeastSamples) return false;
    const std::vector<std::size_t> left = alive();
    const bool all_settled = std::all_of(left.begin(), left.end(), [&](std::size_t i) {
      return error_us(i) <= options_.noise * time(i).median_us;
    });
    if (left.size() == 1 || (rounds >= options_.min_samples && all_settled)) return true;
    result_.settled = rounds < options_.max_samples && spent_us_ < options_.budget_us;
    return !result_.settled;
  }

  [[nodiscard]] std::size_t winner() const {
    const std::size_t best = fastest();
    if (best == 0 || result_.lanes[0].state != LaneState::kAlive) return best;
    const double worth =
        std::max(options_.noise * time(0).median_us, kWinErrors * lag_error_us(0, best));
    return lag_us(0, best) <= worth ? 0 : best;
  }

  const Sample& sample_;
  const RaceOptions& options_;
  std::vector<std::vector<double>> samples_;  // but for the first ones
  RaceResult result_;
  double spent_us_ = 0;
};

}  // namespace

Expected<RaceResult> race(std::size_t count, const Sample& sample, const RaceOptions& options) {
  return Race(count, sample, options).run();
}

}  // namespace sluice::tune
