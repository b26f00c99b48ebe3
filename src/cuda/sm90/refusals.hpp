// SPDX-License-Identifier: Apache-2.0
// What every Hopper kernel refuses, with the reason. Pure.
#pragma once

#include "core/kernel.hpp"
#include "cuda/sm90/limits.hpp"

namespace sluice::cuda::sm90 {

/// Anything but a Hopper GPU with 227 KiB of shared memory a block.
[[nodiscard]] inline detail::Reason device_refusal(const Device& device) noexcept {
  if (device.arch != Arch::kHopper) {
    return detail::refuse("needs a Hopper GPU (9.0), the device is %d.%d",
                          device.compute_capability / 10, device.compute_capability % 10);
  }
  if (device.smem_per_block_bytes < kMaxSmemBytes) {
    return detail::refuse("needs %d bytes of shared memory a block, the device has %d",
                          kMaxSmemBytes, device.smem_per_block_bytes);
  }
  return {};
}

}  // namespace sluice::cuda::sm90
