// SPDX-License-Identifier: Apache-2.0
// The SIMD targets of this CPU, for tests that run on each of them.
#pragma once

#include <string>
#include <vector>

#include "sluice/device.hpp"
#include "sluice/types.hpp"

namespace sluice::test {

inline std::vector<SimdTarget> targets() {
  std::vector<SimdTarget> out;
  for (int i = 0; i < kSimdTargetCount; ++i) {
    if ((cpu_device().simd_targets >> i & 1U) != 0) out.push_back(static_cast<SimdTarget>(i));
  }
  return out;
}

/// The words that force them in a config of cpu.simd.
inline std::vector<std::string> words() {
  std::vector<std::string> out;
  for (const SimdTarget target : targets()) {
    out.emplace_back(to_string(target));
  }
  return out;
}

/// A config of cpu.simd with one of them: "mlp=avx2".
inline std::string config_of(Op op, const std::string& word) {
  return std::string(to_string(op)) + "=" + word;
}

}  // namespace sluice::test
