// SPDX-License-Identifier: Apache-2.0
// Offsets beyond 2^31 elements: a large problem and a slice of its last rows must agree in every
// bit, and every bit of the slice is what a small problem gives.
#include <cuda_runtime_api.h>

#include "gpu.hpp"
#include "harness/cuda/compare.hpp"

namespace sluice {
namespace {

using harness::RigBuffer;

constexpr std::int64_t kCols = 32776;
constexpr std::int64_t kRows = 65600;  // kRows · kCols is just above 2^31
constexpr std::int64_t kSlice = 96;
static_assert(kRows * kCols > (std::int64_t{1} << 31));

bool enough_memory(std::size_t bytes) {
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  return cudaMemGetInfo(&free_bytes, &total) == cudaSuccess && free_bytes > bytes;
}

OperandSpec spec_of(const Problem& problem, Operand id) {
  return operand_specs(problem)[static_cast<std::size_t>(id)];
}

// One operand of the problem, filled.
RigBuffer filled(const Problem& problem, Operand id) {
  const OperandSpec spec = spec_of(problem, id);
  RigBuffer buffer =
      std::move(RigBuffer::make(gpu::rig(), static_cast<std::size_t>(extent_bytes(spec))).value());
  EXPECT_OK(gpu::rig().fill_matrix(
      spec, harness::fill_params(problem, id, harness::Fill::kNormal, 1), buffer.data()));
  return buffer;
}

void expect_same_bits(const Problem& problem, const void* want, const void* got) {
  const OperandSpec spec = spec_of(problem, Operand::kH);
  const auto result = harness::compare_on_gpu(spec, want, spec, got, 0, 0, gpu::rig());
  ASSERT_OK(result);
  EXPECT_EQ(result->failed, 0) << "first at element " << result->first_failed;
  EXPECT_EQ(result->compared, kSlice * kCols);
}

TEST(GpuLarge, GateMulBeyond2To31Elements) {
  Problem problem = harness::parse_case("1x1x32776:gate_mul").value().problem;
  problem.m = kRows;
  if (!enough_memory(std::size_t{3} * 2 * kRows * kCols + (std::size_t{1} << 30))) GTEST_SKIP();
  RigBuffer g = filled(problem, Operand::kG);
  RigBuffer u = filled(problem, Operand::kU);
  RigBuffer h = std::move(RigBuffer::make(gpu::rig(), g.bytes()).value());
  Operands operands;
  operands.g = g.data();
  operands.u = u.data();
  operands.h = h.data();
  const Plan whole = plan(problem, gpu::rig().device()).value();
  ASSERT_OK(run(whole, operands, {}, gpu::rig().stream()));

  Problem slice = problem;
  slice.m = kSlice;
  const std::size_t from = 2 * static_cast<std::size_t>((kRows - kSlice) * kCols);
  const std::size_t bytes = 2 * static_cast<std::size_t>(kSlice * kCols);
  RigBuffer part = std::move(RigBuffer::make(gpu::rig(), bytes).value());
  operands.g = g.data() + from;
  operands.u = u.data() + from;
  operands.h = part.data();
  ASSERT_OK(run(plan(slice, gpu::rig().device()).value(), operands, {}, gpu::rig().stream()));
  expect_same_bits(slice, part.data(), h.data() + from);
}

TEST(GpuLarge, GateUpBeyond2To31Elements) {
  Problem problem = harness::parse_case("1x16x32776:gate_up").value().problem;
  problem.m = kRows;
  if (!enough_memory(std::size_t{2} * kRows * kCols + (std::size_t{1} << 30))) GTEST_SKIP();
  RigBuffer x = filled(problem, Operand::kX);
  RigBuffer w_gate = filled(problem, Operand::kWGate);
  RigBuffer w_up = filled(problem, Operand::kWUp);
  RigBuffer h =
      std::move(RigBuffer::make(gpu::rig(), 2 * static_cast<std::size_t>(kRows * kCols)).value());
  Operands operands;
  operands.x = x.data();
  operands.w_gate = w_gate.data();
  operands.w_up = w_up.data();
  operands.h = h.data();
  Options options;
  options.variant = "cuda.simt";
  ASSERT_OK(
      run(plan(problem, gpu::rig().device(), options).value(), operands, {}, gpu::rig().stream()));

  Problem slice = problem;
  slice.m = kSlice;
  RigBuffer part =
      std::move(RigBuffer::make(gpu::rig(), 2 * static_cast<std::size_t>(kSlice * kCols)).value());
  operands.x = x.data() + 2 * (kRows - kSlice) * problem.d;
  operands.h = part.data();
  ASSERT_OK(
      run(plan(slice, gpu::rig().device(), options).value(), operands, {}, gpu::rig().stream()));
  expect_same_bits(slice, part.data(), h.data() + 2 * (kRows - kSlice) * kCols);
}

}  // namespace
}  // namespace sluice
