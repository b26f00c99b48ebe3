// SPDX-License-Identifier: Apache-2.0
// What plan() and explain() share.
#pragma once

#include "core/choices.hpp"

namespace sluice::detail {

/// The recipe of this name; null for none.
[[nodiscard]] const Recipe* find_recipe(const char* name, Backend backend) noexcept;

/// plan(), and the table's entry where the choice is a tuned one.
[[nodiscard]] Expected<Plan> make_plan(const Problem& problem, const Device& device,
                                       const Options& options, TuneChoice& entry) noexcept;

}  // namespace sluice::detail
