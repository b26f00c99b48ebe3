// SPDX-License-Identifier: Apache-2.0
// The stop rule of tuning: candidates take turns, what has clearly lost leaves, and the race ends
// once more samples would not change its end. No clock and no device: what a sample is comes from
// outside, so that the rule is tested on samples of known distributions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "sluice/status.hpp"
#include "timing/timing.hpp"

namespace sluice::tune {

struct RaceOptions {
  std::size_t min_samples = 5;   ///< of a candidate before it is judged
  std::size_t max_samples = 41;  ///< of a candidate
  /// A candidate is settled once the standard error of its median is below this share of it; also
  /// the smallest advantage that is worth leaving the first candidate for.
  double noise = 0.005;
  /// Out after the first samples: slower than the fastest by this factor.
  double hopeless = 2.0;
  /// Out after the first sample: slower than the fastest by this factor and by `start_up_us`, which
  /// is more than what a first run has to load or make.
  double impossible = 10.0;
  double start_up_us = 10e3;
  double warm_up_us = 0;  ///< the first candidate runs so long before the first sample
  /// Of all samples, warm-up too; cuts min_samples down to 3, and leaves out candidates that do not
  /// fit. Half of it is for first samples.
  double budget_us = 2e6;
  /// No sample begins later, but for the second of two that are compared. Of those sampled in turn
  /// with the first candidate who leads by then wins: without three such samples of both, the first
  /// candidate loses only by a tenth.
  double deadline_us = std::numeric_limits<double>::infinity();
  /// The same by a clock, as samples may take longer than their times add up to. Empty: never.
  std::function<bool()> is_over{};
};

enum class LaneState : std::uint8_t {
  kAlive,     ///< to the end
  kHopeless,  ///< slower than the fastest by RaceOptions::hopeless, by its first two samples, or
              ///< RaceOptions::impossible, by its first
  kLeftOut,   ///< for want of time: not sampled, or slower than those for which there was time
  kBeaten,  ///< slower than the fastest by three standard errors of the difference, and by `noise`
};

/// One candidate at the end of a race. A hopeless one has the faster of its two first samples.
struct Lane {
  timing::Statistics time{};
  LaneState state = LaneState::kAlive;
};

struct RaceResult {
  std::size_t winner = 0;
  std::vector<Lane> lanes;  ///< in the candidates' order
  bool settled = true;  ///< false where budget, deadline or max_samples came before the noise goal,
                        ///< or time left candidates out
  bool finished = true;  ///< false where the deadline came before the first candidate had a sample
                         ///< and, of several, another one
};

/// Takes one sample of a candidate, in microseconds.
using Sample = std::function<Expected<double>(std::size_t candidate)>;

/// Races `count` candidates, at least one; the first is the one that is taken without a race.
///
/// Each candidate's first sample warms it up and tells whether it is hopeless (the worse of two
/// counts for nothing, so that one interruption does no harm). They are taken in the candidates'
/// order, the most promising first, until half of the time is used; one that leads by a tenth is
/// sampled in turn with the first at once, so that the best so far can be kept whenever time ends.
/// Then rounds follow, of the fastest for which three rounds fit in the time; in each every
/// candidate left takes one sample, the order rotated. The fastest median wins; the first
/// candidate stays where its median is within two standard errors of the difference, or within
/// RaceOptions::noise, of the fastest.
/// Errors: those of `sample`.
[[nodiscard]] Expected<RaceResult> race(std::size_t count, const Sample& sample,
                                        const RaceOptions& options);

}  // namespace sluice::tune
