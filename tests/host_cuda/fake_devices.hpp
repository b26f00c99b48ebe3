// SPDX-License-Identifier: Apache-2.0
// Descriptions of GPUs that need not be there: what `plan` and `supports` read.
#pragma once

#include "sluice/device.hpp"

namespace sluice::gpu {

inline constexpr int kH200SmCount = 132;

[[nodiscard]] inline Device h200() {
  Device device;
  device.backend = Backend::kCuda;
  device.arch = Arch::kHopper;
  device.compute_capability = 90;
  device.sm_count = kH200SmCount;
  device.smem_per_block_bytes = 232448;
  device.cooperative_launch = true;
  return device;
}

[[nodiscard]] inline Device h200_with_cublaslt() {
  Device device = h200();
  device.cublaslt_version = 130100;
  return device;
}

/// What tells it from an H200, which h200() is without saying so, is its L2.
[[nodiscard]] inline Device h100_with_cublaslt() {
  Device device = h200_with_cublaslt();
  device.l2_bytes = 50 << 20;
  return device;
}

[[nodiscard]] inline Device a100() {
  Device device = h200();
  device.arch = Arch::kAmpere;
  device.compute_capability = 80;
  device.sm_count = 108;
  device.smem_per_block_bytes = 166912;
  return device;
}

}  // namespace sluice::gpu
