// SPDX-License-Identifier: Apache-2.0
// Errors planted on purpose into correct results: each must be caught, and named where it is.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "harness/verify.hpp"
#include "math/float_types.hpp"

namespace sluice::harness {
namespace {

std::unique_ptr<Rig> cpu_rig() {
  auto rig = open_rig("cpu");
  EXPECT_TRUE(rig);
  return std::move(*rig);
}

Case parsed(const std::string& text) {
  const auto c = parse_case(text);
  EXPECT_TRUE(c) << text << ": " << (c ? "" : c.error().message);
  return c ? *c : Case{};
}

// A case computed by the plan's own choice, whose operands a test then spoils.
class Computed {
 public:
  Computed(const std::string& text, Rig& rig) : case_(parsed(text)), rig_(rig) {
    auto set = OperandSet::make(case_, rig);
    EXPECT_TRUE(set);
    set_ = std::move(*set);
  }

  void compute() { run_with(case_.problem, set_->operands()); }

  // Runs another problem, or other pointers, into this case's outputs.
  void run_with(const Problem& problem, const Operands& operands) {
    const auto made = plan(problem, rig_.device());
    ASSERT_TRUE(made) << made.error().message;
    const auto memory = make_workspace(*made, rig_);
    ASSERT_TRUE(memory);
    const Status ran = run(*made, operands, memory->workspace, rig_.stream());
    ASSERT_TRUE(ran) << ran.error().message;
  }

  [[nodiscard]] Comparison comparison(Operand id) {
    const auto all = compare_outputs(*set_);
    EXPECT_TRUE(all);
    for (const Comparison& c : *all) {
      if (c.operand == id) return c;
    }
    ADD_FAILURE() << "no such output";
    return {};
  }

  [[nodiscard]] bool all_pass() {
    const auto all = compare_outputs(*set_);
    EXPECT_TRUE(all);
    bool ok = true;
    for (const Comparison& c : *all) ok = ok && c.passed();
    return ok;
  }

  [[nodiscard]] const OperandSpec& spec(Operand id) const { return set_->spec(id); }
  [[nodiscard]] OperandSet& set() { return *set_; }

  [[nodiscard]] char* element(Operand id, std::int64_t row, std::int64_t col) {
    return static_cast<char*>(const_cast<void*>(address(set_->operands(), id))) +
           offset_bytes(spec(id).layout, spec(id).dtype, row, col);
  }
  [[nodiscard]] double get(Operand id, std::int64_t row, std::int64_t col) {
    return math::load(element(id, row, col), spec(id).dtype);
  }
  void put(Operand id, std::int64_t row, std::int64_t col, double value) {
    math::store(element(id, row, col), spec(id).dtype, value);
  }
  void for_each(Operand id, const std::function<double(std::int64_t, std::int64_t)>& value) {
    for (std::int64_t r = 0; r < spec(id).rows; ++r) {
      for (std::int64_t c = 0; c < spec(id).cols; ++c) put(id, r, c, value(r, c));
    }
  }

 private:
  Case case_;
  Rig& rig_;
  std::unique_ptr<OperandSet> set_;
};

const char* const kCases[] = {"13x64x96",
                              "13x64x96:fp32:bias:bias_down:residual",
                              "9x256x512:gate_up:fp16:interleaved8",
                              "13x96x64:down:pad=3",
                              "13x1x200:gate_mul:fp32",
                              "13x1x200:gate_mul_grad:clamped_swiglu",
                              "13x64x96:gate_up_grad:concat",
                              "13x64x96:mlp_grad:recompute:bias"};

Operand first_output(Computed& computed) { return computed.set().outputs().front(); }

TEST(Planted, NothingPassesAsNothing) {
  const auto rig = cpu_rig();
  for (const char* text : kCases) {
    Computed computed(text, *rig);
    computed.compute();
    EXPECT_TRUE(computed.all_pass()) << text;
  }
}

TEST(Planted, OneElementBeyondItsBound) {
  const auto rig = cpu_rig();
  for (const char* text : kCases) {
    Computed computed(text, *rig);
    computed.compute();
    const auto inputs = computed.set().host_inputs();
    ASSERT_TRUE(inputs);
    for (const Operand id : computed.set().outputs()) {
      const std::int64_t row = computed.spec(id).rows - 1;
      const std::int64_t col = computed.spec(id).cols - 2;
      Oracle oracle(computed.set().test_case().problem, *inputs);
      const OracleValue right = oracle.at(id, row, col);
      const double old = computed.get(id, row, col);
      computed.put(id, row, col, right.value + 4 * right.bound);
      const Comparison c = computed.comparison(id);
      EXPECT_EQ(c.failed, 1) << text << "\n" << to_string(c);
      EXPECT_EQ(c.worst.row, row);
      EXPECT_EQ(c.worst.col, col);
      EXPECT_GT(c.worst.ratio, 1);
      computed.put(id, row, col, old);
    }
  }
}

TEST(Planted, ANaNAndAnInfinity) {
  const auto rig = cpu_rig();
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const char* text : kCases) {
      Computed computed(text, *rig);
      computed.compute();
      const Operand id = first_output(computed);
      computed.put(id, computed.spec(id).rows / 2, 3, bad);
      const Comparison c = computed.comparison(id);
      EXPECT_EQ(c.failed, 1) << text;
      EXPECT_EQ(c.worst.col, 3) << text;
    }
  }
}

