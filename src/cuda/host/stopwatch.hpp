// SPDX-License-Identifier: Apache-2.0
// The stopwatch of a GPU: a list of runs captured in one graph, timed between two events.
#pragma once

#include <memory>

#include "timing/timing.hpp"

namespace sluice::cuda {

/// Captures each list on `stream` of device `ordinal` and replays it: launch costs of the host are
/// not in the time. A replay starts with an L2 full of lines that no candidate has, read from twice
/// its size of memory. The stream must not be the default one and must outlive the stopwatch.
/// Leaves `ordinal` the current device. Errors: kDevice.
[[nodiscard]] Expected<std::unique_ptr<timing::Stopwatch>> make_stopwatch(int ordinal,
                                                                          Stream stream);

}  // namespace sluice::cuda
