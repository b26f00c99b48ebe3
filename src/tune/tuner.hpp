// SPDX-License-Identifier: Apache-2.0
// The tuner: which candidates are timed for which problem, in which order, within the time.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sluice/scheduler.hpp"
#include "tune/bench.hpp"
#include "tune/table.hpp"

namespace sluice::tune {

/// The order in which token counts are measured: the smallest, the largest, then always the middle
/// of the widest gap left. Where time runs out, what was measured lies around what was not.
/// `sorted` has no duplicates.
[[nodiscard]] std::vector<std::size_t> spread_order(std::span<const std::int64_t> sorted);

/// What tune_all() calls with each entry as soon as it is measured.
using Keep = std::function<void(const Entry&)>;

/// Scheduler::tune() but for the table: `known` says whether a key has an entry already, `keep`
/// takes new ones. The device is described by `device`, timed by `bench`.
[[nodiscard]] Expected<std::vector<TuneOutcome>> tune_all(
    std::span<const Problem> problems, const Device& device, const TuneOptions& options,
    Bench& bench, const std::function<const Entry*(const ProblemKey&)>& known, const Keep& keep);

/// The entry as plan() and explain() see it.
[[nodiscard]] TuneChoice choice_of(const Entry& entry, ChoiceSource source) noexcept;

}  // namespace sluice::tune
