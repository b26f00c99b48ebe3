// SPDX-License-Identifier: Apache-2.0
#include "harness/uncertain_row.hpp"

#include <algorithm>
#include <cmath>

#include "math/block_types.hpp"

namespace sluice::harness {
namespace {

constexpr std::size_t kLanes = 8;  // independent sums, so that the compiler can vectorise

double total(const double (&lanes)[kLanes]) {
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

// With a special value among the terms, `magnitude` counts the finite ones alone: they say whether
// a finite sum could have overflowed on the way.
void add_finite_magnitudes(const double* a, const double* b, std::size_t n, TermSums& out) {
  out.magnitude = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double product = std::fabs(a[i] * b[i]);
    if (std::isfinite(product)) out.magnitude += product;
  }
}

}  // namespace

TermSums dot_exact(const double* a, const double* b, std::size_t n) {
  double value[kLanes] = {};
  double magnitude[kLanes] = {};
  double tokens[kLanes] = {};
  double subnormal[kLanes] = {};
  const auto add = [&](std::size_t i, std::size_t l) {
    const double product = a[i] * b[i];
    value[l] += product;
    magnitude[l] += std::fabs(product);
    tokens[l] += std::fabs(a[i]);
    subnormal[l] += is_subnormal(a[i]) || is_subnormal(b[i]) ? std::fabs(product) : 0.0;
  };
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) add(i + l, l);
  }
  for (; i < n; ++i) add(i, 0);
  TermSums out{.value = total(value), .magnitude = total(magnitude)};
  out.tokens = total(tokens);
  out.subnormal = total(subnormal);
  out.terms = static_cast<double>(n);
  if (!std::isfinite(out.magnitude)) add_finite_magnitudes(a, b, n, out);
  return out;
}

void round_to_fixed(const Rounding& rounding, UncertainRow& row) {
  if (!rounding.fixed_tokens()) return;
  for (std::size_t begin = 0; begin < row.size(); begin += kBlockElems) {
    const std::size_t end = std::min(begin + kBlockElems, row.size());
    double largest = 0;
    double least = 0;   // what the largest element has at least
    double others = 0;  // the sum of all at most, then without the largest
    for (std::size_t i = begin; i < end; ++i) {
      if (!std::isfinite(row.value[i])) continue;
      const double error = row.bound[i] + std::fabs(row.common[i]);
      const double most = std::fabs(row.value[i]) + error;
      others += most;
      if (most <= largest) continue;
      largest = most;
      least = most - 2 * error;
    }
    others -= largest;
    // A lone element, not kept, is exact from where its unit is relative to it.
    if (least > 0x1p-112 && math::dwarfs_others(least, others + 0x1p-16 * largest)) continue;
    const double error = rounding.fixed_error(largest);
    for (std::size_t i = begin; i < end; ++i) {
      const bool sure = row.bound[i] == 0 && row.common[i] == 0;
      if (!std::isfinite(row.value[i]) || (sure && std::fmod(row.value[i], 2 * error) == 0)) {
        continue;
      }
      row.bound[i] += error;
      row.spread[i] = std::hypot(row.spread[i], error);
    }
  }
}

TermSums dot_uncertain(const UncertainRow& a, const double* b, Errors errors) {
  TermSums out = dot_exact(a.value.data(), b, a.size());
  double bound[kLanes] = {};
  double square[kLanes] = {};
  double linear[kLanes] = {};
  double common[kLanes] = {};
  const auto add = [&](std::size_t i, std::size_t l) {
    const double size = std::isfinite(b[i]) ? std::fabs(b[i]) : 0.0;
    const double spread = a.spread[i] * size;
    bound[l] += a.bound[i] * size;
    square[l] += spread * spread;
    linear[l] += spread;
    common[l] += std::isfinite(b[i]) ? a.common[i] * b[i] : 0.0;
  };
  std::size_t i = 0;
  for (; i + kLanes <= a.size(); i += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) add(i + l, l);
  }
  for (; i < a.size(); ++i) add(i, 0);
  out.bound = total(bound);
  out.square = errors == Errors::kAlike ? total(linear) * total(linear) : total(square);
  out.common = total(common);
  out.may_overflow = a.may_overflow;
  for (i = 0; i < a.size() && !std::isfinite(out.value); ++i) {
    // The sign of an infinite term hangs on the error, or a 0 makes it NaN.
    const bool unsure = std::fabs(a.value[i]) <= a.bound[i] + std::fabs(a.common[i]);
    out.may_overflow = out.may_overflow || (!std::isfinite(b[i]) && unsure && a.bound[i] > 0);
  }
  return out;
}

void add_term(TermSums& sums, double value) {
  sums.value += value;
  if (std::isfinite(value)) sums.magnitude += std::fabs(value);
  sums.terms += 1;
}

void merge(TermSums& sums, const TermSums& other) {
  sums.value += other.value;
  sums.magnitude += other.magnitude;
  sums.tokens += other.tokens;
  sums.subnormal += other.subnormal;
  sums.bound += other.bound;
  sums.square += other.square;
  sums.common += other.common;
  sums.terms += other.terms;
  sums.may_overflow = sums.may_overflow || other.may_overflow;
}

}  // namespace sluice::harness
