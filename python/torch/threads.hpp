// SPDX-License-Identifier: Apache-2.0
// Torch's CPU threads, lent to the library.
#pragma once

#include <cstdint>

namespace sluice_torch {

/// Torch's own threads, as a sluice_parallel_for. After each of its operators they spin for
/// milliseconds: a second pool would have to share the cores with them. Inside a parallel region of
/// Torch, the calling thread alone. What is left out here is done by sluice_run's thread: all,
/// where Torch refuses, and in a forked child, which would wait for libgomp's lost threads for
/// ever.
void on_torch_threads(void* user, std::int32_t count, void (*body)(void*, std::int32_t),
                      void* work);

}  // namespace sluice_torch
