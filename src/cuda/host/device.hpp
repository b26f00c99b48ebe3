// SPDX-License-Identifier: Apache-2.0
// The current device, and the workspace header's first bytes.
#pragma once

#include "sluice/device.hpp"
#include "sluice/plan.hpp"
#include "sluice/status.hpp"

namespace sluice::cuda {

/// Makes a device current for a scope and restores the one that was. Where they are the same it
/// costs one look-up (tens of nanoseconds).
class DeviceGuard {
 public:
  explicit DeviceGuard(int ordinal) noexcept;
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  /// Whether the device is current. kDevice where the driver refused it.
  [[nodiscard]] const Status& status() const noexcept { return status_; }

 private:
  Status status_;
  int previous_ = -1;  // -1: nothing to restore
};

/// workspace_init() for a CUDA device: zeroes kWorkspaceHeaderBytes at `header` in stream order.
/// Can be captured. Errors: kDevice.
Status zero_header(void* header, const Device& device, Stream stream) noexcept;

}  // namespace sluice::cuda