TEST(Planted, ANumberWhereNaNIsRight) {
  const auto rig = cpu_rig();
  Computed computed("33x1x200:gate_mul:fill=special", *rig);
  computed.compute();
  ASSERT_TRUE(computed.all_pass());
  std::int64_t planted = 0;
  for (std::int64_t r = 0; r < 33; ++r) {
    if (std::isnan(computed.get(Operand::kH, r, 5))) {
      computed.put(Operand::kH, r, 5, 0.0);
      ++planted;
    }
  }
  ASSERT_GT(planted, 0);
  EXPECT_EQ(computed.comparison(Operand::kH).failed, planted);
}

TEST(Planted, AllZeros) {
  const auto rig = cpu_rig();
  for (const char* text : kCases) {
    Computed computed(text, *rig);
    for (const Operand id : computed.set().outputs()) {
      computed.for_each(id, [](std::int64_t, std::int64_t) { return 0.0; });
      EXPECT_FALSE(computed.comparison(id).passed()) << text;
    }
  }
}

// A relu that cuts everything leaves nothing to tell a right kernel from one that writes zeros.
TEST(Planted, AProblemThatIsZeroAnywayIsMistrusted) {
  const auto rig = cpu_rig();
  Computed computed("13x1x200:gate_mul:relu(gate_multiplier=0)", *rig);
  computed.compute();
  const Comparison c = computed.comparison(Operand::kH);
  EXPECT_EQ(c.failed, 0);
  EXPECT_TRUE(c.mistrusted());
  EXPECT_FALSE(c.passed());
  EXPECT_NE(to_string(c).find("MISTRUSTED"), std::string::npos);
}

// One NaN in w_down's every row makes all of y NaN, as a kernel that writes nothing would leave it.
TEST(Planted, AnOutputOfNaNAloneIsMistrusted) {
  const auto rig = cpu_rig();
  Computed computed("13x64x96", *rig);
  for (std::int64_t row = 0; row < 64; ++row) {
    computed.put(Operand::kWDown, row, 5, std::numeric_limits<double>::quiet_NaN());
  }
  computed.compute();
  const Comparison c = computed.comparison(Operand::kY);
  EXPECT_EQ(c.failed, 0);
  EXPECT_EQ(c.nans, c.compared);
  EXPECT_TRUE(c.mistrusted());
  EXPECT_NE(to_string(c).find("zeros would pass for 0 of 832 elements, NaN for 832"),
            std::string::npos)
      << to_string(c);
}

TEST(Planted, AnUnwrittenTail) {
  const auto rig = cpu_rig();
  for (const char* text : kCases) {
    Computed computed(text, *rig);
    computed.compute();
    const Operand id = first_output(computed);
    const std::int64_t cols = computed.spec(id).cols;
    const double poison = std::numeric_limits<double>::quiet_NaN();
    for (std::int64_t c = cols - 3; c < cols; ++c) {
      computed.put(id, computed.spec(id).rows - 1, c, poison);
    }
    EXPECT_EQ(computed.comparison(id).failed, 3) << text;
  }
}

TEST(Planted, SwappedGateAndUp) {
  const auto rig = cpu_rig();
  for (const char* text :
       {"13x64x96", "13x64x96:identity(up_offset=1)", "5x64x96:gate_up:relu",
        "13x1x200:gate_mul:fp32", "13x1x200:gate_mul_grad", "13x64x96:mlp_grad:recompute"}) {
    Computed computed(text, *rig);
    Operands swapped = computed.set().operands();
    std::swap(swapped.w_gate, swapped.w_up);
    std::swap(swapped.g, swapped.u);
    computed.run_with(computed.set().test_case().problem, swapped);
    EXPECT_FALSE(computed.all_pass()) << text;
  }
}

