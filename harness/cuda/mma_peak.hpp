// SPDX-License-Identifier: Apache-2.0
// A kernel that multiplies in registers and does nothing else: the ceiling of mma.sync, which on
// Hopper lies below that of its own wgmma.
#pragma once

#include <cstdint>

#include "sluice/device.hpp"
#include "sluice/plan.hpp"
#include "sluice/status.hpp"

namespace sluice::harness {

/// Enqueues `rounds` rounds of mma.sync m16n8k16 (bf16, fp32 accumulators) on every SM of the
/// current device. `sink` is 4 bytes that are written in no practical case. Errors: kDevice.
Status enqueue_mma(const Device& device, int rounds, void* sink, Stream stream);

/// The operations of one such launch, two a multiply-add.
[[nodiscard]] double mma_flops(const Device& device, int rounds);

}  // namespace sluice::harness
