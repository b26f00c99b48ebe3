// SPDX-License-Identifier: Apache-2.0
// The vendor's baselines compute what the operators compute: with the identity gate and small
// integers every rounding is exact, so their outputs must equal the oracle's in every bit.
#include "harness/baseline.hpp"

#include <string>
#include <vector>

#include "gpu.hpp"
#include "harness/cuda/cublaslt.hpp"

namespace sluice {
namespace {

std::vector<std::string> names_of(const std::string& text) {
  const auto c = harness::parse_case(text).value();
  std::vector<std::string> names;
  const auto baselines = std::move(harness::make_cuda_baselines(c, gpu::rig()).value());
  names.reserve(baselines.size());
  for (const auto& baseline : baselines) names.push_back(baseline->name());
  return names;
}

class GpuBaseline : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!harness::CublasLt::open(gpu::rig())) GTEST_SKIP() << "cuBLASLt was not found";
  }
};

TEST_P(GpuBaseline, ComputesTheOperator) {
  const auto c = harness::parse_case(GetParam()).value();
  auto baselines = std::move(harness::make_cuda_baselines(c, gpu::rig()).value());
  ASSERT_FALSE(baselines.empty());
  auto set = std::move(harness::OperandSet::make(c, gpu::rig()).value());
  harness::Baseline& baseline = *baselines.front();
  EXPECT_GT(baseline.extra_bytes(), 0);
  const harness::Run run = baseline.bind(set->operands());
  ASSERT_OK(set->reset_outputs());
  ASSERT_OK(run(gpu::rig().stream()));
  ASSERT_OK(gpu::rig().synchronize());
  const auto comparisons = harness::compare_outputs(*set);
  ASSERT_OK(comparisons);
  for (const auto& comparison : *comparisons) {
    EXPECT_TRUE(comparison.passed()) << harness::to_string(comparison);
  }
  EXPECT_OK(set->check_canaries());
}

INSTANTIATE_TEST_SUITE_P(
    Cases, GpuBaseline,
    testing::Values("64x128x256:gate_up:identity:fill=integers",
                    "64x128x256:gate_up:fp16:identity:fill=integers:concat",
                    "40x128x256:gate_up:identity:fill=integers:interleaved1",
                    "40x128x256:gate_up:identity:fill=integers:interleaved8+up_first",
                    "9x128x256:gate_up:identity:fill=integers:pad=8",
                    "1x128x256:mlp:identity:fill=integers",
                    "72x128x2056:mlp:identity:fill=integers:concat",
                    "72x256x128:down:identity:fill=integers:pad=8",
                    "72x128x256:gate_up_grad:identity:fill=integers",
                    "40x128x264:gate_up_grad:fp16:identity:fill=integers:pad=8"));

TEST(GpuBaselines, AreOfferedForWhatTheyCompute) {
  if (!harness::CublasLt::open(gpu::rig())) GTEST_SKIP() << "cuBLASLt was not found";
  EXPECT_EQ(names_of("8x64x64:gate_up"),
            (std::vector<std::string>{"cublaslt+act", "cublaslt_gemm"}));
  EXPECT_EQ(names_of("8x64x64:down"), std::vector<std::string>{"cublaslt_gemm"});
  EXPECT_EQ(names_of("8x64x64:gate_up_grad"),
            (std::vector<std::string>{"cublaslt+act", "cublaslt_gemm"}));
  EXPECT_EQ(names_of("8x64x64:mlp"), std::vector<std::string>{"cublaslt_chain"});
  for (const char* text : {"8x64x64:mlp:fp32", "8x64x64:mlp:bias", "8x64x64:mlp_grad",
                           "8x63x64:gate_up", "8x64x64:mlp:norm"}) {
    EXPECT_TRUE(names_of(text).empty()) << text;
  }
}

}  // namespace
}  // namespace sluice
