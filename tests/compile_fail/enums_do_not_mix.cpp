// SPDX-License-Identifier: Apache-2.0
// Enums are scoped: an activation is not a number and not another enum.
// error: cannot convert
#include "sluice/problem.hpp"

sluice::Gate use() {
  sluice::Gate gate;
#if defined(MISUSE)
  gate.activation = sluice::Op::kMlp;
#else
  gate.activation = sluice::Activation::kRelu;
#endif
  return gate;
}
