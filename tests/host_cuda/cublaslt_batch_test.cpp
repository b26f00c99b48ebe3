// SPDX-License-Identifier: Apache-2.0
// Batches of products, and which of them gate_up makes of its weights' places, by a library that
// stands in for cuBLASLt. Nothing reads the pointers.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "choice.hpp"
#include "cuda/cublaslt/cublaslt.hpp"
#include "cuda/cublaslt/padded_rows.hpp"
#include "cuda/cublaslt/sums.hpp"
#include "cuda/kernel_rows.hpp"
#include "fake_cublaslt.hpp"
#include "fake_devices.hpp"

namespace sluice::cuda {
namespace {

GateRowsParams last_gate;
AddRowsParams last_add;
std::vector<PadRowsParams> pads;

}  // namespace

// In place of the kernel.
Status launch_gate_rows(const Device&, DType, const GateRowsParams& params, Stream) noexcept {
  last_gate = params;
  return {};
}
Status launch_grad_rows(const Device& /*device*/, DType /*dtype*/, const GradRowsParams& /*params*/,
                        Stream /*stream*/) noexcept {
  return {};
}
Status launch_add_rows(const Device&, DType, const AddRowsParams& params, Stream) noexcept {
  last_add = params;
  return {};
}
Status launch_pad_rows(const Device&, const PadRowsParams& params, Stream) noexcept {
  pads.push_back(params);
  return {};
}

namespace {

namespace fake = fake_cublaslt;

char* address(std::int64_t bytes) { return reinterpret_cast<char*>(bytes); }

class CublasLtBatch : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(cublaslt_version(99000), 0);
    fake::reset();
  }
  void TearDown() override { EXPECT_EQ(fake::counts().foreign_products, 0); }
};

// Of widths that no other test has; its b and out are at 1 and 2 TiB.
LtProduct batch(std::int64_t n, std::int64_t b_step_bytes) {
  LtProduct p;
  p.m = 32;
  p.n = n;
  p.k = 16;
  p.a = {.base = address(64), .stride_elems = p.k};
  p.b = {.base = address(std::int64_t{1} << 40), .stride_elems = 24, .transposed = true};
  p.out_dtype = DType::kF32;
  p.out = address(std::int64_t{2} << 40);
  p.out_stride_elems = 2 * n;
  p.count = 2;
  p.b_step_bytes = b_step_bytes;
  p.out_step_elems = n;
  return p;
}

void expect_runs(const LtProduct& p) {
  const Status status = cublaslt_product(p, 0, gpu::h200_with_cublaslt(), nullptr, nullptr);
  EXPECT_TRUE(status) << status.error().message;
}

TEST_F(CublasLtBatch, IsOneLaunchWithItsSteps) {
  const LtProduct p = batch(40, 4096);
  expect_runs(p);
  const auto products = fake::products();
  ASSERT_EQ(products.size(), 1U);
  const auto& [a, b, out] = products.front();
  for (const fake::Matrix& matrix : {a, b, out}) EXPECT_EQ(matrix.count, 2);
  EXPECT_EQ(a.step, 0);
  EXPECT_EQ(b.step, 2048);
  EXPECT_EQ(out.step, 40);
  EXPECT_EQ(a.base, p.a.base);
  EXPECT_EQ(b.base, p.b.base);
  EXPECT_EQ(out.base, p.out);
}

// Layers of a model differ in the distance of their matrices: one algorithm, one set of bits.
TEST_F(CublasLtBatch, TheHeuristicSeesOneStepWhateverItIs) {
  for (const std::int64_t step : {4096, 16, 0, 1 << 30}) expect_runs(batch(48, step));
  const auto asked = fake::asked();
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_EQ(asked.front().a.step, 0);
  EXPECT_EQ(asked.front().b.step, 48 * 24);
  EXPECT_EQ(asked.front().out.step, 48);
  EXPECT_EQ(asked.front().out.count, 2);
  EXPECT_EQ(fake::products().back().b.step, 1 << 29);
}

TEST_F(CublasLtBatch, CountsAndStepsOfTheOutputHaveTheirOwnAlgorithms) {
  LtProduct p = batch(56, 4096);
  expect_runs(p);
  p.count = 1;
  expect_runs(p);
  p.count = 3;
  expect_runs(p);
  p.out_step_elems = 1 << 20;
  expect_runs(p);
  EXPECT_EQ(fake::counts().heuristics, 4);
  EXPECT_EQ(fake::products()[1].b.count, 1);
}

