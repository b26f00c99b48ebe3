// SPDX-License-Identifier: Apache-2.0
// A caller's flush-to-zero or rounding mode changes no bit, on any thread, and is there afterwards.
#include <gtest/gtest.h>
#include <immintrin.h>

#include <vector>

#include "problems.hpp"

namespace sluice::test {
namespace {

TEST(FloatMode, ResultsDoNotDependOnTheCallersMode) {
  constexpr unsigned kFlushDenormals = 0x8040;
  constexpr unsigned kRoundUp = 0x4000;
  constexpr unsigned kModeBits = kFlushDenormals | 0x6000;
  // Special values hold subnormals.
  for (const char* text : {"60x80x90:mlp:fp32", "40x80x60:gate_mul:fp32:relu:fill=special"}) {
    const harness::Case c = parse(text);
    const auto expected = bits_of(c, "", 1);
    const unsigned before = _mm_getcsr();
    for (const unsigned mode : {kFlushDenormals, kRoundUp}) {
      auto rig = harness::open_rig("cpu");
      auto set = harness::OperandSet::make(c, **rig);
      const auto made = simd_plan(c, "", 3);
      auto memory = harness::make_workspace(*made, **rig);
      _mm_setcsr(before | mode);
      const Status ran = run(*made, (*set)->operands(), memory->workspace, nullptr);
      const unsigned after = _mm_getcsr();
      _mm_setcsr(before);
      ASSERT_TRUE(ran) << ran.error().message;
      EXPECT_EQ(after & kModeBits, (before | mode) & kModeBits);
      EXPECT_EQ(output_bytes(**set), expected) << text << " mode " << mode;
    }
  }
}

// The reference serves what cpu.simd does not.
TEST(FloatMode, TheReferenceDoesNotEither) {
  const harness::Case c = parse("9x40x60:input_grad:fp32");
  const auto rig = harness::open_rig("cpu");
  const auto made = plan(c.problem, cpu_device());
  ASSERT_TRUE(made);
  EXPECT_STREQ(made->variant_name(), "cpu.reference");
  std::vector<std::vector<char>> bytes[2];
  for (const bool round_up : {false, true}) {
    auto set = harness::OperandSet::make(c, **rig);
    auto memory = harness::make_workspace(*made, **rig);
    const unsigned before = _mm_getcsr();
    if (round_up) _mm_setcsr(before | 0x4000);
    const Status ran = run(*made, (*set)->operands(), memory->workspace, nullptr);
    _mm_setcsr(before);
    ASSERT_TRUE(ran) << ran.error().message;
    bytes[round_up ? 1 : 0] = output_bytes(**set);
  }
  EXPECT_EQ(bytes[0], bytes[1]);
}

}  // namespace
}  // namespace sluice::test
