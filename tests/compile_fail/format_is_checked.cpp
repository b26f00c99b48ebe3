// SPDX-License-Identifier: Apache-2.0
// make_error's format and its arguments must agree.
// error: [-Werror=format=]
#include "sluice/status.hpp"

sluice::Error use(const char* name) {
#if defined(MISUSE)
  return sluice::make_error(sluice::ErrorCode::kInternal, "got %d", name);
#else
  return sluice::make_error(sluice::ErrorCode::kInternal, "got %s", name);
#endif
}
