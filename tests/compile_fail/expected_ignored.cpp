// SPDX-License-Identifier: Apache-2.0
// Nor may an Expected be dropped.
// error: [-Werror=unused-result]
#include "sluice/plan.hpp"

void use(const sluice::Problem& problem) {
#if defined(MISUSE)
  sluice::plan(problem, sluice::cpu_device());
#else
  static_cast<void>(sluice::plan(problem, sluice::cpu_device()).has_value());
#endif
}
