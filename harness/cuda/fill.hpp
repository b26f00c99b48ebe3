// SPDX-License-Identifier: Apache-2.0
// fill_value() on the GPU, for operands that are too large to be filled on the host and uploaded.
#pragma once

#include "harness/fill.hpp"
#include "sluice/operands.hpp"
#include "sluice/plan.hpp"
#include "sluice/status.hpp"

namespace sluice::harness {

/// Enqueues the fill of a matrix on the current device: the same bits as fill_matrix() on the host,
/// for every type, NaN included. A row stride of 0 holds row 0. Errors: kDevice.
Status fill_matrix_on_gpu(const OperandSpec& spec, const FillParams& params, void* base,
                          Stream stream);

}  // namespace sluice::harness
