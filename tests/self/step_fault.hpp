// SPDX-License-Identifier: Apache-2.0
// One wrong element planted in what a step leaves, and what verify_steps() must then say: that
// element of that step, and of no step behind it, since those are right on what they were given.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "harness/verify_steps.hpp"
#include "math/float_types.hpp"

namespace sluice::test {

struct StepFault {
  int step = -1;  ///< -1: not planted
  Operand operand{};
  std::int64_t row = 0;
  std::int64_t col = 0;
};

/// Puts 512, where values are about 1, into an element of the first output of step `step`, and says
/// where. `planted` lives as long as the result.
inline harness::AfterStep plant(int step, StepFault& planted) {
  return [step, &planted](int i, const StepCall& call, harness::Rig& rig) -> Status {
    if (i != step) return {};
    for (const OperandSpec& spec : operand_specs(call.problem)) {
      const void* const base = address(call.operands, spec.id);
      const bool written = spec.access == Access::kWrite || spec.access == Access::kReadWrite;
      if (!written || base == nullptr) continue;
      planted = {i, spec.id, spec.rows - 1, spec.cols / 2};
      char wrong[sizeof(double)];
      math::store(wrong, spec.dtype, 512);
      char* const at = static_cast<char*>(const_cast<void*>(base)) +
                       offset_bytes(spec.layout, spec.dtype, planted.row, planted.col);
      return rig.upload(at, wrong, static_cast<std::size_t>(size_bytes(spec.dtype)));
    }
    return make_error(ErrorCode::kInternal, "step %d writes nothing", i);
  };
}

inline void expect_blamed(const harness::StepsReport& report, const StepFault& planted) {
  const std::string text = report.text();
  EXPECT_FALSE(report.passed());
  ASSERT_EQ(report.first_wrong(), planted.step) << text;
  for (std::size_t i = 0; i < report.steps.size(); ++i) {
    for (const harness::Comparison& output : report.steps[i].outputs) {
      const bool spoilt = static_cast<int>(i) == planted.step && output.operand == planted.operand;
      EXPECT_EQ(output.failed, spoilt ? 1 : 0) << text;
      if (!spoilt) continue;
      EXPECT_EQ(output.worst.row, planted.row);
      EXPECT_EQ(output.worst.col, planted.col);
    }
  }
  const std::string named = "the first wrong step is " + std::to_string(planted.step + 1) + ", " +
                            report.steps[static_cast<std::size_t>(planted.step)].name + " by ";
  const std::string where =
      "at (" + std::to_string(planted.row) + ", " + std::to_string(planted.col) + ")";
  const std::size_t line = text.find(named);
  ASSERT_NE(line, std::string::npos) << text;
  EXPECT_NE(text.find(where, line), std::string::npos) << text;
}

}  // namespace sluice::test
