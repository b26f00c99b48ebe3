// SPDX-License-Identifier: Apache-2.0
// The harness on a GPU: the same fill as on the host, a comparison that catches planted errors, a
// stopwatch that measures, ceilings that are plausible.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gpu.hpp"
#include "harness/ceilings.hpp"
#include "harness/cuda/compare.hpp"
#include "harness/timer.hpp"

namespace sluice {
namespace {

using harness::Fill;
using harness::RigBuffer;

OperandSpec dense(DType dtype, std::int64_t rows, std::int64_t cols) {
  OperandSpec spec;
  spec.dtype = dtype;
  spec.rows = rows;
  spec.cols = cols;
  spec.layout.row_stride_bytes = cols * size_bytes(dtype);
  return spec;
}

TEST(GpuHarness, FillsTheSameBitsAsTheHost) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64}) {
    for (const Fill fill : {Fill::kNormal, Fill::kIntegers, Fill::kSpecial}) {
      for (const char* text : {"40x96x56:mlp:clamped_swiglu:interleaved4", "40x96x57:mlp:concat"}) {
        harness::Case c = harness::parse_case(text).value();
        Problem& problem = c.problem;
        problem.x_dtype = problem.w_dtype = problem.y_dtype = dtype;
        problem.alignment_bytes = 8;
        ASSERT_OK(harness::place(c));
        for (const Operand id : {Operand::kX, Operand::kWGate, Operand::kWDown}) {
          const OperandSpec spec = operand_specs(problem)[static_cast<std::size_t>(id)];
          const auto params = harness::fill_params(problem, id, fill, 7);
          const auto bytes = static_cast<std::size_t>(extent_bytes(spec));
          std::vector<unsigned char> host(bytes, 0);
          std::vector<unsigned char> device(bytes, 1);
          harness::fill_matrix(spec, params, host.data());
          auto buffer = std::move(RigBuffer::make(gpu::rig(), bytes).value());
          ASSERT_OK(gpu::rig().fill_bytes(buffer.data(), 0, bytes));
          ASSERT_OK(gpu::rig().fill_matrix(spec, params, buffer.data()));
          ASSERT_OK(gpu::rig().download(device.data(), buffer.data(), bytes));
          EXPECT_EQ(host, device) << text << " " << to_string(dtype) << " "
                                  << harness::to_string(fill) << " " << spec.name;
        }
      }
    }
  }
}

class GpuCompare : public testing::Test {
 protected:
  static constexpr std::int64_t kRows = 37;
  static constexpr std::int64_t kCols = 300;

  harness::GpuComparison compare(double absolute, double relative) {
    for (int i = 0; i < 2; ++i) {
      EXPECT_OK(gpu::rig().upload(buffers_[i].data(), values_[i].data(), spec_bytes()));
    }
    const OperandSpec spec = dense(DType::kF32, kRows, kCols);
    return harness::compare_on_gpu(spec, buffers_[0].data(), spec, buffers_[1].data(), absolute,
                                   relative, gpu::rig())
        .value();
  }
  float& got(std::int64_t row, std::int64_t col) {
    return values_[1][static_cast<std::size_t>(row * kCols + col)];
  }
  float& want(std::int64_t row, std::int64_t col) {
    return values_[0][static_cast<std::size_t>(row * kCols + col)];
  }
  void SetUp() override {
    for (int i = 0; i < 2; ++i) {
      values_[i].assign(static_cast<std::size_t>(kRows * kCols), 2.0F);
      buffers_[i] = std::move(RigBuffer::make(gpu::rig(), spec_bytes()).value());
    }
  }

 private:
  static std::size_t spec_bytes() { return sizeof(float) * kRows * kCols; }
  std::vector<float> values_[2];
  RigBuffer buffers_[2];
};

TEST_F(GpuCompare, EqualMatricesPass) {
  const auto result = compare(0, 0);
  EXPECT_EQ(result.compared, kRows * kCols);
  EXPECT_EQ(result.failed, 0);
  EXPECT_EQ(result.first_failed, -1);
  EXPECT_EQ(result.worst_ratio, 0);
}

TEST_F(GpuCompare, FindsEveryPlantedError) {
  got(5, 7) = 2.5F;
  got(36, 299) = std::numeric_limits<float>::quiet_NaN();
  got(20, 0) = -std::numeric_limits<float>::infinity();
  const auto result = compare(0, 0.125);
  EXPECT_EQ(result.failed, 3);
  EXPECT_EQ(result.first_failed, 5 * kCols + 7);
  EXPECT_EQ(result.worst_ratio, 2);  // 0.5 over a bound of 0.25; NaN and infinity have no ratio
}

