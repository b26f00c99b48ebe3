// SPDX-License-Identifier: Apache-2.0
// Workspaces of runs: one at a time for each host thread (CPU) and for each stream (CUDA).
#pragma once

#include <sluice/sluice.h>
#include <xla/ffi/api/ffi.h>

#include <cstddef>

#include "binding/place.hpp"

namespace sluice_jax {

using sluice_binding::Place;

/// Runs a CPU plan with a workspace of `bytes` that nothing else uses meanwhile. Throws what the
/// library says.
void run_on_cpu(const sluice_plan& plan, const sluice_operands& operands, std::size_t bytes);

/// The same on a CUDA stream (a cudaStream_t), which captures nothing: the header is the stream's
/// and `scratch` XLA's, which takes it back after the call and gives it to later work of the
/// stream.
void run_on_cuda(const sluice_plan& plan, const sluice_operands& operands, std::size_t bytes,
                 const Place& place, void* stream, xla::ffi::ScratchAllocator& scratch);

}  // namespace sluice_jax
