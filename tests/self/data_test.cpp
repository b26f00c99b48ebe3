// SPDX-License-Identifier: Apache-2.0
// Operand sets: alignment promised and nothing more, poison in outputs, canaries everywhere else.
#include "harness/data.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "harness/case.hpp"
#include "timing/timing.hpp"

namespace sluice::harness {
namespace {

std::unique_ptr<Rig> cpu_rig() {
  auto rig = open_rig("cpu");
  EXPECT_TRUE(rig);
  return std::move(*rig);
}

std::unique_ptr<OperandSet> make_set(const std::string& text, Rig& rig) {
  const auto c = parse_case(text);
  EXPECT_TRUE(c) << text << ": " << (c ? "" : c.error().message);
  if (!c) return nullptr;
  auto set = OperandSet::make(*c, rig);
  EXPECT_TRUE(set);
  return set ? std::move(*set) : nullptr;
}

char* pointer(const OperandSet& set, Operand id) {
  return static_cast<char*>(const_cast<void*>(address(set.operands(), id)));
}

TEST(OperandSetTest, KeepsTheAlignmentItWasAskedForAndNoMore) {
  const auto rig = cpu_rig();
  for (const std::uintptr_t align : {2, 4, 16, 64, 4096}) {
    const auto set = make_set("3x64x64:mlp:align=" + std::to_string(align), *rig);
    ASSERT_NE(set, nullptr);
    for (const Operand id :
         {Operand::kX, Operand::kWGate, Operand::kWUp, Operand::kWDown, Operand::kY}) {
      const auto at = reinterpret_cast<std::uintptr_t>(pointer(*set, id));
      EXPECT_EQ(at % align, 0U);
      EXPECT_NE(at % (2 * align), 0U);
    }
  }
}

TEST(OperandSetTest, OutputsHoldNaNAndInputsDoNot) {
  const auto rig = cpu_rig();
  for (const char* type : {"bf16", "fp16", "fp32", "fp64"}) {
    const auto set = make_set(std::string("3x5x7:pad=2:") + type, *rig);
    ASSERT_NE(set, nullptr);
    const auto y = set->host_matrix(Operand::kY);
    const auto x = set->host_matrix(Operand::kX);
    ASSERT_TRUE(y && x);
    for (std::int64_t r = 0; r < 3; ++r) {
      for (std::int64_t c = 0; c < 5; ++c) {
        EXPECT_TRUE(std::isnan(y->at(r, c)));
        EXPECT_FALSE(std::isnan(x->at(r, c)));
      }
    }
  }
}

// Behind each row and behind the last one: a zero of the other operand does not hide a NaN.
TEST(OperandSetTest, InputsAreFollowedByNaN) {
  const auto rig = cpu_rig();
  for (const char* type : {"bf16", "fp16", "fp32", "fp64"}) {
    const auto set = make_set(std::string("3x5x7:down:pad=2:") + type, *rig);
    ASSERT_NE(set, nullptr);
    for (const Operand id : {Operand::kH, Operand::kWDown}) {
      const auto matrix = set->host_matrix(id);
      ASSERT_TRUE(matrix);
      for (std::int64_t r = 0; r < matrix->spec.rows; ++r) {
        for (std::int64_t c = 7; c < 9; ++c) EXPECT_TRUE(std::isnan(matrix->at(r, c)));
      }
    }
  }
}

TEST(OperandSetTest, FreshSetsHaveWholeCanaries) {
  const auto rig = cpu_rig();
  for (const char* text :
       {"3x5x7", "3x5x7:interleaved4+up_first:save:pad=3", "3x5x7:gate_mul_grad:in_place:concat",
        "3x5x7:mlp_grad:accumulate:interleaved2", "0x5x7", "3x5x7:broadcast:residual"}) {
    const auto set = make_set(text, *rig);
    ASSERT_NE(set, nullptr);
    const Status whole = set->check_canaries();
    EXPECT_TRUE(whole) << text << ": " << whole.error().message;
  }
}

TEST(OperandSetTest, FindsAWriteIntoPadsGuardsAndInputs) {
  const auto rig = cpu_rig();
  struct Planted {
    const char* text;
    Operand id;
    std::int64_t offset;  // bytes from the base pointer
    const char* part;
  };
  const Planted planted[] = {
      {"3x8x16:pad=4", Operand::kY, 2 * 8, "y: a write 0 bytes behind row 0"},
      {"3x8x16:pad=4", Operand::kY, 24 + 2 * 8 + 6, "y: a write 6 bytes behind row 1"},
      {"3x8x16", Operand::kY, -1, "y: a write 1 bytes before"},
      {"3x8x16", Operand::kY, 3 * 8 * 2, "y: a write 1 bytes behind its last"},
      {"3x8x16", Operand::kX, 4, "x: the input was written to"},
      {"3x8x16", Operand::kWDown, 100, "w_down: the input was written to"},
      {"3x8x5:gate_up:interleaved4:save", Operand::kG, 2 * 9, "behind row 0"},
  };
  for (const Planted& p : planted) {
    const auto set = make_set(p.text, *rig);
    ASSERT_NE(set, nullptr);
    pointer(*set, p.id)[p.offset] ^= 0x55;
    const Status whole = set->check_canaries();
    ASSERT_FALSE(whole) << p.text << " at " << p.offset;
    EXPECT_EQ(whole.error().code, ErrorCode::kInternal);
    EXPECT_NE(whole.error().text().find(p.part), std::string_view::npos) << whole.error().message;
  }
}

TEST(OperandSetTest, InPlaceOutputsStartAsTheirInputAndTheOracleKeepsIt) {
  const auto rig = cpu_rig();
  const auto set = make_set("3x1x7:gate_mul_grad:in_place", *rig);
  ASSERT_NE(set, nullptr);
  EXPECT_EQ(pointer(*set, Operand::kDg), pointer(*set, Operand::kG));
  const auto inputs = set->host_inputs();
  ASSERT_TRUE(inputs);
  EXPECT_NE(inputs->g, set->operands().g);
  EXPECT_EQ(std::memcmp(inputs->g, set->operands().g, 3 * 7 * 2), 0);
  pointer(*set, Operand::kDg)[0] ^= 0x55;
  EXPECT_NE(std::memcmp(inputs->g, set->operands().g, 3 * 7 * 2), 0);
  ASSERT_TRUE(set->reset_outputs());
  EXPECT_EQ(std::memcmp(inputs->g, set->operands().g, 3 * 7 * 2), 0);
}

TEST(OperandSetTest, MinimalLeavesOptionalOutputsOut) {
  const auto rig = cpu_rig();
  const auto set = make_set("3x4x7:mlp_grad:minimal:accumulate", *rig);
  ASSERT_NE(set, nullptr);
  EXPECT_EQ(set->operands().dx, nullptr);
  EXPECT_NE(set->operands().dw_gate, nullptr);
  const auto grad = make_set("3x4x7:gate_mul_grad:minimal", *rig);
  ASSERT_NE(grad, nullptr);
  EXPECT_EQ(grad->operands().h, nullptr);
  EXPECT_EQ(grad->outputs(), (std::vector<Operand>{Operand::kDg, Operand::kDu}));
}

// Two sets of a case that are only run, the second with the first's operands where they may be.
class SharedSets : public testing::Test {
 protected:
  void make(const std::string& text) {
    const auto c = parse_case(text);
    ASSERT_TRUE(c) << text << ": " << c.error().message;
    auto first = OperandSet::make(*c, *rig_, Checked::kNo);
    ASSERT_TRUE(first);
    auto second = OperandSet::make(*c, *rig_, Checked::kNo, first->get());
    ASSERT_TRUE(second);
    EXPECT_FALSE(OperandSet::make(*c, *rig_, Checked::kYes, first->get()));
    first_ = std::move(*first);
    second_ = std::move(*second);
  }

