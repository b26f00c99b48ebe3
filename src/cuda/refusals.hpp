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

/// Whether x, weights, y and dy have one type, as far as the operator has them.
[[nodiscard]] inline bool has_one_type(const Problem& p) noexcept {
  const bool has_weights = p.op != Op::kWeightGrad && p.op != Op::kColumnSum;
  const bool has_y =
      p.op == Op::kDown || p.op == Op::kGateUpGrad || p.op == Op::kNorm || p.op == Op::kAllReduce;
  return (!has_weights || p.w_dtype == p.x_dtype) && (!has_y || p.y_dtype == p.x_dtype);
}

/// Anything but bf16 or fp16, the same in every operand; weight and bias gradients have a type of
/// their own.
[[nodiscard]] inline detail::Reason half_type_refusal(const Problem& p) noexcept {
  const bool half = p.x_dtype == DType::kBF16 || p.x_dtype == DType::kF16;
  if (!half || !has_one_type(p)) {
    return detail::refuse("takes bf16 or fp16, the same for x, weights, y and dy; got %s, %s, %s",
                          to_string(p.x_dtype), to_string(p.w_dtype), to_string(p.y_dtype));
  }
  return {};
}

/// Of weight_grad's outputs anything but fp32 or x's type.
[[nodiscard]] inline detail::Reason grad_type_refusal(const Problem& p) noexcept {
  if (p.op != Op::kWeightGrad || p.dw_dtype == DType::kF32 || p.dw_dtype == p.x_dtype) return {};
  return detail::refuse("dw_gate: is %s, wanted fp32 or %s", to_string(p.dw_dtype),
                        to_string(p.x_dtype));
}

/// Sizes that kernels do not count in 32 bits: rows, weight rows (2 H) and columns.
[[nodiscard]] inline detail::Reason size_refusal(const Problem& p) noexcept {
  constexpr std::int64_t kMaxDim = std::int64_t{1} << 29;
  if (p.m <= kMaxDim && p.d <= kMaxDim && p.h <= kMaxDim) return {};
  return detail::refuse("m, d, h are %lld, %lld, %lld, wanted at most %lld each",
                        static_cast<long long>(p.m), static_cast<long long>(p.d),
                        static_cast<long long>(p.h), static_cast<long long>(kMaxDim));
}

inline constexpr std::int64_t kUnitBytes = 16;

/// An alignment below the units of 16 bytes that a kernel moves.
[[nodiscard]] inline detail::Reason alignment_refusal(const Problem& p) noexcept {
  if (p.alignment_bytes >= kUnitBytes) return {};
  return detail::refuse("alignment_bytes is %lld, accesses need %lld",
                        static_cast<long long>(p.alignment_bytes),
                        static_cast<long long>(kUnitBytes));
}

/// The same, and widths that are no whole units.
[[nodiscard]] inline detail::Reason unit_refusal(const Problem& p) noexcept {
  if (detail::Reason reason = alignment_refusal(p); !reason.empty()) return reason;
  // A row that ends within 16 bytes: the copy engine was seen to write behind its end on an H200
  // (1 x 1 x 1 with a tile of 192), so both widths are whole units.
  constexpr std::int64_t kUnit = 8;
  if (p.d % kUnit == 0 && p.h % kUnit == 0) return {};
  return detail::refuse("d is %lld and h %lld, wanted multiples of %lld (16 bytes)",
                        static_cast<long long>(p.d), static_cast<long long>(p.h),
                        static_cast<long long>(kUnit));
}

/// Strides that would move a row's start off a multiple of `unit` bytes.
[[nodiscard]] inline detail::Reason stride_refusal(const OperandSpec& spec,
                                                   std::int64_t unit = kUnitBytes) noexcept {
  using ll = long long;
  const Layout& l = spec.layout;
  if (l.row_stride_bytes % unit == 0 && l.block_stride_bytes % unit == 0) return {};
  return detail::refuse(
      "%s: strides of rows and blocks are %lld and %lld bytes, wanted multiples of %lld", spec.name,
      ll{l.row_stride_bytes}, ll{l.block_stride_bytes}, ll{unit});
}

}  // namespace sluice::cuda
