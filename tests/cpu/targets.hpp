// SPDX-License-Identifier: Apache-2.0
// The SIMD targets of this CPU, for tests that run on each of them.
#pragma once

#include <string>
#include <vector>

#include "sluice/device.hpp"

namespace sluice::test {

inline std::vector<SimdTarget> targets() {
  std::vector<SimdTarget> out;
  for (int i = 0; i < kSimdTargetCount; ++i) {
    if ((cpu_device().simd_targets >> i & 1U) != 0) out.push_back(static_cast<SimdTarget>(i));
  }
  return out;
}

/// The configs of cpu.simd that force them.
inline std::vector<std::string> configs() {
  std::vector<std::string> out;
  for (const SimdTarget target : targets()) {
    out.push_back(std::string("cpu.simd.") + to_string(target));
  }
  return out;
}

}  // namespace sluice::test
