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
// The share of its time by which the first candidate has to lose while there is no median.
constexpr double kEarlyWin = 0.1;
// The share of the time that first samples may take. The rest is for rounds.
constexpr double kHeatShare = 0.5;

class Race {
 public:
  Race(std::size_t count, const Sample& sample, const RaceOptions& options)
      : sample_(sample), options_(options), samples_(count) {
    result_.lanes.resize(count);
  }

  Expected<RaceResult> run() {
    SLUICE_TRY(warm_up());
    SLUICE_TRY(heat());
    SLUICE_TRY(drop_hopeless());
    shortlist();
    for (std::size_t round = 0; !done(round); ++round) {
      const std::vector<std::size_t> order = alive();
      for (std::size_t i = 0; i < order.size() && !is_late(); ++i) {
        SLUICE_TRY(take_in_turn(order[(i + round) % order.size()]));
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
    while (spent_us_ < options_.warm_up_us && !is_late()) {
      const auto us = take(0);
      if (!us) return us.error();
    }
    return {};
  }

  // A sample that is compared with those of the other candidates.
  Status take_in_turn(std::size_t lane) {
    const auto us = take(lane);
    if (!us) return us.error();
    samples_[lane].push_back(*us);
    result_.lanes[lane].time = timing::statistics(samples_[lane]);
    return {};
  }

  // First samples, in the candidates' order. Who leads clearly is sampled in turn with the first
  // candidate at once: whenever time ends, the best so far has been compared.
  Status heat() {
    for (std::size_t i = 0; i < samples_.size() && !is_late(); ++i) {
      if (i > 1 && spent_us_ >= kHeatShare * allowed_us()) break;
      const auto us = take(i);
      if (!us) return us.error();
      result_.lanes[i].time = timing::statistics({*us});
      const bool leads = i == 0 || *us < fastest_us_;
      if (!leads) continue;
      fastest_us_ = *us;
      if (*us >= (1 - kEarlyWin) * time(0).median_us || is_late()) continue;
      SLUICE_TRY(take_in_turn(0));
      SLUICE_TRY(take_in_turn(i));
    }
    return {};
  }

  Status drop_hopeless() {
    for (Lane& lane : result_.lanes) {
      if (lane.time.median_us <= options_.hopeless * fastest_us_) continue;
      if (lane.time.median_us > options_.impossible * fastest_us_ + options_.start_up_us) {
        lane.state = LaneState::kHopeless;
        continue;
      }
      if (is_late()) continue;
      const auto again = take(static_cast<std::size_t>(&lane - result_.lanes.data()));
      if (!again) return again.error();
      lane.time = timing::statistics({std::min(lane.time.median_us, *again)});
      if (lane.time.median_us > options_.hopeless * fastest_us_) lane.state = LaneState::kHopeless;
    }
    return {};
  }

  // Leaves out what was not sampled, and the slowest of which three rounds would take longer than
  // what is left of the time. The first candidate, the fastest and who was compared already stay.
  void shortlist() {
    std::vector<std::size_t> left = alive();
    std::ranges::stable_sort(left, {}, [&](std::size_t i) { return time(i).median_us; });
    const double round_us = (allowed_us() - spent_us_) / kLeastSamples;
    double taken_us = result_.lanes[0].state == LaneState::kAlive ? time(0).median_us : 0;
    bool has_rival = false;
    for (const std::size_t i : left) {
      if (i == 0) continue;
      const bool sampled = time(i).samples > 0;
      if (sampled) taken_us += time(i).median_us;
      const bool stays = !has_rival || taken_us <= round_us || !samples_[i].empty();
      if (!sampled || !stays) {
        result_.lanes[i].state = LaneState::kLeftOut;
        result_.settled = false;
      }
      has_rival = has_rival || sampled;
    }
  }

  [[nodiscard]] std::vector<std::size_t> alive() const {
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < result_.lanes.size(); ++i) {
      if (result_.lanes[i].state == LaneState::kAlive) out.push_back(i);
    }
    return out;
  }

  // The fastest median of those left that were sampled in turn; the earlier of equals.
  [[nodiscard]] std::size_t fastest() const {
    std::vector<std::size_t> left = alive();
    std::erase_if(left, [&](std::size_t i) { return samples_[i].empty(); });
    const auto best = std::min_element(left.begin(), left.end(), [&](std::size_t a, std::size_t b) {
      return time(a).median_us < time(b).median_us;
    });
    return best == left.end() ? 0 : *best;
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

  [[nodiscard]] double allowed_us() const {
    return std::min(options_.budget_us, options_.deadline_us);
  }
  [[nodiscard]] bool is_late() const {
    return spent_us_ >= options_.deadline_us || (options_.is_over && options_.is_over());
  }

  // Is there a choice between the first candidate and another one, where there is another one?
  [[nodiscard]] bool has_compared() const {
    const auto sampled = std::count_if(result_.lanes.begin(), result_.lanes.end(),
                                       [](const Lane& lane) { return lane.time.samples > 0; });
    return time(0).samples > 0 && (sampled > 1 || result_.lanes.size() == 1);
  }

  bool done(std::size_t rounds) {
    if (is_late()) {
      result_.settled = false;
      result_.finished = has_compared();
      return true;
    }
    if (rounds < kLeastSamples) return false;
    const std::vector<std::size_t> left = alive();
    const bool all_settled = std::all_of(left.begin(), left.end(), [&](std::size_t i) {
      return error_us(i) <= options_.noise * time(i).median_us;
    });
    if (left.size() == 1 || (rounds >= options_.min_samples && all_settled)) return true;
    const bool ends = rounds >= options_.max_samples || spent_us_ >= options_.budget_us;
    result_.settled = result_.settled && !ends;
    return ends;
  }

  [[nodiscard]] std::size_t winner() const {
    const std::size_t best = fastest();
    if (best == 0 || result_.lanes[0].state != LaneState::kAlive) return best;
    const bool early = std::min(time(0).samples, time(best).samples) < kLeastSamples;
    const double worth =
        early ? kEarlyWin * time(0).median_us
              : std::max(options_.noise * time(0).median_us, kWinErrors * lag_error_us(0, best));
    return lag_us(0, best) <= worth ? 0 : best;
  }

  const Sample& sample_;
  const RaceOptions& options_;
  std::vector<std::vector<double>> samples_;  // but for the first ones
  RaceResult result_;
  double spent_us_ = 0;
  double fastest_us_ = 0;  // of the first samples
};

}  // namespace

Expected<RaceResult> race(std::size_t count, const Sample& sample, const RaceOptions& options) {
  return Race(count, sample, options).run();
}

}  // namespace sluice::tune
