// SPDX-License-Identifier: Apache-2.0
// Two matrices on the GPU against each other, for outputs that are too large for the host.
#pragma once

#include <cstdint>

#include "harness/rig.hpp"
#include "sluice/operands.hpp"
#include "sluice/status.hpp"

namespace sluice::harness {

struct GpuComparison {
  std::int64_t compared = 0;
  std::int64_t failed = 0;         ///< |got - expected| over the bound, or a NaN on one side alone
  double worst_ratio = 0;          ///< largest |got - expected| / bound over finite elements; with
                                   ///< a bound of 0, the largest |got - expected|
  std::int64_t first_failed = -1;  ///< row · cols + col of the first that failed, or -1
};

/// Compares [rows, cols] elements of two operands of one shape on the rig's GPU with the bound
/// absolute + relative · |expected|. Waits for the result. Errors: kDevice, kOutOfMemory.
[[nodiscard]] Expected<GpuComparison> compare_on_gpu(const OperandSpec& expected_spec,
                                                     const void* expected,
                                                     const OperandSpec& got_spec, const void* got,
                                                     double absolute, double relative, Rig& rig);

}  // namespace sluice::harness