TEST_F(GpuCompare, ABoundIsABound) {
  got(0, 0) = 2.25F;
  EXPECT_EQ(compare(0.25, 0).failed, 0);
  EXPECT_EQ(compare(0, 0.125).failed, 0);
  EXPECT_EQ(compare(0.125, 0).failed, 1);
}

TEST_F(GpuCompare, NaNAndInfinityEqualThemselves) {
  got(3, 3) = want(3, 3) = std::numeric_limits<float>::quiet_NaN();
  got(4, 4) = want(4, 4) = std::numeric_limits<float>::infinity();
  EXPECT_EQ(compare(0, 0).failed, 0);
  got(4, 4) = 1.0F;
  EXPECT_EQ(compare(1e30, 1).failed, 1);
}

// A copy of twice the bytes must take longer, and neither may take no time.
TEST(GpuHarness, TheStopwatchMeasures) {
  auto stopwatch = harness::make_stopwatch(gpu::rig());
  ASSERT_OK(stopwatch);
  constexpr std::size_t kBytes = std::size_t{512} << 20;
  auto buffer = std::move(RigBuffer::make(gpu::rig(), 2 * kBytes).value());
  // Only so that initcheck sees no read of what nobody wrote.
  ASSERT_OK(gpu::rig().fill_bytes(buffer.data() + kBytes, 1, kBytes));
  const auto copy = [&](std::size_t bytes) -> harness::Run {
    return [&buffer, bytes](Stream stream) -> Status {
      const cudaError_t code =
          cudaMemcpyAsync(buffer.data(), buffer.data() + kBytes, bytes, cudaMemcpyDeviceToDevice,
                          static_cast<cudaStream_t>(stream));
      if (code != cudaSuccess) return make_error(ErrorCode::kDevice, "copy");
      return {};
    };
  };
  const std::vector<harness::Candidate> candidates = {{"all", {copy(kBytes)}},
                                                      {"half", {copy(kBytes / 2)}}};
  harness::TimerOptions options;
  options.min_total_us = 5e3;
  options.max_total_us = 1e6;
  options.warm_up_us = 1e3;
  const auto timings = harness::time_interleaved(**stopwatch, candidates, options);
  ASSERT_OK(timings);
  EXPECT_GT((*timings)[1].median_us, 0);
  EXPECT_GT((*timings)[0].median_us, (*timings)[1].median_us);
}

TEST(GpuHarness, TheStopwatchPassesErrorsOn) {
  auto stopwatch = harness::make_stopwatch(gpu::rig());
  ASSERT_OK(stopwatch);
  int calls = 0;
  const harness::Run fails_when_captured = [&](Stream) -> Status {
    if (++calls == 1) return {};
    return make_error(ErrorCode::kInternal, "planted");
  };
  const auto handle = (*stopwatch)->prepare({fails_when_captured});
  ASSERT_FALSE(handle);
  EXPECT_EQ(handle.error().text(), "planted");
  EXPECT_FALSE((*stopwatch)->prepare({}));
  EXPECT_OK(gpu::rig().synchronize());  // the stream is not left in capture
}

TEST(GpuHarness, CeilingsArePlausible) {
  harness::CeilingOptions options;
  options.quick = true;
  const auto ceilings = harness::measure_ceilings(gpu::rig(), options);
  ASSERT_OK(ceilings);
  ASSERT_TRUE(ceilings->read_tbps && ceilings->copy_tbps);
  EXPECT_GT(*ceilings->read_tbps, 0);
  EXPECT_GT(*ceilings->copy_tbps, 0);
  // Reads alone are no slower than reads and writes together, but for noise.
  EXPECT_GT(2 * *ceilings->read_tbps, *ceilings->copy_tbps);
  ASSERT_EQ(ceilings->mma_sync_tflops.has_value(), gpu::rig().device().compute_capability >= 80);
  // Tensor cores: the others reach half a TFLOP/s an SM at most.
  if (ceilings->mma_sync_tflops) {
    EXPECT_GT(*ceilings->mma_sync_tflops, 0.5 * gpu::rig().device().sm_count);
  }
}

TEST(GpuHarness, FlushesCaches) { EXPECT_OK(gpu::rig().flush_caches()); }

}  // namespace
}  // namespace sluice
