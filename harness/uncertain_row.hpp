// SPDX-License-Identifier: Apache-2.0
// Rows of numbers that are known but for their errors, and dot products over them in fp64.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "harness/bounds.hpp"

namespace sluice::harness {

/// A vector of uncertain numbers, as arrays, so that dot products over it run quickly.
struct UncertainRow {
  std::vector<double> value, bound, spread, common;
  bool may_overflow = false;

  void push(const Uncertain& q) {
    const bool finite = std::isfinite(q.value);
    value.push_back(q.value);
    bound.push_back(finite ? q.bound : 0.0);
    spread.push_back(finite ? q.spread : 0.0);
    common.push_back(finite ? q.common : 0.0);
    may_overflow = may_overflow || q.may_overflow;
  }
  [[nodiscard]] std::size_t size() const { return value.size(); }
};

/// Whether bf16 may hold v as a subnormal; twice its smallest normal number, since h is only known
/// up to its rounding.
[[nodiscard]] inline bool is_subnormal(double v) { return std::fabs(v) < 0x1p-125; }

/// The sums of a·b, both known for sure.
[[nodiscard]] TermSums dot_exact(const double* a, const double* b, std::size_t n);

/// A token as a kernel may read it: each block of columns in fixed point. An element that is known
/// for sure and a multiple of the unit is not rounded, nor a block that one element dwarfs for
/// sure, whatever the others' errors and those of a kernel's own sum.
void round_to_fixed(const Rounding& rounding, UncertainRow& row);

/// Whether the errors of a row's elements are independent, or may all be the same one.
enum class Errors { kIndependent, kAlike };

/// The sums of a·b; b has a's length and is known for sure.
[[nodiscard]] TermSums dot_uncertain(const UncertainRow& a, const double* b,
                                     Errors errors = Errors::kIndependent);

/// Adds one term that is known for sure.
void add_term(TermSums& sums, double value);

void merge(TermSums& sums, const TermSums& other);

}  // namespace sluice::harness
