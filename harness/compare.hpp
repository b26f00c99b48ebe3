// SPDX-License-Identifier: Apache-2.0
// Comparison: an output against the oracle, element by element, and what there is to say of it.
#pragma once

#include <cstdint>
#include <string>

#include "harness/case.hpp"
#include "harness/oracle.hpp"
#include "sluice/operands.hpp"

namespace sluice::harness {

/// One compared element.
struct Element {
  std::int64_t row = 0;
  std::int64_t col = 0;
  double expected = 0;
  double got = 0;
  double bound = 0;
  double ratio = 0;  ///< |got - expected| / bound; infinity where a special value is wrong
};

/// The outcome for one output.
struct Comparison {
  Operand operand = Operand::kY;
  std::int64_t compared = 0;
  std::int64_t failed = 0;
  std::int64_t informative = 0;  ///< elements where a zero and a NaN would have failed
  std::int64_t exact_zeros = 0;  ///< elements that must be 0 to the bit, which nothing else passes
  std::int64_t nans = 0;         ///< elements that must be NaN
  std::int64_t unchecked = 0;    ///< elements that may overflow: any infinity or NaN is right
  double mean_ratio = 0;         ///< mean of |got - expected| / bound over finite elements
  double mean_relative_error = 0;  ///< sum |got - expected| / sum |expected| over finite elements
  Element worst{};                 ///< of the largest ratio

  /// Nearly all elements would also pass as zeros, or all that are checked as NaN: the comparison
  /// proves nothing, so it fails.
  [[nodiscard]] bool mistrusted() const noexcept;
  [[nodiscard]] bool passed() const noexcept { return failed == 0 && !mistrusted(); }
};

/// Collects elements. Special values: NaN must be NaN and an infinity the same infinity; a finite
/// value must be finite and within the bound; a value at the edge of the type's range may round to
/// infinity if the bound reaches it. Where the oracle says may_overflow, any infinity or NaN
/// passes.
class Comparator {
 public:
  Comparator(Operand operand, DType dtype) : dtype_(dtype) { result_.operand = operand; }
  void add(std::int64_t row, std::int64_t col, const OracleValue& expected, double got);
  [[nodiscard]] Comparison result() const;

 private:
  DType dtype_;
  Comparison result_{};
  double sum_ratio_ = 0;
  double sum_error_ = 0;
  double sum_expected_ = 0;
  std::int64_t finite_ = 0;
};

/// "y: 3 of 4096 elements out of bound; worst at (7, 12): expected 1.25, got 1.5, bound 0.004
/// (62x); mean 0.21 of the bound".
[[nodiscard]] std::string to_string(const Comparison& comparison);

/// The command that repeats a case: sluice verify '4x64x96:fp16' --variant cpu.simd --config ...
/// The seed is in the case's text. Empty names are left out.
[[nodiscard]] std::string repro_line(const Case& c, const std::string& variant,
                                     const std::string& config);

}  // namespace sluice::harness
