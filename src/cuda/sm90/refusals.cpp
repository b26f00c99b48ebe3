// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/refusals.hpp"

#include "cuda/sm90/limits.hpp"

namespace sluice::cuda::sm90 {

using detail::Reason;
using detail::refuse;

Reason device_refusal(const Device& device) noexcept {
  if (device.arch != Arch::kHopper) {
    return refuse("needs a Hopper GPU (9.0), the device is %d.%d", device.compute_capability / 10,
                  device.compute_capability % 10);
  }
  if (device.smem_per_block_bytes < kMaxSmemBytes) {
    return refuse("needs %d bytes of shared memory a block, the device has %d", kMaxSmemBytes,
                  device.smem_per_block_bytes);
  }
  return {};
}

Reason copy_refusal(const Problem& p) noexcept {
  constexpr std::int64_t kAlignment = 16;
  if (p.alignment_bytes < kAlignment) {
    return refuse("alignment_bytes is %lld, the copy engine needs %lld",
                  static_cast<long long>(p.alignment_bytes), static_cast<long long>(kAlignment));
  }
  // A row that ends within 16 bytes: stores were seen to write behind its end on an H200 (1 x 1 x 1
  // with a tile of 192), so both widths are whole units.
  constexpr std::int64_t kUnit = 8;
  if (p.d % kUnit != 0 || p.h % kUnit != 0) {
    return refuse("d is %lld and h %lld, wanted multiples of %lld (16 bytes)",
                  static_cast<long long>(p.d), static_cast<long long>(p.h),
                  static_cast<long long>(kUnit));
  }
  return {};
}

}  // namespace sluice::cuda::sm90
