// SPDX-License-Identifier: Apache-2.0
// Interleaved timing: every candidate of a comparison runs in turns in one process, so that a slow
// minute of the machine hits all of them. What a sample is and when to stop: docs/benchmarking.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sluice/plan.hpp"
#include "sluice/status.hpp"
#include "timing/timing.hpp"

namespace sluice::harness {

class Rig;

using timing::Run;
using timing::Stopwatch;

/// The stopwatch of the rig's backend. Errors: those of the device; kUnsupported for a GPU rig in a
/// build without CUDA.
[[nodiscard]] Expected<std::unique_ptr<Stopwatch>> make_stopwatch(Rig& rig);

/// One side of a comparison. A pass is all of `runs` in order, each on a copy of the weights of its
/// own, so that no run finds its weights in a cache; a sample is the time of a pass over the number
/// of runs.
struct Candidate {
  std::string name;
  std::vector<Run> runs;
  /// Timed as often as the others, but no reason to go on: its noise is not waited for.
  bool reference = false;
};

struct TimerOptions {
  double min_total_us = 300e3;   ///< of each candidate, warm-up not counted
  double max_total_us = 20e6;    ///< of all candidates together; cuts min_samples down to 3
  double warm_up_us = 100e3;     ///< of each candidate, at least one pass
  std::size_t min_samples = 11;  ///< of each candidate
  /// Stop once the standard error of each median is below this share of it.
  double noise = 0.01;
};

/// The samples of one candidate, in microseconds a run.
struct Timing : timing::Statistics {
  std::string name;
  std::vector<double> samples_us{};  ///< of a run, round by round
  std::size_t runs = 0;              ///< timed runs in all
  bool converged = true;             ///< false where the time cap came before the noise goal
};

/// Warms up and times the candidates in turns, their order turned round every other round and
/// rotated every second. Returns one Timing a candidate, in the order given. `progress` (may be
/// empty) is called before every round with the elapsed and the allowed time in microseconds.
/// Errors: kInvalidArgument for no candidate or an empty list; those of the runs.
Expected<std::vector<Timing>> time_interleaved(
    Stopwatch& stopwatch, std::span<const Candidate> candidates, const TimerOptions& options,
    const std::function<void(double, double)>& progress = {});

}  // namespace sluice::harness
