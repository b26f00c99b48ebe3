// SPDX-License-Identifier: Apache-2.0
// Workspaces of runs: one at a time for each host thread (CPU), for each stream and for each graph
// capture (CUDA).
#pragma once

#include <sluice/sluice.h>

#include "place.hpp"

namespace sluice_torch {

/// Runs `plan` with a workspace of `bytes` that nothing else uses meanwhile. Throws what the
/// library says.
void run_with_workspace(const sluice_plan& plan, const sluice_operands& operands, std::size_t bytes,
                        const Place& place);

}  // namespace sluice_torch
