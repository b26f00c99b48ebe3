// SPDX-License-Identifier: Apache-2.0
// Where tensors live, and the stream that Torch runs on.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "binding/place.hpp"

namespace sluice_torch {

using sluice_binding::Place;

/// Where a tensor lives. Throws std::invalid_argument with the operand's name for a device that is
/// neither a CPU nor a CUDA device.
Place place_of(const char* name, const torch::stable::Tensor& tensor);

/// The stream that Torch currently runs on (a cudaStream_t); null for the CPU.
void* current_stream(const Place& place);

}  // namespace sluice_torch
