// SPDX-License-Identifier: Apache-2.0
// A variant's parameters must fit a Config, so that plans stay plain values.
// error: static assertion failed
#include "core/variant.hpp"

struct Parameters {
#if defined(MISUSE)
  int tiles[64];
#else
  int tiles[4];
#endif
};

sluice::Config use(const Parameters& parameters) {
  return sluice::detail::make_config("name", parameters);
}
