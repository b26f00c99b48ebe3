// SPDX-License-Identifier: Apache-2.0
// Of mbarrier.cuh what kernels below 9.0 read.
#pragma once

#include "emulator.hpp"

namespace sluice::cuda::ptx {

inline std::uint32_t shared_address(const void* pointer) {
  return emulator::shared_address(pointer);
}

inline void mbarrier_init(const std::uint64_t& barrier, std::uint32_t arrivals) {
  emulator::init_mbarrier(shared_address(&barrier), arrivals);
}

inline void mbarrier_arrive(const std::uint64_t& barrier) {
  emulator::arrive(shared_address(&barrier));
}

inline void mbarrier_wait(const std::uint64_t& barrier, std::uint32_t parity) {
  emulator::wait_for_phase(shared_address(&barrier), parity);
}

}  // namespace sluice::cuda::ptx
