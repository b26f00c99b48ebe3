// SPDX-License-Identifier: Apache-2.0
// Of mbarrier.cuh what kernels without mbarriers read.
#pragma once

#include "emulator.hpp"

namespace sluice::cuda::ptx {

inline std::uint32_t shared_address(const void* pointer) {
  return emulator::shared_address(pointer);
}

}  // namespace sluice::cuda::ptx