  std::unique_ptr<Rig> rig_ = cpu_rig();
  std::unique_ptr<OperandSet> first_;
  std::unique_ptr<OperandSet> second_;
};

// Weights are each set's own, the activations of inference the first set's; in training none are.
TEST_F(SharedSets, HaveWhatDoesNotRotate) {
  for (const bool saves : {false, true}) {
    make(std::string("3x64x96:mlp:bias:residual:concat") + (saves ? ":save" : ""));
    const Problem& problem = first_->test_case().problem;
    for (int i = 0; i < kOperandCount; ++i) {
      const auto id = static_cast<Operand>(i);
      if (pointer(*first_, id) == nullptr) continue;
      EXPECT_EQ(pointer(*first_, id) == pointer(*second_, id), !timing::rotates(problem, id))
          << first_->spec(id).name << saves;
    }
    EXPECT_EQ(pointer(*second_, Operand::kWUp) - pointer(*second_, Operand::kWGate), 96 * 64 * 2);
    EXPECT_EQ(second_->bytes() < first_->bytes(), !saves);
  }
}

TEST_F(SharedSets, HaveAllThatLiesInABuffer) {
  make("3x64x96:mlp:residual:in_place");
  EXPECT_EQ(pointer(*second_, Operand::kY), pointer(*first_, Operand::kY));
  EXPECT_EQ(pointer(*second_, Operand::kResidual), pointer(*first_, Operand::kY));
}

TEST_F(SharedSets, HaveNothingThatTheFirstHasNot) {
  make("3x64x96:mlp:add_norm:minimal");
  EXPECT_EQ(pointer(*second_, Operand::kXSum), nullptr);
  EXPECT_EQ(pointer(*second_, Operand::kX), pointer(*first_, Operand::kX));
}

TEST(OpenRig, NamesWhatItWanted) {
  EXPECT_EQ(open_rig("tpu").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(open_rig("cuda:x").error().code, ErrorCode::kInvalidArgument);
  if (cuda_device_count() == 0) {
    EXPECT_FALSE(open_rig("cuda:0"));
    const auto rig = open_rig("auto");
    ASSERT_TRUE(rig);
    EXPECT_EQ((*rig)->device().backend, Backend::kCpu);
  }
}

TEST(CpuRig, SaysWhenMemoryRunsOut) {
  const auto rig = cpu_rig();
  const auto memory = rig->allocate(std::size_t{1} << 62);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, ErrorCode::kOutOfMemory);
}

}  // namespace
}  // namespace sluice::harness