// The tile is left out by zeroing its columns of the weight while the kernel runs.
void expect_missing_tile_is_caught(const std::string& text, Operand weight, std::int64_t tile) {
  const auto rig = cpu_rig();
  Computed computed(text, *rig);
  const OperandSpec& spec = computed.spec(weight);
  const std::int64_t first = (spec.cols / 2) / tile * tile;
  std::vector<double> kept;
  for (std::int64_t r = 0; r < spec.rows; ++r) {
    for (std::int64_t c = first; c < first + tile; ++c) {
      kept.push_back(computed.get(weight, r, c));
      computed.put(weight, r, c, 0.0);
    }
  }
  computed.compute();
  std::size_t next = 0;
  for (std::int64_t r = 0; r < spec.rows; ++r) {
    for (std::int64_t c = first; c < first + tile; ++c) computed.put(weight, r, c, kept[next++]);
  }
  EXPECT_FALSE(computed.all_pass()) << text;
}

TEST(Planted, AMissingTileOfK) {
  expect_missing_tile_is_caught("5x64x96", Operand::kWGate, 16);
  expect_missing_tile_is_caught("5x64x96", Operand::kWDown, 16);
  expect_missing_tile_is_caught("5x64x96:norm", Operand::kWUp, 16);
  expect_missing_tile_is_caught("5x2048x64:gate_up", Operand::kWUp, 16);
  expect_missing_tile_is_caught("5x2048x64:gate_up:fp32", Operand::kWGate, 1);
  expect_missing_tile_is_caught("5x32x4096:down", Operand::kWDown, 16);
  expect_missing_tile_is_caught("5x32x4096:down:fp16", Operand::kWDown, 8);
  // Long sums: the worst-case bound K u sum|ab| alone would let these pass.
  expect_missing_tile_is_caught("2x32x65536:down:fp32", Operand::kWDown, 8);
  expect_missing_tile_is_caught("2x64x16384:mlp", Operand::kWDown, 64);
}

TEST(Planted, AMissingToken) {
  const auto rig = cpu_rig();
  Computed computed("64x24x32:mlp_grad", *rig);
  Problem shorter = computed.set().test_case().problem;
  shorter.m -= 1;
  computed.run_with(shorter, computed.set().operands());
  EXPECT_FALSE(computed.comparison(Operand::kDwGate).passed());
  EXPECT_FALSE(computed.comparison(Operand::kDwDown).passed());
}

TEST(Planted, TheWrongBias) {
  const auto rig = cpu_rig();
  for (const char* text : {"13x64x96:gate_up:bias", "13x64x96:bias", "13x64x64:bias:fp16"}) {
    Computed computed(text, *rig);
    Operands wrong = computed.set().operands();
    std::swap(wrong.b_gate, wrong.b_up);
    computed.run_with(computed.set().test_case().problem, wrong);
    EXPECT_FALSE(computed.all_pass()) << text;
  }
  Computed dropped("13x64x96:down:bias_down", *rig);
  Problem without = dropped.set().test_case().problem;
  without.bias_down = false;
  dropped.run_with(without, dropped.set().operands());
  EXPECT_FALSE(dropped.all_pass());
}

TEST(Planted, AnOffByOneRow) {
  const auto rig = cpu_rig();
  for (const char* text : {"13x64x96", "13x96x64:down", "13x64x96:gate_up"}) {
    Computed computed(text, *rig);
    computed.compute();
    const Operand id = first_output(computed);
    for (std::int64_t r = 0; r + 1 < computed.spec(id).rows; ++r) {
      std::memcpy(
          computed.element(id, r, 0), computed.element(id, r + 1, 0),
          static_cast<std::size_t>(computed.spec(id).cols * size_bytes(computed.spec(id).dtype)));
    }
    EXPECT_FALSE(computed.comparison(id).passed()) << text;
  }
}

// Integers leave no tolerance: the nearest other number fails.
TEST(Planted, OneUnitInTheLastPlaceOfAnExactResult) {
  const auto rig = cpu_rig();
  for (const char* text :
       {"13x64x96:identity:fill=integers", "9x64x96:gate_up:identity:fill=integers:fp16",
        "20x24x32:mlp_grad:identity:fill=integers"}) {
    Computed computed(text, *rig);
    computed.compute();
    ASSERT_TRUE(computed.all_pass()) << text;
    for (const Operand id : computed.set().outputs()) {
      char* const at = computed.element(id, computed.spec(id).rows - 1, 0);
      at[0] = static_cast<char>(at[0] ^ 1);
      EXPECT_EQ(computed.comparison(id).failed, 1) << text;
      at[0] = static_cast<char>(at[0] ^ 1);
    }
  }
}

