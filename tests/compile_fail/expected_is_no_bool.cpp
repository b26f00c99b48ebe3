// SPDX-License-Identifier: Apache-2.0
// The test for success is explicit: an Expected<int> must not turn into 1 by itself.
// error: cannot convert
#include "sluice/status.hpp"

int use(const sluice::Expected<int>& made) {
#if defined(MISUSE)
  int value = made;
#else
  int value = made ? *made : 0;
#endif
  return value;
}
