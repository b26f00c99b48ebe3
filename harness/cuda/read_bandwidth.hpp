// SPDX-License-Identifier: Apache-2.0
// Kernels that move memory and do nothing else: the ceilings of weight streams and of elementwise
// work.
#pragma once

#include <cstddef>

#include "sluice/device.hpp"
#include "sluice/plan.hpp"
#include "sluice/status.hpp"

namespace sluice::harness {

/// Enqueues one read of `bytes` (a multiple of 1 MiB) at `data` on the current device: bulk copies
/// of 32 KiB into shared memory, six in flight an SM, on sm_90; 16-byte loads, eight in flight a
/// thread, elsewhere. `sink` is 4 bytes that are written in no practical case. Errors: kDevice.
Status enqueue_read(const Device& device, const void* data, std::size_t bytes, void* sink,
                    Stream stream);

/// Enqueues one copy of `bytes` (a multiple of 1 MiB) by 16-byte loads and stores, eight in flight
/// a thread. In a captured graph it is faster than the runtime's copy, which takes a copy engine
/// there (2.8 against 4 TB/s on an H200). Errors: kDevice.
Status enqueue_copy(const Device& device, void* to, const void* from, std::size_t bytes,
                    Stream stream);

}  // namespace sluice::harness
