// SPDX-License-Identifier: Apache-2.0
// What cuda.sm100 asks of CUTLASS. No CUTLASS header here: each instance is a file by itself.
#pragma once

#include <cstdint>

#include "sluice/plan.hpp"
#include "sluice/status.hpp"

namespace sluice::cuda::sm100 {

/// Whether this build has the GEMMs below: with SLUICE_CUTLASS.
#if defined(SLUICE_WITH_CUTLASS)
inline constexpr bool kIsBuilt = true;
#else
inline constexpr bool kIsBuilt = false;
#endif

/// x · wᵀ in bf16 with fp32 sums: x [m, k], w [n, k], rows contiguous, strides in elements from row
/// to row; all rows begin at multiples of 16 bytes.
struct GemmParams {
  std::int64_t m = 0, n = 0, k = 0;
  const void* x = nullptr;
  std::int64_t x_stride = 0;
  const void* w = nullptr;
  std::int64_t w_stride = 0;
  void* out = nullptr;
  std::int64_t out_stride = 0;
  Gate gate{};            ///< of the gated ones: silu
  bool up_first = false;  ///< whether w begins with up's rows
};

/// out [m, n] = x · wᵀ. Like the others asynchronous, without an allocation, one rounding.
Status plain(const GemmParams& params, const Device& device, Stream stream) noexcept;
/// out [m, n / 2] = act(x · wgᵀ) ⊙ (x · wuᵀ), rows of gate and up in w one by one in turn.
Status gated_rows(const GemmParams& params, const Device& device, Stream stream) noexcept;
/// The same, 32 by 32 in turn.
Status gated_blocks(const GemmParams& params, const Device& device, Stream stream) noexcept;
inline constexpr int kBlockRows = 32;

}  // namespace sluice::cuda::sm100
