// SPDX-License-Identifier: Apache-2.0
#include "harness/summary.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace sluice::harness {

std::optional<RatioSummary> summarise(std::span<const CaseRatio> ratios) {
  if (ratios.empty()) return std::nullopt;
  double logarithms = 0;
  std::vector<double> sorted;
  for (const CaseRatio& r : ratios) {
    logarithms += std::log(r.ratio);
    sorted.push_back(r.ratio);
  }
  std::ranges::sort(sorted);
  const double at = 0.05 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  RatioSummary out;
  out.shapes = std::ssize(ratios);
  out.mean = std::exp(logarithms / static_cast<double>(ratios.size()));
  out.p5 = std::lerp(sorted[below], sorted[above], at - static_cast<double>(below));
  const auto lowest = std::ranges::min_element(ratios, {}, &CaseRatio::ratio);
  out.lowest = lowest->ratio;
  out.lowest_case = lowest->test_case;
  return out;
}

}  // namespace sluice::harness
