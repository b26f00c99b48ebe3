// SPDX-License-Identifier: Apache-2.0
// bench_case: its rows follow from the case, the plan and the times, its copies from the pass.
#include "harness/bench.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/data.hpp"
#include "tests/host_rig.hpp"
#include "timing/timing.hpp"

namespace sluice::harness {
namespace {

TEST(BenchText, GateLayoutAndDtypeAsTheGrammarSpellsThem) {
  EXPECT_EQ(gate_text(Gate{}), "silu");
  EXPECT_EQ(gate_text(Gate::clamped_swiglu()), "clamped_swiglu");
  Gate scaled;
  scaled.alpha = 1.5F;
  EXPECT_EQ(gate_text(scaled), "silu(alpha=1.5)");
  for (const char* layout :
       {"separate", "concat", "concat+up_first", "interleaved1", "interleaved8+up_first"}) {
    const auto c = parse_case(std::string("1x16x16:") + layout);
    ASSERT_TRUE(c);
    EXPECT_EQ(layout_text(*c), layout);
  }
  EXPECT_EQ(dtype_text(parse_case("1x8x8:fp16").value().problem), "fp16");
  EXPECT_EQ(dtype_text(parse_case("1x8x8:fp32/bf16/fp32").value().problem), "fp32/bf16/fp32");
}

TEST(BenchRow, FollowsFromCasePlanAndTimes) {
  Plan made;
  made.threads = 3;
  made.workspace_bytes = 1000;
  Timing timing;
  timing.median_us = 2;
  timing.p10_us = 1;
  timing.p90_us = 3;
  Ceilings ceilings;
  ceilings.fma_gflops = 1;
  const Case c = parse_case("4x64x96:fp32/bf16/fp32:down").value();
  const Row row = make_row(c, made, timing, ceilings);
  const double work = 2.0 * 4 * 64 * 96;
  EXPECT_EQ(row.op, "down");
  EXPECT_EQ(row.pass, "fwd");
  EXPECT_DOUBLE_EQ(row.tflops, work / 2 * 1e-6);
  EXPECT_DOUBLE_EQ(row.roof_fraction.value(), work * 1e-3 / 2);
  EXPECT_EQ(row.extra_bytes, 1000);
  EXPECT_EQ(row.peak_bytes, 4 * 96 * 4 + 64 * 96 * 2 + 4 * 64 * 4 + 1000);
  EXPECT_EQ(row.threads, 3);
}

Timing samples(std::vector<double> us) {
  Timing out;
  out.samples_us = std::move(us);
  return out;
}

// Each sample is held against the ceilings of its own round, reading against the better one.
TEST(PairedCeilings, SharesAreMediansOverRounds) {
  const auto paired = PairedCeilings::make(cpu_device(), 1, /*quick=*/true);
  ASSERT_TRUE(paired) << paired.error().message;
  std::vector<Candidate> candidates(1);
  paired->append_to(candidates);
  ASSERT_EQ(candidates.size(), 4U);
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    EXPECT_TRUE(candidates[i].reference);
    EXPECT_TRUE(candidates[i].runs.at(0)(nullptr));
  }
  const auto shares = [&](std::vector<double> own, std::vector<double> one,
                          std::vector<double> four, std::vector<double> fma) {
    const std::vector<Timing> timings = {samples(std::move(own)), Timing{}, samples(std::move(one)),
                                         samples(std::move(four)), samples(std::move(fma))};
    return paired->shares(timings, 1e6, 1e6);
  };
  const CeilingShares steady = shares({10, 10, 10}, {5, 5, 5}, {9, 9, 9}, {2, 2, 2});
  // A machine that is twice as slow for a round changes nothing.
  const CeilingShares moving = shares({10, 20, 10}, {5, 30, 9}, {9, 10, 5}, {2, 4, 2});
  EXPECT_DOUBLE_EQ(moving.read.value(), steady.read.value());
  EXPECT_DOUBLE_EQ(moving.fma.value(), steady.fma.value());
  // A kernel that is twice as slow in most rounds has half the share.
  const CeilingShares slow = shares({20, 20, 10}, {5, 5, 5}, {9, 9, 9}, {2, 2, 2});
  EXPECT_DOUBLE_EQ(slow.read.value(), steady.read.value() / 2);
  EXPECT_DOUBLE_EQ(slow.fma.value(), steady.fma.value() / 2);
}

// As little time as a bench can take.
BenchOptions quick() {
  BenchOptions options;
  options.timer = {.min_total_us = 0, .max_total_us = 1e5, .warm_up_us = 0, .min_samples = 3};
  options.plan.threads = 1;
  return options;
}

TEST(BenchCase, TimesCheckedOperatorsAgainstTheUnfusedPath) {
  const auto rig = open_rig("cpu");
  ASSERT_TRUE(rig);
  BenchOptions options = quick();
  options.copies = 2;
  options.model = "mine";
  options.tp = 2;
  std::vector<std::string> told;
  options.progress = [&](const std::string& text) { told.push_back(text); };
  const auto bench = bench_case(parse_case("4x64x96").value(), **rig, Ceilings{}, options);
  ASSERT_TRUE(bench) << bench.error().message;
  EXPECT_TRUE(bench->passed());
  ASSERT_EQ(bench->rows.size(), 1U);
  const Row& row = bench->rows.front();
  EXPECT_EQ(row.model, "mine");
  EXPECT_EQ(row.tp, 2);
  EXPECT_EQ(row.threads, 1);
  EXPECT_EQ(row.baseline, "own_unfused");
  EXPECT_FALSE(row.roof_fraction);
  EXPECT_GT(row.us, 0);
  EXPECT_DOUBLE_EQ(row.ratio.value(), row.baseline_us.value() / row.us);
  EXPECT_EQ(row.rel_err, bench->checks.front().outputs.front().mean_relative_error);
  EXPECT_FALSE(told.empty());
}

// The CPU, but with caches of 100 KiB, and a count of the buffers allocated on it.
class CountingRig final : public HostRig {
 public:
  CountingRig() {
    device_.l2_bytes = 0;
    device_.l3_bytes = 100 << 10;
  }
  [[nodiscard]] std::size_t buffers() const { return buffers_; }

