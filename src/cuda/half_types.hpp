// SPDX-License-Identifier: Apache-2.0
// What several kernels refuse alike.
#pragma once

#include "core/kernel.hpp"

namespace sluice::cuda {

/// A device older than what the portable kernels are compiled for.
[[nodiscard]] inline detail::Reason capability_refusal(const Device& device) noexcept {
  if (device.compute_capability >= 75) return {};
  return detail::refuse("needs compute capability 7.5, the device has %d.%d",
                        device.compute_capability / 10, device.compute_capability % 10);
}

/// Anything but bf16 or fp16, the same in every operand; weight and bias gradients have a type of
/// their own.
[[nodiscard]] inline detail::Reason half_type_refusal(const Problem& p) noexcept {
  const bool half = p.x_dtype == DType::kBF16 || p.x_dtype == DType::kF16;
  const bool has_weights = p.op != Op::kWeightGrad && p.op != Op::kColumnSum;
  const bool has_y =
      p.op == Op::kDown || p.op == Op::kGateUpGrad || p.op == Op::kNorm || p.op == Op::kAllReduce;
  if (!half || (has_weights && p.w_dtype != p.x_dtype) || (has_y && p.y_dtype != p.x_dtype)) {
    return detail::refuse("takes bf16 or fp16, the same for x, weights, y and dy; got %s, %s, %s",
                          to_string(p.x_dtype), to_string(p.w_dtype), to_string(p.y_dtype));
  }
  return {};
}

}  // namespace sluice::cuda
