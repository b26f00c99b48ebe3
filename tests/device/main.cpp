// SPDX-License-Identifier: Apache-2.0
// The GPU test program. Without a device it skips (exit status 77), or fails where
// SLUICE_REQUIRE_GPU=1. A run in which no test ran fails too.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sluice/device.hpp"

namespace {

constexpr int kSkipped = 77;

bool gpu_required() {
  const char* value = std::getenv("SLUICE_REQUIRE_GPU");
  return value != nullptr && std::strcmp(value, "0") != 0 && value[0] != '\0';
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  const auto device = sluice::cuda_device(0);
  if (!device) {
    std::fprintf(stderr, "%s: %s\n", gpu_required() ? "FAILED" : "skipped", device.error().message);
    return gpu_required() ? 1 : kSkipped;
  }
  std::printf("device: %s, compute capability %d, driver %d\n", device->name,
              device->compute_capability, device->driver_version);
  const int failed = RUN_ALL_TESTS();
  const auto& unit = *testing::UnitTest::GetInstance();
  if (unit.successful_test_count() + unit.failed_test_count() == 0) {
    std::fprintf(stderr, "FAILED: no test ran\n");
    return 1;
  }
  return failed;
}
