// SPDX-License-Identifier: Apache-2.0
// Tokens of 16 bits in fixed point, for products with the integers of weights in blocks: a block of
// 32 columns is 32 integers of 16 bits and a power of two. That keeps what lies within 2^-7 (bf16)
// or 2^-4 (fp16) of a block's largest column exactly, and rounds the rest by at most 2^-15 of it.
#pragma once

#include <bit>
#include <cstdint>

#include "sluice/types.hpp"

namespace sluice::cpu {

/// A block of columns x[j] = scale * q[j]. The scale lies elsewhere: those of a row are contiguous.
struct FixedBlock {
  /// The fp32 lanes that a block's products are summed in: lane l has columns 2 l, 2 l + 1 and the
  /// two that come 16 behind them, as the instruction adds neighbours up.
  static constexpr int kLanes = 8;

  alignas(32) std::int16_t q[kBlockElems];  ///< the tokens' own 16 bits if kept as it is
  std::int32_t nibble_shift[kLanes];  ///< -8 times the sum of a lane's q: nibble n stands for n - 8
};

/// The scale of a block that is kept as it is: one with an element that is no number, or with one
/// that dwarfs the others (math::dwarfs_others). Products in fixed point leave it out.
inline constexpr float kKept = 0.0F;

/// The scale of finite columns of which the largest magnitude has these bits: q then takes 15 bits
/// and a sign, and is less than 2^15 also rounded, since bf16 and fp16 have no more than 11. Below
/// 2^-112 it stays 2^-126, so that its reciprocal is a number.
[[nodiscard]] constexpr float fixed_scale(std::uint32_t largest_bits) noexcept {
  const std::uint32_t exponent = largest_bits >> 23;
  return std::bit_cast<float>((exponent > 15 ? exponent - 14 : 1) << 23);
}

/// Rows of tokens in fixed point: their blocks, then their scales, of which kernels read a multiple
/// of kScaleUnit.
class FixedRows {
 public:
  static constexpr std::int64_t kScaleUnit = 16;

  FixedRows(void* data, std::int64_t cols) noexcept
      : data_(static_cast<char*>(data)),
        scales_at_(cols / kBlockElems * static_cast<std::int64_t>(sizeof(FixedBlock))),
        stride_(stride_bytes(cols)) {}

  [[nodiscard]] static constexpr std::int64_t stride_bytes(std::int64_t cols) noexcept {
    const std::int64_t blocks = cols / kBlockElems;
    const std::int64_t scales = (blocks + kScaleUnit - 1) / kScaleUnit * kScaleUnit;
    return blocks * static_cast<std::int64_t>(sizeof(FixedBlock)) +
           scales * static_cast<std::int64_t>(sizeof(float));
  }
  [[nodiscard]] FixedBlock* blocks(std::int64_t token) const noexcept {
    return reinterpret_cast<FixedBlock*>(data_ + token * stride_);
  }
  [[nodiscard]] float* scales(std::int64_t token) const noexcept {
    return reinterpret_cast<float*>(data_ + token * stride_ + scales_at_);
  }
  /// The rows from `token` on.
  [[nodiscard]] FixedRows from(std::int64_t token) const noexcept {
    FixedRows out = *this;
    out.data_ += token * stride_;
    return out;
  }

 private:
  char* data_;
  std::int64_t scales_at_;
  std::int64_t stride_;
};

}  // namespace sluice::cpu
