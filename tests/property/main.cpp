// SPDX-License-Identifier: Apache-2.0
// Sets how many cases a property is tried on before rapidcheck reads it, and the seed: the same run
// every time, so that a failure is of the change at hand. RC_PARAMS, where given, wins:
// RC_PARAMS="max_success=1000" draws new cases each time, "seed=…" repeats a run.
#include <gtest/gtest.h>

#include <cstdlib>

int main(int argc, char** argv) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  setenv("RC_PARAMS", "seed=1 max_success=12", 0);
#else
  setenv("RC_PARAMS", "seed=1 max_success=100", 0);
#endif
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
