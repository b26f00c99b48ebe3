// SPDX-License-Identifier: Apache-2.0
// How a kernel is timed: lists of runs on operands that rotate beyond the caches, by one clock a
// backend. The scheduler and the harness measure alike, so that what one finds the other confirms;
// but a pass of the scheduler is one walk over the copies, for it compares and does not report.
// What a sample is: docs/benchmarking.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sluice/device.hpp"
#include "sluice/operands.hpp"
#include "sluice/plan.hpp"
#include "sluice/problem.hpp"
#include "sluice/status.hpp"

namespace sluice::timing {

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
  /// this returns. GPU: between two events around the graph, behind a read that leaves L2 full of
  /// what nobody wrote. Errors: those of the runs, kDevice.
  virtual Expected<double> time_us(std::size_t handle) = 0;
};

/// std::chrono::steady_clock around direct calls with a null stream. The GPU's is
/// cuda::make_stopwatch().
[[nodiscard]] std::unique_ptr<Stopwatch> make_cpu_stopwatch();

/// Order statistics of samples, in microseconds.
struct Statistics {
  double median_us = 0;
  double p10_us = 0;
  double p90_us = 0;
  std::size_t samples = 0;
  double us_noise = 0;  ///< estimated standard error of the median
};

/// The quantiles interpolate linearly; the noise is 1.253 · standard deviation / sqrt(n) with the
/// deviation taken from the p10-p90 spread (robust against single interruptions).
[[nodiscard]] Statistics statistics(std::vector<double> samples);

/// The most bytes that a rotation walks. A CPU reports the last-level cache of the whole socket
/// (320 MiB and more), of which a core reaches the part of its own complex: 96 MiB at the most on
/// x86 processors sold by 2025. Five times that is cold, and still quick to fill.
inline constexpr std::int64_t kMaxRotationBytes = std::int64_t{512} << 20;

/// Whether each copy of a problem's operands has an operand `id` of its own: weights, norm_weight
/// and biases; of a training step and of operators without weights every operand. The activations
/// of inference are one set for all copies, as an engine's layers take turns with a few buffers.
/// With a y of its own a copy measured something else: L2 gives up what is written to so many
/// places line by line among the reads, at 1 to 3 us a MB (H200; docs/kernels/log/mlp_decode.md).
[[nodiscard]] bool rotates(const Problem& problem, Operand id) noexcept;

/// Copies of `bytes` that a pass must walk so that none is left in a last-level cache of
/// `cache_bytes` when its turn comes again: four times the cache but at most kMaxRotationBytes, at
/// least one copy, at most 1024.
[[nodiscard]] std::size_t rotation_copies(std::int64_t bytes, std::int64_t cache_bytes) noexcept;

/// Copies of the `bytes` that rotate that a pass on `device` walks: rotation_copies(), and on a GPU
/// at least eight where they fit in a quarter of its memory: a pass is one graph there, in which
/// several runs share the cost of starting it and follow each other as the layers of a model do.
[[nodiscard]] std::size_t chain_copies(std::int64_t bytes, const Device& device) noexcept;

/// Runs of a pass over `copies` copies, of which one walk over all takes at least `walk_us` (0:
/// nobody knows): on a GPU whole walks until there are as many runs as a model has layers, 32, or
/// the next walk might end behind four milliseconds. What a graph takes to start, 5 us and more, a
/// model's step has once for all its layers.
[[nodiscard]] std::size_t chain_runs(std::size_t copies, double walk_us,
                                     const Device& device) noexcept;

}  // namespace sluice::timing
