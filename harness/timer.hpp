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

namespace sluice::harness {

class Rig;

/// Enqueues one run on a stream (CPU: runs it). Must neither allocate nor synchronise, so that a
/// GPU stopwatch can capture it in a graph.
using Run = std::function<Status(Stream)>;

/// Times a list of runs on one device. One implementation a backend.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  Stopwatch() = default;
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  /// Makes a list ready to be timed as a whole and returns its handle; a GPU stopwatch captures the
  /// list in a graph here. The list must not be empty. Errors: those of the runs, kDevice.
  virtual Expected<std::size_t> prepare(std::vector<Run> runs) = 0;

  /// Runs the whole list `handle` once and returns the microseconds it took, all of them done when
  /// this returns; GPU: between two events around the graph. Errors: those of the runs, kDevice.
  virtual Expected<double> time_us(std::size_t handle) = 0;
};

/// std::chrono::steady_clock around direct calls with a null stream.
[[nodiscard]] std::unique_ptr<Stopwatch> make_cpu_stopwatch();

/// The stopwatch of the rig's backend. Errors: those of the device; kUnsupported for a GPU rig in a
/// build without CUDA.
[[nodiscard]] Expected<std::unique_ptr<Stopwatch>> make_stopwatch(Rig& rig);

/// One side of a comparison. A pass is all of `runs` in order, each on a copy of the weights of its
/// own, so that no run finds its weights in a cache; a sample is the time of a pass over the number
/// of runs.
struct Candidate {
  std::string name;
  std::vector<Run> runs;
};

struct TimerOptions {
  double min_total_us = 300e3;   ///< of each candidate, warm-up not counted
  double max_total_us = 20e6;    ///< of all candidates together; cuts min_samples down to 3
  double warm_up_us = 100e3;     ///< of each candidate, at least one pass
  std::size_t min_samples = 11;  ///< of each candidate
  /// Stop once the standard error of each median is below this share of it.
  double noise = 0.01;
};

/// Order statistics of the samples of one candidate, in microseconds a run.
struct Timing {
  std::string name;
  double median_us = 0;
  double p10_us = 0;
  double p90_us = 0;
  std::size_t samples = 0;
  std::size_t runs = 0;   ///< timed runs in all
  double us_noise = 0;    ///< estimated standard error of the median
  bool converged = true;  ///< false where the time cap came before the noise goal
};

/// Statistics of samples; The quantiles interpolate linearly; the noise is
/// 1.253 · standard deviation / sqrt(n) with the deviation taken from the p10-p90 spread (robust
/// against single interruptions).
[[nodiscard]] Timing summarize(std::string name, std::vector<double> samples);

/// Warms up and times the candidates in turns, their order rotated every round. Returns one Timing
/// a candidate, in the order given. `progress` (may be empty) is called before every round with
/// the elapsed and the allowed time in microseconds.
/// Errors: kInvalidArgument for no candidate or an empty list; those of the runs.
Expected<std::vector<Timing>> time_interleaved(
    Stopwatch& stopwatch, std::span<const Candidate> candidates, const TimerOptions& options,
    const std::function<void(double, double)>& progress = {});

/// The most bytes that a rotation walks. A CPU reports the last-level cache of the whole socket
/// (320 MiB and more), of which a core reaches the part of its own complex: 96 MiB at the most on
/// x86 processors sold by 2025. Five times that is cold, and still quick to fill.
inline constexpr std::int64_t kMaxRotationBytes = std::int64_t{512} << 20;

/// Copies of `bytes` that a pass must walk so that none is left in a last-level cache of
/// `cache_bytes` when its turn comes again: four times the cache but at most kMaxRotationBytes, at
/// least one copy, at most 1024.
[[nodiscard]] std::size_t rotation_copies(std::int64_t bytes, std::int64_t cache_bytes) noexcept;

}  // namespace sluice::harness