TEST_F(CublasLtBatch, ItsProductsAreLaunchedAloneWhereTheStepIsNone) {
  for (const std::int64_t step : {kCublasLtStepLimitBytes, std::int64_t{-16}, std::int64_t{24}}) {
    SCOPED_TRACE(step);
    fake::reset();
    const LtProduct p = batch(64, step);
    expect_runs(p);
    const auto products = fake::products();
    ASSERT_EQ(products.size(), 2U);
    for (int i = 0; i < 2; ++i) {
      const auto& [a, b, out] = products[static_cast<std::size_t>(i)];
      for (const fake::Matrix& matrix : {a, b, out}) EXPECT_EQ(matrix.count, 1);
      EXPECT_EQ(a.base, p.a.base);
      EXPECT_EQ(b.base, static_cast<const char*>(p.b.base) + i * step);
      EXPECT_EQ(out.base, static_cast<float*>(p.out) + i * p.n);
    }
  }
  fake::reset();
  expect_runs(batch(64, kCublasLtStepLimitBytes - 16));
  EXPECT_EQ(fake::products().size(), 1U);
}

// The first config's launch of a step, its scratch at 256.
void expect_launches(const Problem& problem, const Operands& operands,
                     const detail::Kernel& kernel = kCublasLt) {
  const Device device = gpu::h200_with_cublaslt();
  ASSERT_TRUE(kernel.supports(problem, device).empty());
  KernelConfig config;
  kernel.configs(problem, device, {&config, 1});
  const detail::Step step{.problem = problem,
                          .operands = operands,
                          .device = device,
                          .config = config,
                          .scratch = address(256)};
  const Status status = kernel.launch(step, nullptr);
  ASSERT_TRUE(status) << status.error().message;
}

// gate_up of x[24, 16] and weights of 64 rows, 32 bytes each.
struct Placed {
  const char* layout;
  std::int64_t up_behind_gate_bytes;
  std::size_t launches;
  std::int32_t count;       // of each launch
  std::uint64_t rows;       // of b
  std::int64_t step_elems;  // of b
  std::int64_t block;       // of the sums' columns
};

void expect_gate_up(const Placed& placed) {
  SCOPED_TRACE(std::string(placed.layout) + " " + std::to_string(placed.up_behind_gate_bytes));
  fake::reset();
  const Problem problem = gpu::problem_of(std::string("24x16x64:gate_up") + placed.layout);
  Operands operands;
  char* const gate = address(std::int64_t{4} << 40);
  char* const up = gate + placed.up_behind_gate_bytes;
  operands.x = address(64);
  operands.w_gate = gate;
  operands.w_up = up;
  operands.h = address(128);
  ASSERT_NO_FATAL_FAILURE(expect_launches(problem, operands));
  EXPECT_EQ(last_gate.up_first, up < gate);
  EXPECT_EQ(last_gate.block, placed.block);
  EXPECT_EQ(static_cast<const void*>(last_gate.sums), address(256) + kCublasLtScratchBytes);
  const auto products = fake::products();
  ASSERT_EQ(products.size(), placed.launches);
  for (std::size_t i = 0; i < products.size(); ++i) {
    const auto& [a, b, out] = products[i];
    EXPECT_EQ(a.base, operands.x);
    EXPECT_EQ(b.base, (up < gate) == (i == 0) ? up : gate);
    EXPECT_EQ(b.count, placed.count);
    EXPECT_EQ(b.rows, placed.rows);
    EXPECT_EQ(b.step, placed.step_elems);
    EXPECT_EQ(out.base, last_gate.sums + 64 * i);
    EXPECT_EQ(out.stride, 128);
    EXPECT_EQ(out.step, placed.count == 2 ? 64 : 0);
  }
}