TEST(Report, NamesTheWorstElementAndTheCommand) {
  const auto rig = cpu_rig();
  const Case c = parsed("13x64x96:fp32:seed=7");
  auto report = verify_case(c, *rig);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->passed()) << report->text();
  report->outputs[0].failed = 1;
  report->outputs[0].worst = {.row = 7, .col = 12, .expected = 1.25, .got = 1.5, .bound = 0.5};
  const std::string text = report->text();
  EXPECT_NE(text.find("FAILED"), std::string::npos);
  EXPECT_NE(text.find("worst at (7, 12): expected 1.25, got 1.5, bound 0.5"), std::string::npos);
  EXPECT_NE(text.find("sluice verify '13x64x96:fp32:seed=7' --variant " + report->variant +
                      " --config " + report->config),
            std::string::npos);
  report->outputs[0].failed = 0;
  report->stray_write = "y: a write";
  EXPECT_FALSE(report->passed());
  report->stray_write.clear();
  report->unrepeated = "y";
  EXPECT_FALSE(report->passed());
}

TEST(Verify, ForcesWhatItIsToldAndSaysWhyNot) {
  const auto rig = cpu_rig();
  const Case c = parsed("3x8x16:fp64");
  const auto forced = verify_case(c, *rig, {.variant = "cpu.reference"});
  ASSERT_TRUE(forced);
  EXPECT_EQ(forced->variant, "cpu.reference");
  EXPECT_EQ(forced->source, ChoiceSource::kForced);
  const auto unknown = verify_case(c, *rig, {.variant = "cpu.magic"});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kInvalidArgument);
}

// Sums into what is there and an output in place: what one run left must not show in the next.
TEST(Verify, EachRunOfAVerificationIsAsTheOnlyOne) {
  const auto rig = cpu_rig();
  for (const char* text : {"13x64x96:mlp_grad:accumulate:bias", "13x64x96:gate_mul_grad:in_place",
                           "13x64x96:mlp:add_norm:residual_norm_input", "0x8x16"}) {
    const Case c = parsed(text);
    Verification verification(c, *rig);
    for (const char* variant : {"cpu.reference", "cpu.simd", "cpu.magic", "cpu.reference"}) {
      const Options options{.variant = variant};
      const auto only = verify_case(c, *rig, options);
      const auto report = verification.run(options);
      ASSERT_EQ(report.has_value(), only.has_value()) << text << " " << variant;
      if (!report) continue;
      EXPECT_TRUE(report->passed()) << report->text();
      EXPECT_EQ(report->text(), only->text());
    }
  }
}

TEST(Verify, NoTokensPass) {
  const auto rig = cpu_rig();
  const auto report = verify_case(parsed("0x8x16"), *rig);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->passed());
}

TEST(Workspace, AWriteBehindItsEndIsFound) {
  const auto rig = cpu_rig();
  const auto made = plan(parsed("13x64x96").problem, rig->device());
  ASSERT_TRUE(made);
  ASSERT_GT(made->workspace_bytes, kWorkspaceHeaderBytes);
  const auto memory = make_workspace(*made, *rig);
  ASSERT_TRUE(memory);
  ASSERT_TRUE(check_workspace(*memory, *rig));
  memory->buffer.data()[made->workspace_bytes + 2] = 0;
  const Status found = check_workspace(*memory, *rig);
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().text().find("3 bytes behind its end"), std::string_view::npos);
}

// Nothing that was compared proves nothing. No text gives such a case.
TEST(Planted, ACaseWithoutOutputsDoesNotPass) {
  const auto rig = cpu_rig();
  for (const std::string text : {"4x8x8:mlp_grad", "4x8x8:weight_grad"}) {
    EXPECT_FALSE(parse_case(text + ":minimal"));
    Case nothing = parsed(text.c_str());
    nothing.minimal = true;
    const auto report = verify_case(nothing, *rig);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_FALSE(report->passed()) << report->text();
  }
}

TEST(Planted, AnErrorOfNaNAloneIsNotZero) {
  Comparator comparator(Operand::kY, DType::kF32);
  for (int i = 0; i < 4; ++i) comparator.add(0, i, {1, 0.5}, std::nan(""));
  EXPECT_EQ(comparator.result().failed, 4);
  EXPECT_TRUE(std::isinf(comparator.result().mean_relative_error));
}

}  // namespace
}  // namespace sluice::harness
