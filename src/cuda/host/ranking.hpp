// SPDX-License-Identifier: Apache-2.0
// Tilings in the order of their estimated times.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

namespace sluice::cuda {

/// At most kMost values, the cheapest first, ties as they were added. In place, so that plan()
/// allocates nothing.
template <class T, std::size_t kMost, class Cost = double>
class Ranking {
 public:
  void add(const T& value, const Cost& cost) noexcept {
    std::size_t at = count_++;
    for (; at > 0 && cost < costs_[at - 1]; --at) {
      costs_[at] = costs_[at - 1];
      values_[at] = values_[at - 1];
    }
    costs_[at] = cost;
    values_[at] = value;
  }

  /// Writes at most out.size() of them, returns how many there are.
  std::size_t copy_to(std::span<T> out) const noexcept {
    std::copy_n(values_.begin(), std::min(out.size(), count_), out.begin());
    return count_;
  }

 private:
  std::array<Cost, kMost> costs_{};
  std::array<T, kMost> values_{};
  std::size_t count_ = 0;
};

}  // namespace sluice::cuda
