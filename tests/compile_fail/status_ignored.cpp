// SPDX-License-Identifier: Apache-2.0
// A Status that nobody looks at is an error that nobody sees.
// error: [-Werror=unused-result]
#include "sluice/plan.hpp"

void use(const sluice::Plan& plan, const sluice::Operands& operands) {
#if defined(MISUSE)
  sluice::run(plan, operands, {}, nullptr);
#else
  if (!sluice::run(plan, operands, {}, nullptr)) return;
#endif
}