// The product's sums go to fp32 scratch; bias and residual are the launch behind it.
TEST_F(CublasLtBatch, DownAddsAResidualToUnroundedSums) {
  Problem problem = gpu::problem_of("24x16x64:down:residual:bias_down:pad=8");
  problem.layout.residual.row_stride_bytes = 64;
  EXPECT_EQ(kCublasLt.scratch_bytes({problem, gpu::h200_with_cublaslt(), {}}),
            kCublasLtScratchBytes + 24 * 16 * 4);
  Operands operands;
  operands.h = address(64);
  operands.w_down = address(128);
  operands.b_down = address(192);
  operands.residual = address(512);
  operands.y = address(1024);
  ASSERT_NO_FATAL_FAILURE(expect_launches(problem, operands));
  const auto products = fake::products();
  ASSERT_EQ(products.size(), 1U);
  EXPECT_EQ(products[0].out.base, address(256) + kCublasLtScratchBytes);
  EXPECT_EQ(products[0].out.stride, 16);
  EXPECT_EQ(fake::counts().biases, 0);
  EXPECT_EQ(static_cast<const void*>(last_add.sums), products[0].out.base);
  EXPECT_EQ(last_add.rows, 24);
  EXPECT_EQ(last_add.cols, 16);
  EXPECT_EQ(last_add.bias, operands.b_down);
  EXPECT_EQ(last_add.residual, operands.residual);
  EXPECT_EQ(last_add.residual_stride, 32);
  EXPECT_EQ(last_add.y, operands.y);
  EXPECT_EQ(last_add.y_stride, 24);
}

TEST_F(CublasLtBatch, GateUpIsOneLaunchWhereverItsWeightsLie) {
  constexpr std::int64_t kMatrix = 64 * 32;
  constexpr std::int64_t kFar = kCublasLtStepLimitBytes;
  for (const std::int64_t sign : {1, -1}) {
    for (const Placed& placed : std::vector<Placed>{
             {":concat", kMatrix, 1, 1, 128, 0, 64},
             {":interleaved8", 8 * 32, 1, 1, 128, 0, 8},
             {"", kMatrix + 16, 1, 2, 64, kMatrix / 2 + 8, 64},
             {"", kFar - 16, 1, 2, 64, kFar / 2 - 8, 64},
             {":interleaved1", 32, 1, 2, 64, 16, 64},  // even rows, odd rows
             {"", kFar, 2, 1, 64, 0, 64},
         }) {
      Placed there = placed;
      there.up_behind_gate_bytes *= sign;
      expect_gate_up(there);
    }
  }
}

// 300 MiB of sums: the first rows, then those that are left, in the same scratch.
TEST_F(CublasLtBatch, SumsBeyondScratchComeInParts) {
  const Problem problem = gpu::problem_of("9600x16x4099:gate_up");
  constexpr std::int64_t kRowBytes = 2 * 4104 * 4;
  constexpr std::int64_t kFirst = (std::int64_t{256} << 20) / kRowBytes / 8 * 8;
  EXPECT_EQ(kCublasLtAny.scratch_bytes({problem, gpu::h200_with_cublaslt(), {}}),
            kCublasLtScratchBytes + kFirst * kRowBytes + 2 * 4104 * 32);
  Operands operands;
  operands.x = address(64);
  operands.w_gate = address(std::int64_t{1} << 40);
  operands.w_up = address((std::int64_t{1} << 40) + 4099 * 32);
  operands.h = address(128);
  ASSERT_NO_FATAL_FAILURE(expect_launches(problem, operands, kCublasLtAny));
  const auto products = fake::products();
  ASSERT_EQ(products.size(), 2U);
  EXPECT_EQ(products[0].a.rows, static_cast<std::uint64_t>(kFirst));
  EXPECT_EQ(products[0].b.rows, 2 * 4104U);
  EXPECT_EQ(products[1].a.rows, static_cast<std::uint64_t>(9600 - kFirst));
  EXPECT_EQ(products[1].a.base, address(64 + kFirst * 32));
  EXPECT_EQ(products[1].out.base, products[0].out.base);
  EXPECT_EQ(last_gate.rows, 9600 - kFirst);
  EXPECT_EQ(last_gate.h, address(128 + kFirst * 4099 * 2));
}

