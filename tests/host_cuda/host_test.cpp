// SPDX-License-Identifier: Apache-2.0
// What of the CUDA backend needs no GPU: planning for a device that is not there, the workspace's
// layout, and machines without a driver.
#include <gtest/gtest.h>

#include <string>

#include "cuda/host/workspace.hpp"
#include "harness/case.hpp"
#include "harness/rig.hpp"
#include "sluice/plan.hpp"

namespace sluice {
namespace {

Device h200() {
  Device device;
  device.backend = Backend::kCuda;
  device.arch = Arch::kHopper;
  device.compute_capability = 90;
  device.sm_count = 132;
  device.smem_per_block_bytes = 227 * 1024;
  device.cooperative_launch = true;
  return device;
}

Problem problem_of(const std::string& text) { return harness::parse_case(text).value().problem; }

Plan simt_plan(const std::string& text) {
  Options options;
  options.variant = "cuda.simt";
  return plan(problem_of(text), h200(), options).value();
}

TEST(CudaHost, AMachineWithoutADriverHasNoDevice) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is a GPU";
  const auto device = cuda_device(0);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(device.error().text().find("no CUDA device found"), std::string_view::npos);
  EXPECT_FALSE(harness::open_rig("cuda"));
  EXPECT_TRUE(harness::open_rig("auto"));
}

TEST(CudaHost, PlansForADeviceThatIsNotThere) {
  EXPECT_STREQ(simt_plan("64x256x512:mlp").variant_name(), "cuda.simt");
}

TEST(CudaHost, RunOnAnAbsentDeviceIsAnError) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is a GPU";
  const Plan p = simt_plan("2x8x16:gate_mul");
  alignas(16) unsigned char memory[3][64];
  Operands operands;
  operands.g = memory[0];
  operands.u = memory[1];
  operands.h = memory[2];
  const Status status = run(p, operands, {}, nullptr);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kDevice);
  EXPECT_NE(status.error().cuda_code, 0);
  alignas(kWorkspaceAlignment) static unsigned char header[kWorkspaceHeaderBytes];
  EXPECT_FALSE(workspace_init({header, sizeof(header)}, h200(), nullptr));
}

TEST(CudaSimt, RefusesOldDevicesAndFp64) {
  Device old = h200();
  old.compute_capability = 70;
  Options options;
  options.variant = "cuda.simt";
  const auto on_old = plan(problem_of("4x64x96"), old, options);
  ASSERT_FALSE(on_old);
  EXPECT_EQ(on_old.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(on_old.error().text().find("needs compute capability 7.5"), std::string_view::npos);
  const auto fp64 = plan(problem_of("4x64x96:fp64"), h200(), options);
  ASSERT_FALSE(fp64);
  EXPECT_NE(fp64.error().text().find("x is fp64"), std::string_view::npos);
  // Unforced too: the portable variant's reason is the one that counts.
  const auto unforced = plan(problem_of("4x64x96:fp64"), h200());
  ASSERT_FALSE(unforced);
  EXPECT_NE(unforced.error().text().find("cuda.simt: x is fp64"), std::string_view::npos);
  // A type that the operator does not use is no obstacle.
  Problem unused = problem_of("4x64x96:gate_mul");
  unused.w_dtype = DType::kF64;
  EXPECT_TRUE(plan(unused, h200(), options));
}

// Blocks are for CPUs so far: every GPU variant says so.
TEST(CudaVariants, RefuseWeightsInBlocks) {
  for (const char* type : {"q8_0", "q4_0", "q4_1"}) {
    for (const char* op : {"gate_up", "down", "mlp", "gate_up_grad", "mlp_grad"}) {
      const Problem p = problem_of(std::string("4x64x96:") + op + ":" + type);
      const auto made = plan(p, h200());
      ASSERT_FALSE(made) << op;
      EXPECT_EQ(made.error().code, ErrorCode::kUnsupported);
      for (const Refusal& refusal : explain(p, h200()).variants) {
        EXPECT_NE(refusal.reason, "") << refusal.variant << " " << op << " " << type;
      }
      const auto simt = plan(p, h200(), {.variant = "cuda.simt"});
      ASSERT_FALSE(simt);
      EXPECT_NE(simt.error().text().find(std::string("in blocks of ") + type),
                std::string_view::npos);
    }
    EXPECT_TRUE(plan(problem_of(std::string("4x64x96:gate_mul:") + type), h200()));
  }
}

TEST(CudaSimt, ChoosesTheLowTileForFewTokens) {
  EXPECT_EQ(simt_plan("1x64x96").config_name(), "mlp=16x64x32");
  EXPECT_EQ(simt_plan("16x64x96").config_name(), "mlp=16x64x32");
  EXPECT_EQ(simt_plan("17x64x96").config_name(), "mlp=64x64x16");
  EXPECT_EQ(config_names("cuda.simt", problem_of("1x64x96"), h200()),
            (std::vector<std::string>{"mlp=16x64x32", "mlp=64x64x16"}));
}

// Sizes in bytes of parts that are multiples of 256 already, and one that is not.
TEST(CudaSimt, WorkspaceIsExactlyItsParts) {
  constexpr std::size_t kMD = std::size_t{32} * 128 * 2;
  constexpr std::size_t kMH = std::size_t{32} * 256 * 2;
  const auto payload = [](const char* text) {
    const std::size_t bytes = simt_plan(text).workspace_bytes;
    return bytes == 0 ? 0 : bytes - kWorkspaceHeaderBytes;
  };
  EXPECT_EQ(payload("32x128x256:gate_up"), 0U);
  EXPECT_EQ(payload("32x128x256:down"), 0U);
  EXPECT_EQ(payload("32x128x256:gate_mul_grad"), 0U);
  EXPECT_EQ(payload("32x128x256:gate_up:norm"), kMD);
  EXPECT_EQ(payload("32x128x256:mlp"), kMH);
  EXPECT_EQ(payload("32x128x256:mlp:add_norm"), kMD + kMH);
  EXPECT_EQ(payload("32x128x256:mlp:add_norm:residual_norm_input"), 2 * kMD + kMH);
  EXPECT_EQ(payload("32x128x256:mlp_grad"), 3 * kMH);
  EXPECT_EQ(payload("32x128x256:mlp_grad:recompute"), 3 * kMH + 2 * 2 * kMH);
  EXPECT_EQ(payload("32x128x256:mlp_grad:save_dg_du"), kMH);
  EXPECT_EQ(payload("1x8x3:mlp"), kWorkspaceAlignment);
}

TEST(CudaWorkspace, TheCursorCountsWhatItHandsOut) {
  alignas(kWorkspaceAlignment) static unsigned char memory[1024];
  cuda::ScratchCursor counting(nullptr);
  cuda::ScratchCursor handing(memory);
  EXPECT_EQ(counting.take(1), nullptr);
  EXPECT_EQ(counting.take(300), nullptr);
  EXPECT_EQ(handing.take(1), memory);
  EXPECT_EQ(handing.take(300), memory + 256);
  EXPECT_EQ(counting.used(), 768U);
  EXPECT_EQ(handing.used(), counting.used());
}

}  // namespace
}  // namespace sluice
