// SPDX-License-Identifier: Apache-2.0
// cuda.sm90 where cuBLASLt computes its plain products beside this library's fused kernels.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "job.hpp"

namespace sluice {
namespace {

using gpu::bits_of;
using gpu::expect_right;
using gpu::Job;
using gpu::make_job;

constexpr const char* kVariant = "cuda.sm90";

// Every product: gate_up's as one and as a batch; bias and residual in down; behind a norm's
// launch; gate and up's gradients in one matrix and in two, x's as one product (concat) and as this
// library's (separate); sums into what is there, in fp32 and bf16.
const std::vector<std::string> kCases = {
    "130x136x200:down:bias_down",
    "64x72x264:down:fp16:pad=8",
    "1x8x8:down",
    "130x136x200:down:residual:bias_down",
    "64x1032x264:down:residual:fp16:pad=8",
    "100x264x520:mlp:residual",
    "300x136x392:mlp:add_norm:residual_norm_input:bias_down",
    "100x264x520:mlp:bias_down",
    "300x136x392:mlp:save:bias",
    "100x264x520:mlp:add_norm:bias_down",
    "300x136x392:mlp:norm:fp16:save",
    "100x264x520:mlp:interleaved1:bias",
    "64x64x128:mlp_grad:identity:fill=integers",
    "130x136x200:mlp_grad:concat:identity:fill=integers:accumulate",
    "300x136x392:mlp_grad:concat:bias:bias_down",
    "200x200x328:mlp_grad:fp16:pad=8",
    "257x264x520:mlp_grad:bf16/bf16/bf16/bf16:accumulate:concat",
    "257x264x520:mlp_grad:recompute:bf16/bf16/bf16/bf16",
    "257x264x520:mlp_grad:save_dg_du:recompute:concat",
    "200x136x392:mlp_grad:save_dg_du:recompute:pad=8",
    "1x136x392:mlp_grad:save_dg_du:concat",
};

// Without a config: gradients of so small shapes are cuBLASLt's.
Options forced(const char* config = nullptr) { return {.variant = kVariant, .config = config}; }

// The configs in which cuBLASLt computes a step.
std::vector<std::string> library_configs(const Problem& problem) {
  std::vector<std::string> names = config_names(kVariant, problem, gpu::rig().device());
  std::erase_if(names, [](const std::string& n) { return n.find("=lt") == std::string::npos; });
  return names;
}

class GpuCublasLt : public testing::Test {
 protected:
  void SetUp() override {
    const Device& device = gpu::rig().device();
    if (device.arch != Arch::kHopper) GTEST_SKIP() << "needs a Hopper GPU";
    if (device.cublaslt_version == 0) GTEST_SKIP() << "cuBLASLt was not found";
  }
  using Case = harness::Case;
};

// First, so that handles are made and the heuristic is asked while a stream captures.
TEST_F(GpuCublasLt, FirstRunsCanBeCapturedAndReplayed) {
  for (const std::string& text : kCases) {
    SCOPED_TRACE(text);
    // What a run adds to what is there cannot be replayed on the same operands.
    if (text.find("accumulate") != std::string::npos) continue;
    const auto configs = library_configs(harness::parse_case(text).value().problem);
    ASSERT_FALSE(configs.empty());
    Job job = make_job(text, forced(configs.front().c_str()));
    EXPECT_NE(job.plan.config_name().find("=lt0"), std::string::npos) << job.plan.config_name();
    gpu::expect_replays_right(job);
  }
}

TEST_F(GpuCublasLt, EveryConfigAgainstTheOracle) {
  for (const std::string& text : kCases) {
    SCOPED_TRACE(text);
    const Case c = harness::parse_case(text).value();
    const auto configs = library_configs(c.problem);
    EXPECT_FALSE(configs.empty());
    harness::Verification verification(c, gpu::rig());
    for (const std::string& config : configs) {
      const auto report = verification.run(forced(config.c_str()));
      ASSERT_OK(report);
      EXPECT_EQ(report->config, config);
      EXPECT_TRUE(report->passed()) << report->text();
    }
  }
}

// Weights and their gradients in one matrix each, dg and du in buffers of their own: dx and dw are
// two products then. Integers: exact, so the same bits.
TEST_F(GpuCublasLt, GradientsOfTheHiddenLayerMayLieApart) {
  const std::string text = "129x72x264:mlp_grad:save_dg_du:concat:identity:fill=integers";
  Job job = make_job(text, forced());
  harness::OperandSet& set = *job.set;
  const auto bits_with = [&](const Operands& operands) {
    EXPECT_OK(set.reset_outputs());
    EXPECT_OK(sluice::run(job.plan, operands, job.workspace.workspace, gpu::rig().stream()));
    EXPECT_OK(gpu::rig().synchronize());
    std::string bits;
    for (const Operand id : {Operand::kDx, Operand::kDwGate, Operand::kDwUp}) {
      const auto now = set.host_matrix(id).value();
      bits.append(static_cast<const char*>(now.data),
                  static_cast<std::size_t>(extent_bytes(now.spec)));
    }
    return bits;
  };
  const std::string together = bits_with(set.operands());
  expect_right(job);
  Operands apart = set.operands();
  const auto bytes = static_cast<std::size_t>(extent_bytes(set.spec(Operand::kDg)));
  ASSERT_CUDA(cudaMalloc(&apart.dg, bytes));
  ASSERT_CUDA(cudaMalloc(&apart.du, bytes));
  EXPECT_TRUE(together == bits_with(apart));
  ASSERT_CUDA(cudaFree(apart.dg));
  ASSERT_CUDA(cudaFree(apart.du));
}

// Where gate and up alternate row by row the other gradients are this library's own.
TEST_F(GpuCublasLt, DwDownAlone) {
  const Case c =
      harness::parse_case("129x72x264:mlp_grad:recompute:interleaved1:accumulate").value();
  for (const std::string& config : library_configs(c.problem)) {
    EXPECT_EQ(config.find("input_grad=lt"), std::string::npos) << config;
    EXPECT_EQ(config.find(",weight_grad=lt"), std::string::npos) << config;
  }
  const auto report = harness::verify_case(c, gpu::rig(), forced("weight_grad_down=lt0"));
  ASSERT_OK(report);
  EXPECT_NE(report->config.find(",weight_grad_down=lt0"), std::string::npos) << report->config;
  EXPECT_TRUE(report->passed()) << report->text();
}

// Threads share the handle and the table of algorithms.
TEST_F(GpuCublasLt, ThreadsAtOnceOnTwoStreams) {
  const std::vector<std::string> cases = {"130x136x200:down:bias_down", "96x264x520:mlp",
                                          "300x136x392:mlp_grad:concat", "72x136x392:down"};
  gpu::expect_right_in_threads(cases, 20, forced());
}

}  // namespace
}  // namespace sluice
