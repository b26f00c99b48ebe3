// SPDX-License-Identifier: Apache-2.0
// What a decode step of an engine runs right before an MLP: a small kernel that writes x.
#pragma once

#include "sluice/plan.hpp"
#include "sluice/status.hpp"

namespace sluice::harness {

/// Enqueues a kernel of one CTA on the current device that reads and writes the first 16 bytes of
/// `x`, leaving their value. Like an engine's norm it gives nobody leave to start before its end.
/// Errors: kDevice.
Status enqueue_predecessor(void* x, Stream stream);

}  // namespace sluice::harness
