// SPDX-License-Identifier: Apache-2.0
// Place: the device of a call, and what the library knows of it.
#pragma once

#include <sluice/sluice.h>

#include <cstdint>

namespace sluice_binding {

/// More CUDA devices than a host holds; a number beyond is refused.
constexpr std::int32_t kMaxDevices = 64;

struct Place {
  bool cuda = false;
  std::int32_t index = 0;  ///< CUDA device number, below kMaxDevices; 0 for the CPU

  friend bool operator==(const Place&, const Place&) = default;
};

/// The library's description, asked once a device; of the CPU held to the SIMD target that
/// SLUICE_MAX_SIMD names. Throws where that is none.
const sluice_device& device_of(const Place& place);

/// The measured choices for it, as sluice_scheduler_find takes them: those shipped with the library
/// and those of the file that SLUICE_TUNE_CACHE names. Throws where that is no such file.
sluice_scheduler* scheduler_of(const Place& place);

}  // namespace sluice_binding