  [[nodiscard]] Expected<void*> allocate(std::size_t bytes) override {
    ++buffers_;
    return HostRig::allocate(bytes);
  }
  [[nodiscard]] bool host_memory() const noexcept override { return true; }

 private:
  std::size_t buffers_ = 0;
};

// Of all operands of a case.
std::size_t buffers_of_a_set(const Case& c) {
  CountingRig rig;
  EXPECT_TRUE(OperandSet::make(c, rig));
  return rig.buffers();
}

// What a third copy adds to two: workspaces and rivals are not in the difference.
std::size_t buffers_of_a_copy(const Case& c, Pass pass) {
  CountingRig rig;
  BenchOptions options = quick();
  options.check = false;
  options.pass = pass;
  options.copies = 2;
  EXPECT_TRUE(bench_case(c, rig, Ceilings{}, options));
  const std::size_t of_two = rig.buffers();
  options.copies = 3;
  EXPECT_TRUE(bench_case(c, rig, Ceilings{}, options));
  const std::size_t of_three = rig.buffers() - of_two;
  return of_three - of_two;
}

// Even those of a forward operator that saves neither g nor u.
TEST(BenchCase, EachCopyOfATrainingStepHasAllOperands) {
  const Case mlp = parse_case("4x64x96").value();
  const Case grad = parse_case("4x64x96:mlp_grad:recompute").value();
  EXPECT_EQ(buffers_of_a_copy(mlp, Pass::kForward), 3U);  // w_gate, w_up, w_down
  EXPECT_EQ(buffers_of_a_copy(grad, Pass::kBackward), buffers_of_a_set(grad));
  EXPECT_EQ(buffers_of_a_copy(grad, Pass::kFull), buffers_of_a_set(mlp) + buffers_of_a_set(grad));
}

// As many copies as what is each copy's own needs to leave the caches.
TEST(BenchCase, CountsTheBytesOfACopy) {
  CountingRig rig;
  std::vector<std::string> told;
  BenchOptions options = quick();
  options.check = false;
  options.progress = [&](const std::string& text) { told.push_back(text); };
  const Case mlp = parse_case("256x64x96").value();
  const Case grad = parse_case("256x64x96:mlp_grad:recompute").value();
  const auto first_of = [&](const Case& c, std::int64_t bytes) {
    return testing::Contains(format_case(c) + ": filling copy 1 of " +
                             std::to_string(timing::chain_copies(bytes, rig.device())));
  };
  const std::int64_t weights = std::int64_t{3} * 64 * 96 * 2;
  ASSERT_TRUE(bench_case(mlp, rig, Ceilings{}, options));
  EXPECT_THAT(told, first_of(mlp, weights));
  told.clear();
  options.pass = Pass::kFull;
  ASSERT_TRUE(bench_case(grad, rig, Ceilings{}, options));
  EXPECT_THAT(told, first_of(mlp, operand_bytes(mlp.problem)));
  EXPECT_THAT(told, first_of(grad, operand_bytes(grad.problem)));
}

TEST(BenchCase, RefusesPassesThatAreNotThere) {
  const auto rig = open_rig("cpu");
  ASSERT_TRUE(rig);
  BenchOptions options;
  options.pass = Pass::kBackward;
  for (const char* text : {"4x64x96:down", "4x64x96:norm", "4x64x96:residual", "0x64x96"}) {
    const auto bench = bench_case(parse_case(text).value(), **rig, Ceilings{}, options);
    ASSERT_FALSE(bench) << text;
    EXPECT_EQ(bench.error().code, ErrorCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace sluice::harness
