// SPDX-License-Identifier: Apache-2.0
// Regret: how much faster than plan()'s choice the best config of a problem is.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "harness/bench.hpp"

namespace sluice::harness {

/// Configs that are timed again beside the choice.
inline constexpr std::size_t kFinalists = 5;
/// What was slower than the fastest by this factor is not timed again.
inline constexpr double kNoFinalist = 10;

/// Takes one sample of a candidate, in microseconds.
using SampleOf = std::function<Expected<double>(std::size_t candidate)>;

struct Regret {
  double value = 0;     ///< regret_of()
  std::string samples;  ///< "VARIANT CONFIG US ...": each config, - for none, and its sample
};

/// Samples `count` candidates once, in order, and returns those to time again: the first, which is
/// the choice, and the kFinalists fastest others, by rising time. A candidate that fails is left
/// out. Errors: those of the first candidate.
[[nodiscard]] Expected<std::vector<std::size_t>> screen(std::size_t count, const SampleOf& sample);

/// The time of the first over the least of all, less one; 0 where the first is the fastest.
[[nodiscard]] double regret_of(std::span<const Timing> timings);

/// The regret of plan()'s choice for a case: every config of every variant, in their order, is
/// sampled once; then the choice and the fastest take turns (`options.timer`). Operands and copies
/// are those of a forward pass. Errors: those of plan(), run() and the rig.
[[nodiscard]] Expected<Regret> measure_regret(const Case& test_case, Rig& rig,
                                              const BenchOptions& options);

}  // namespace sluice::harness
