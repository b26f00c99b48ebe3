// SPDX-License-Identifier: Apache-2.0
// What the ratios of many shapes come to together.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace sluice::harness {

/// The ratio of one case to its baseline.
struct CaseRatio {
  std::string test_case;
  double ratio = 0;
};

struct RatioSummary {
  std::int64_t shapes = 0;
  double mean = 0;  ///< geometric
  double p5 = 0;    ///< 5th percentile, between two ratios linear
  double lowest = 0;
  std::string lowest_case;  ///< the first of equals
};

/// Nothing of no ratios. All ratios are above 0.
[[nodiscard]] std::optional<RatioSummary> summarise(std::span<const CaseRatio> ratios);

}  // namespace sluice::harness
