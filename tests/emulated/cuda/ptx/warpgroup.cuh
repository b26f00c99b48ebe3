// SPDX-License-Identifier: Apache-2.0
// Of warpgroup.cuh what kernels below 9.0 read.
#pragma once

#include "emulator.hpp"

namespace sluice::cuda::ptx {

inline void named_barrier_sync(int id, int threads) { emulator::wait_at_barrier(id, threads); }

}  // namespace sluice::cuda::ptx
