// SPDX-License-Identifier: Apache-2.0
// The stopwatch of a GPU: a list of runs captured in one graph, timed between two events.
#pragma once

#include <memory>

#include "harness/timer.hpp"

namespace sluice::harness {

/// Captures each list on the rig's stream and replays it: launch costs of the host are not in the
/// time. The lists rotate over operands beyond the L2 (rotation_copies()), so that weights are
/// cold. The rig must outlive the stopwatch. Errors: kDevice.
[[nodiscard]] Expected<std::unique_ptr<Stopwatch>> make_cuda_stopwatch(Rig& rig);

}  // namespace sluice::harness
