// SPDX-License-Identifier: Apache-2.0
// The launch of add + RMSNorm by itself, for operators whose kernels have no norm prologue.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/host/launch.hpp"
#include "cuda/tile/rows.hpp"
#include "sluice/types.hpp"

namespace sluice::cuda::norm {

/// r = x (+ residual), rounded; n = r / sqrt(mean(r^2) + eps) * (weight + weight_offset), rounded.
struct NormParams {
  std::int64_t cols = 0;  // a multiple of 8; rows begin at multiples of 16 bytes
  tile::RowMajor x;
  tile::RowMajor residual;
  tile::RowMajor sum;  // r, where somebody reads it
  tile::RowMajor n;
  const void* weight = nullptr;  // [cols]
  float weight_offset = 0;
  float eps = 0;
  bool prefetches = false;  // weight and residual, before it waits for the kernel in front
};

/// The widest row that is served, far above any model's: tests end here.
inline constexpr std::int64_t kMaxCols = 96 * 1024 / 2;

/// bf16 or fp16. Programmatic on GPUs that know it, from both sides.
Status launch_norm(const Device& device, std::int64_t rows, DType dtype, const NormParams& params,
                   Stream stream) noexcept;

}  // namespace sluice::cuda::norm
