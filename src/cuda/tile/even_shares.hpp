// SPDX-License-Identifier: Apache-2.0
// A count divided among CTAs, blocks or ranks as evenly as it goes: pure arithmetic, the same on
// host and device.
#pragma once

namespace sluice::cuda::tile {

struct UnitRange {
  int begin = 0;
  int end = 0;
  [[nodiscard]] constexpr int size() const noexcept { return end - begin; }
};

/// [0, total) in parts whose sizes differ by at most one. A value, so that the host can divide.
/// With `rest` the number of parts, all have one more than `each`.
struct EvenShares {
  int each = 0;
  int rest = 0;
  [[nodiscard]] constexpr UnitRange part(int i) const noexcept {
    const int begin = i * each + (i < rest ? i : rest);
    return {begin, begin + each + (i < rest ? 1 : 0)};
  }
};

[[nodiscard]] constexpr EvenShares even_shares(int total, int parts) noexcept {
  if (parts <= 1) return {total, 0};
  return {total / parts, total % parts};
}

}  // namespace sluice::cuda::tile
