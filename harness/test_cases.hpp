// SPDX-License-Identifier: Apache-2.0
// The case lists that every variant of every backend is put through, and the loop that forces each
// of them. The CPU's tests and the GPU test program share them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "harness/case.hpp"
#include "harness/rig.hpp"
#include "harness/verify.hpp"

namespace sluice::harness {

/// Cases of one operator: all types by all gates, all types by all placements, shapes with odd
/// tails by flags, special values, integers, broadcasts, in place, poor alignment. A few hundred,
/// each below 10^7 multiplications.
[[nodiscard]] std::vector<Case> operator_cases(Op op);

/// One forced run of a case.
struct ForcedRun {
  const char* variant = nullptr;
  const char* config = nullptr;
  Expected<VerifyReport> report;
};

/// Verifies the case with every variant of the rig's backend that supports it and every config that
/// the variant offers, forced by name; hands each outcome to `check`. Returns the number of runs.
std::int64_t for_each_forced(const Case& c, Rig& rig,
                             const std::function<void(const ForcedRun&)>& check,
                             const VerifyOptions& verify = {});

}  // namespace sluice::harness
