// SPDX-License-Identifier: Apache-2.0
// The Hopper GEMM where memory, not the product, sets the pace: k is one block, outputs are tens of
// megabytes, and shared memory that a store still reads is wanted for the next tile. Who takes it
// too early changes what is stored.
#include <algorithm>
#include <string>

#include "job.hpp"

namespace sluice {
namespace {

TEST(GpuGemm, NobodyOverwritesWhatAStoreStillReads) {
  if (gpu::rig().device().arch != Arch::kHopper) GTEST_SKIP() << "needs a Hopper GPU";
  for (const std::string text :
       {"4096x8x14336:gate_up", "4096x14336x8:down", "4096x8x14336:gate_up_grad"}) {
    // One right answer, whoever computes it.
    const auto c = harness::parse_case(text + ":identity:fill=integers").value();
    auto set = std::move(harness::OperandSet::make(c, gpu::rig()).value());
    const std::string expected = gpu::run_once(*set, "cuda.simt", nullptr);
    for (const std::string& config : config_names("cuda.sm90", c.problem, gpu::rig().device())) {
      const std::string got = gpu::run_once(*set, "cuda.sm90", config.c_str());
      ASSERT_EQ(got.size(), expected.size());
      const auto [at, other] = std::mismatch(expected.begin(), expected.end(), got.begin());
      EXPECT_EQ(at - expected.begin(), static_cast<std::ptrdiff_t>(expected.size()))
          << text << " " << config << ": first wrong byte";
    }
  }
}

}  // namespace
}  // namespace sluice
