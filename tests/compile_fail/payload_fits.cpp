// SPDX-License-Identifier: Apache-2.0
// A kernel's parameters must fit a KernelConfig, so that plans stay plain values.
// error: static assertion failed
#include "core/kernel.hpp"

struct Parameters {
#if defined(MISUSE)
  int tiles[64];
#else
  int tiles[4];
#endif
};

sluice::KernelConfig use(const Parameters& parameters) {
  return sluice::detail::to_config(parameters);
}