// Of 32 tokens and more: gate's and up's copies are one matrix.
TEST_F(CublasLtBatch, WidthsOfNoWholeUnitsAreCopied) {
  const Problem problem = gpu::problem_of("32x20x69:gate_up:interleaved3");
  Operands operands;
  operands.x = address(64);
  operands.w_gate = address(std::int64_t{1} << 40);
  operands.w_up = address(std::int64_t{3} << 40);
  operands.h = address(128);
  pads.clear();
  ASSERT_NO_FATAL_FAILURE(expect_launches(problem, operands, kCublasLtAny));
  ASSERT_EQ(pads.size(), 3U);
  EXPECT_EQ(pads[0].from, operands.x);
  EXPECT_EQ(pads[0].to_rows, 32);
  EXPECT_EQ(pads[1].from, operands.w_gate);
  EXPECT_EQ(pads[2].from, operands.w_up);
  EXPECT_EQ(static_cast<char*>(pads[2].to) - static_cast<char*>(pads[1].to), 72 * 24 * 2);
  for (const PadRowsParams& pad : pads) EXPECT_EQ(pad.to_cols, 24);
  const auto products = fake::products();
  ASSERT_EQ(products.size(), 1U);
  EXPECT_EQ(products[0].a.base, pads[0].to);
  EXPECT_EQ(products[0].b.base, pads[1].to);
  EXPECT_EQ(products[0].b.rows, 144U);
  EXPECT_EQ(last_gate.sums_stride, 144);
  EXPECT_EQ(last_gate.block, 72);
}

// A gradient's sums in parts: the last one has those of the zeros behind the left side's columns.
TEST_F(CublasLtBatch, PaddedWeightGradientsComeInParts) {
  const Problem problem = gpu::problem_of("512x8001x9003:weight_grad");
  EXPECT_EQ(kCublasLtAny.scratch_bytes({problem, gpu::h200_with_cublaslt(), {}}),
            kCublasLtScratchBytes + 8376 * 8008 * 4 + 512 * (9008 + 8008) * 2);
  Operands operands;
  operands.x = address(64);
  operands.dg = address(std::int64_t{1} << 40);
  operands.du = address(std::int64_t{2} << 40);
  operands.dw_gate = address(std::int64_t{3} << 40);
  operands.dw_up = address(std::int64_t{4} << 40);
  pads.clear();
  ASSERT_NO_FATAL_FAILURE(expect_launches(problem, operands, kCublasLtAny));
  ASSERT_EQ(pads.size(), 3U);
  EXPECT_EQ(pads[1].to, pads[2].to) << "du's copy takes the place of dg's";
  EXPECT_EQ(pads[2].from, operands.du);
  const auto products = fake::products();
  ASSERT_EQ(products.size(), 4U);
  for (const std::size_t first : {0U, 2U}) {
    EXPECT_EQ(products[first].out.rows, 8376U);
    EXPECT_EQ(products[first + 1].out.rows, 632U);
    EXPECT_EQ(products[first + 1].a.base, static_cast<char*>(pads[1].to) + 8376 * 2);
  }
  EXPECT_EQ(last_add.rows, 627);
  EXPECT_EQ(last_add.cols, 8001);
  EXPECT_EQ(last_add.sums_stride, 8008);
  EXPECT_EQ(last_add.y, static_cast<char*>(operands.dw_up) + std::int64_t{8376} * 8001 * 4);
}

// Blocks of three rows whose gaps are not the other matrix's: a batch for each.
TEST_F(CublasLtBatch, BlocksOfTwoMatricesAreABatchEach) {
  const Problem problem = gpu::problem_of("24x16x69:gate_up:interleaved3");
  Operands operands;
  operands.x = address(64);
  operands.w_gate = address(std::int64_t{1} << 40);
  operands.w_up = address(std::int64_t{3} << 40);
  operands.h = address(128);
  ASSERT_NO_FATAL_FAILURE(expect_launches(problem, operands, kCublasLtAny));
  const auto products = fake::products();
  ASSERT_EQ(products.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& [a, b, out] = products[i];
    EXPECT_EQ(b.base, i == 0 ? operands.w_gate : operands.w_up);
    EXPECT_EQ(b.rows, 3U);
    EXPECT_EQ(b.count, 23);
    EXPECT_EQ(b.step, 6 * 16);
    EXPECT_EQ(out.base, last_gate.sums + 3 * i);
    EXPECT_EQ(out.stride, 2 * 69);
    EXPECT_EQ(out.step, 6);
  }
  EXPECT_EQ(last_gate.block, 3);
  EXPECT_FALSE(last_gate.up_first);
}

}  // namespace
}  // namespace sluice::cuda
