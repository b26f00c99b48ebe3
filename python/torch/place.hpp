// SPDX-License-Identifier: Apache-2.0
// Place: the device of a call, what the library knows of it, and the stream that Torch runs on.
#pragma once

#include <sluice/sluice.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>

namespace sluice_torch {

struct Place {
  bool cuda = false;
  std::int32_t index = 0;  ///< CUDA device number; 0 for the CPU

  friend bool operator==(const Place&, const Place&) = default;
};

/// Where a tensor lives. Throws std::invalid_argument with the operand's name for a device that is
/// neither a CPU nor a CUDA device.
Place place_of(const char* name, const torch::stable::Tensor& tensor);

/// The library's description, asked once a device; of the CPU held to the SIMD target that
/// SLUICE_MAX_SIMD names. Throws where that is none.
const sluice_device& device_of(const Place& place);

/// The measured choices for it, as sluice_scheduler_find takes them: those shipped with the library
/// and those of the file that SLUICE_TUNE_CACHE names. Throws where that is no such file.
sluice_scheduler* scheduler_of(const Place& place);

/// The stream that Torch currently runs on (a cudaStream_t); null for the CPU.
void* current_stream(const Place& place);

}  // namespace sluice_torch
