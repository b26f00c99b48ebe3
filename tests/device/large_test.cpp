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

// All operands of a problem: inputs filled, outputs as they come.
struct Memory {
  explicit Memory(const Problem& problem) {
    for (const OperandSpec& spec : operand_specs(problem)) {
      if (spec.access == Access::kUnused) continue;
      const auto i = static_cast<std::size_t>(spec.id);
      buffers[i] = std::move(
          RigBuffer::make(gpu::rig(), static_cast<std::size_t>(extent_bytes(spec))).value());
      set_address(operands, spec.id, buffers[i].data());
      if (spec.access != Access::kRead) continue;
      EXPECT_OK(gpu::rig().fill_matrix(
          spec, harness::fill_params(problem, spec.id, harness::Fill::kNormal, 1),
          buffers[i].data()));
    }
  }
  std::array<RigBuffer, kOperandCount> buffers;
  Operands operands;
};

std::size_t bytes_of_all(const Problem& problem) {
  std::size_t bytes = 0;
  for (const OperandSpec& spec : operand_specs(problem)) {
    if (spec.access != Access::kUnused) bytes += static_cast<std::size_t>(extent_bytes(spec));
  }
  return bytes;
}

// The last rows have the bits that a run of those rows alone gives them.
void expect_last_rows_right(const std::string& text, const char* variant) {
  Problem problem = harness::parse_case(text).value().problem;
  problem.m = kRows;
  if (!enough_memory(bytes_of_all(problem) + (std::size_t{1} << 30))) GTEST_SKIP();
  Options options;
  options.variant = variant;
  const Memory whole(problem);
  const Stream stream = gpu::rig().stream();
  ASSERT_OK(run(plan(problem, gpu::rig().device(), options).value(), whole.operands, {}, stream));

  Problem slice = problem;
  slice.m = kSlice;
  Memory part(slice);
  const auto in_whole = [&](const OperandSpec& spec) {
    return whole.buffers[static_cast<std::size_t>(spec.id)].data() +
           (kRows - kSlice) * spec.layout.row_stride_bytes;
  };
  for (const OperandSpec& spec : operand_specs(slice)) {
    if (spec.access == Access::kRead && spec.rows == kSlice) {
      set_address(part.operands, spec.id, in_whole(spec));
    } else if (spec.access == Access::kRead) {
      set_address(part.operands, spec.id,
                  const_cast<void*>(address(whole.operands, spec.id)));  // a weight
    }
  }
  ASSERT_OK(run(plan(slice, gpu::rig().device(), options).value(), part.operands, {}, stream));
  for (const OperandSpec& spec : operand_specs(slice)) {
    if (spec.access != Access::kWrite) continue;
    const auto result = harness::compare_on_gpu(spec, address(part.operands, spec.id), spec,
                                                in_whole(spec), 0, 0, gpu::rig());
    ASSERT_OK(result);
    EXPECT_EQ(result->failed, 0) << spec.name << ", first at element " << result->first_failed;
    EXPECT_EQ(result->compared, kSlice * kCols);
  }
}

TEST(GpuLarge, GateMulBeyond2To31Elements) {
  expect_last_rows_right("1x1x32776:gate_mul", "cuda.elementwise");
}

TEST(GpuLarge, GateMulGradBeyond2To31Elements) {
  expect_last_rows_right("1x1x32776:gate_mul_grad", "cuda.elementwise");
}

TEST(GpuLarge, GateUpBeyond2To31Elements) {
  expect_last_rows_right("1x16x32776:gate_up", "cuda.simt");
}

TEST(GpuLarge, GateUpGradBeyond2To31Elements) {
  if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs Hopper";
  expect_last_rows_right("1x16x32776:gate_up_grad", "cuda.sm90");
}

}  // namespace
}  // namespace sluice
