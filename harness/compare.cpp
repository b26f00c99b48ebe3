// SPDX-License-Identifier: Apache-2.0
#include "harness/compare.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "harness/bounds.hpp"

namespace sluice::harness {
namespace {

// Below this many elements chance alone can make most expected values 0 (a relu, a cut gradient).
constexpr std::int64_t kLeastForTrust = 64;
// Gates leave at least a quarter of the elements informative (relu: half of h, and half again where
// integers cancel); half of that is asked for.
constexpr std::int64_t kTrustedShare = 8;

const char* operand_name(Operand id) {
  return operand_specs(Problem{.m = 1, .d = 1, .h = 1})[static_cast<std::size_t>(id)].name;
}

}  // namespace

bool Comparison::mistrusted() const noexcept {
  const std::int64_t checked = compared - unchecked;
  if (checked < kLeastForTrust) return false;
  return informative == 0 || informative * kTrustedShare < checked - exact_zeros - nans;
}

void Comparator::add(std::int64_t row, std::int64_t col, const OracleValue& expected, double got) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double value = expected.value;
  const double error = std::fabs(got - value);
  bool ok = false;
  double ratio = 0;
  if (expected.may_overflow && !std::isfinite(got)) {
    ++result_.unchecked;
    ok = true;
  } else if (std::isnan(value)) {
    ok = std::isnan(got);
    ++result_.nans;
  } else if (std::isinf(value)) {
    ok = got == value;
    ++result_.informative;
  } else if (!std::isfinite(got)) {
    // Rounded over the edge of the type's range: right where the bound reaches that far.
    ok = std::isinf(got) && (got > 0 ? value : -value) + expected.bound > largest(dtype_);
  } else {
    ok = error <= expected.bound;
    ratio = error == 0 ? 0.0 : error / expected.bound;
    sum_ratio_ += ratio;
    sum_error_ += error;
    sum_expected_ += std::fabs(value);
    ++finite_;
    if (std::fabs(value) > expected.bound) {
      ++result_.informative;
    } else if (expected.may_overflow) {
      ++result_.unchecked;  // any sign of the overflow is right, and a clamp made it finite
    }
    if (value == 0 && expected.bound == 0) ++result_.exact_zeros;
  }
  if (!ok && !(ratio > 1)) ratio = kInfinity;
  ++result_.compared;
  if (!ok) ++result_.failed;
  if (result_.compared == 1 || ratio > result_.worst.ratio) {
    result_.worst = {row, col, value, got, expected.bound, ratio};
  }
}

Comparison Comparator::result() const {
  Comparison out = result_;
  if (finite_ > 0) out.mean_ratio = sum_ratio_ / static_cast<double>(finite_);
  if (sum_expected_ > 0) out.mean_relative_error = sum_error_ / sum_expected_;
  if (finite_ == 0 && out.failed > 0)
    out.mean_ratio = out.mean_relative_error = std::numeric_limits<double>::infinity();
  return out;
}

std::string to_string(const Comparison& c) {
  const Element& w = c.worst;
  const std::string verdict =
      c.failed > 0     ? fmt::format("{} of {} elements out of bound", c.failed, c.compared)
      : c.mistrusted() ? fmt::format("MISTRUSTED: zeros would pass for {} of {} elements{}",
                                     c.compared - c.unchecked - c.nans - c.informative, c.compared,
                                     c.nans > 0 ? fmt::format(", NaN for {}", c.nans) : "")
                       : fmt::format("{} elements within bound", c.compared);
  std::string out = fmt::format("{}: {}", operand_name(c.operand), verdict);
  if (c.compared > 0) {
    out += fmt::format(
        "; worst at ({}, {}): expected {:.9g}, got {:.9g}, bound {:.3g} ({:.3g}x); "
        "mean {:.2g} of the bound, relative error {:.2g}",
        w.row, w.col, w.expected, w.got, w.bound, w.ratio, c.mean_ratio, c.mean_relative_error);
  }
  if (c.unchecked > 0) out += fmt::format("; {} unchecked (may overflow)", c.unchecked);
  return out;
}

std::string repro_line(const Case& c, const std::string& variant, const std::string& config) {
  std::string out = fmt::format("sluice verify '{}'", format_case(c));
  if (!variant.empty()) out += " --variant " + variant;
  if (!config.empty()) out += " --config " + config;
  return out;
}

}  // namespace sluice::harness
