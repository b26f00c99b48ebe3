// SPDX-License-Identifier: Apache-2.0
// Workspaces of runs: one at a time for each host thread (CPU), for each stream and for each graph
// capture (CUDA).
#pragma once

#include <sluice/sluice.h>

#include "place.hpp"

namespace sluice_torch {

/// What runs, but for the workspace.
struct Work {
  const sluice_plan& plan;
  const sluice_operands& operands;
  const sluice_peers* peers;  ///< null where the plan has no sum over ranks
};

/// Runs `work` with a workspace of `bytes` that nothing else uses meanwhile. Throws what the
/// library says.
void run_with_workspace(const Work& work, std::size_t bytes, const Place& place);

/// May a call take memory from Torch's allocator and give it back at its end? Not in a graph that
/// somebody else captures: it would be another tensor's when the graph is replayed.
bool may_borrow(const Place& place);

}  // namespace sluice_torch
