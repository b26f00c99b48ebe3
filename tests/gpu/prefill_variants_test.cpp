// SPDX-License-Identifier: Apache-2.0
// What the variants of the Hopper GEMM take, refuse and offer, and which of them is the choice: on
// any CPU.
#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/sm90/gemm_config.hpp"
#include "fake_devices.hpp"
#include "harness/case.hpp"
#include "sluice/plan.hpp"
#include "sluice/sluice.h"

namespace sluice {
namespace {

using cuda::sm90::GemmKind;
using gpu::a100;
using gpu::h200;

Problem problem_of(const std::string& text) { return harness::parse_case(text).value().problem; }

// "" where cuda.sm90 takes the problem, else its reason.
std::string reason_of(const Problem& problem, const Device& device) {
  for (const Refusal& row : explain(problem, device).variants) {
    if (row.variant == "cuda.sm90") return row.reason;
  }
  return "no cuda.sm90 in the table";
}

TEST(CudaSm90, IsChosenOnHopper) {
  for (const std::string types : {"bf16", "fp16"}) {
    const auto chosen = [&](const std::string& text) {
      const auto made = plan(problem_of(text + ":" + types), h200());
      return made ? std::string(made->variant_name()) + " " + made->config.name
                  : std::string(made.error().message);
    };
    EXPECT_EQ(chosen("512x4096x14336:gate_up"), "cuda.sm90 sm90.gate_up.pp128x128c1g16");
    // Blocks come as they lie where a tile is a multiple of a block of both: 160 rows of 32, not of
    // 64, for which 14 waves of 128 are fewer rows than 10 of 192. Blocks of 24 come by copies of
    // whole ones, three groups each.
    EXPECT_EQ(chosen("1024x4096x14336:gate_up"), "cuda.sm90 sm90.gate_up.pp128x160c1g16");
    EXPECT_EQ(chosen("1024x4096x14336:gate_up:interleaved8"),
              "cuda.sm90 sm90.gate_up.pp128x160c1g16");
    EXPECT_EQ(chosen("1024x4096x14336:gate_up:interleaved16"),
              "cuda.sm90 sm90.gate_up.pp128x160c1g16");
    EXPECT_EQ(chosen("1024x4096x14336:gate_up:interleaved32"),
              "cuda.sm90 sm90.gate_up.pp128x128c1g16");
    EXPECT_EQ(chosen("1024x4096x14352:gate_up:interleaved24"),
              "cuda.sm90 sm90.gate_up.pp128x192c2g8");
    EXPECT_EQ(chosen("512x4096x14336:down:residual"), "cuda.sm90 sm90.down.pp128x128c1g16");
    EXPECT_EQ(chosen("8192x4096x14336:gate_up_grad"), "cuda.sm90 sm90.gate_up_grad.pp128x192c2g8");
    EXPECT_EQ(chosen("8192x4096x14336:mlp_grad"),
              "cuda.sm90 sm90.mlp_grad.pp128x192c2g8+pp128x192c2g8");
    EXPECT_EQ(chosen("8192x4096x14336:mlp"), "cuda.sm90 sm90.mlp.pp128x192c2g8+pp128x128c2g8");
  }
  for (const std::string text :
       {"300x72x200:gate_up:bias:interleaved1+up_first", "33x64x72:down:residual:bias_down:pad=8",
        "33x64x48:mlp:interleaved16:clamped_swiglu", "0x64x96:mlp", "1x8x8:mlp:concat",
        "64x64x96:gate_up:save:concat", "64x64x96:mlp:save", "300x72x200:gate_up_grad:concat",
        "33x64x72:gate_up_grad:in_place:pad=8", "64x64x96:mlp_grad", "64x64x96:mlp_grad:pad=8",
        "64x64x96:mlp_grad:recompute:interleaved1:accumulate:bias"}) {
    EXPECT_EQ(reason_of(problem_of(text), h200()), "") << text;
  }
}

TEST(CudaSm90, WorkspaceHoldsWhatLaunchesLeaveForEachOther) {
  const auto bytes = [](const std::string& text) {
    return plan(problem_of(text), h200(), {.variant = "cuda.sm90"}).value().workspace_bytes;
  };
  EXPECT_EQ(bytes("512x4096x14336:gate_up"), 0U);
  EXPECT_EQ(bytes("512x4096x14336:down:residual"), 0U);
  EXPECT_EQ(bytes("512x4096x14336:gate_up_grad"), 0U);
  // Whole tiles under stream-K leave nothing; cut ones two tiles of sums a worker.
  EXPECT_EQ(bytes("64x4096x14336:gate_up"), 0U);
  EXPECT_EQ(bytes("256x8192x28672:gate_up"), 0U);
  EXPECT_EQ(bytes("64x4096x14336:down"),
            kWorkspaceHeaderBytes + std::size_t{2} * 128 * 64 * 128 * 4);
  constexpr std::size_t kHidden = std::size_t{512} * 14336 * 2;
  EXPECT_EQ(bytes("512x4096x14336:mlp"), kWorkspaceHeaderBytes + kHidden);
  // h, dg and du; with recompute g and u lie where dg and du will.
  EXPECT_EQ(bytes("512x4096x14336:mlp_grad"), kWorkspaceHeaderBytes + 3 * kHidden);
  EXPECT_EQ(bytes("512x4096x14336:mlp_grad:recompute"), kWorkspaceHeaderBytes + 3 * kHidden);
  EXPECT_EQ(bytes("512x4096x14336:mlp_grad:save_dg_du:in_place"), kWorkspaceHeaderBytes + kHidden);
  EXPECT_EQ(bytes("512x4096x14336:mlp_grad:save_dg_du:recompute"), kWorkspaceHeaderBytes + kHidden);
}

TEST(CudaSm90, EveryConfigIsOfferedOnceTheChoiceFirst) {
  const std::size_t gated =
      cuda::sm90::ranked({256, 2 * 14336, 4096, GemmKind::kGateUp, gpu::kH200SmCount}, {});
  const std::size_t plain =
      cuda::sm90::ranked({256, 4096, 14336, GemmKind::kDown, gpu::kH200SmCount}, {});
  const std::size_t grads = cuda::sm90::tilings(GemmKind::kGateUpGrad).size();
  const std::size_t products = cuda::sm90::tilings(GemmKind::kWeightGrad).size();
  for (const auto& [op, count] : {std::pair<std::string, std::size_t>{"gate_up", gated},
                                  {"down", plain},
                                  {"gate_up_grad", grads},
                                  {"mlp_grad", grads + products - 1},
                                  {"mlp", gated + plain - 1}}) {
    const Problem problem = problem_of("256x4096x14336:" + op);
    const std::vector<std::string> names = config_names("cuda.sm90", problem, h200());
    EXPECT_EQ(names.size(), count) << op;
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), count) << op;
    EXPECT_EQ(names.front(), plan(problem, h200()).value().config.name);
    for (const std::string& name : names) {
      Options options;
      options.variant = "cuda.sm90";
      options.config = name.c_str();
      const auto forced = plan(problem, h200(), options);
      ASSERT_TRUE(forced) << name;
      EXPECT_EQ(forced->config.name, name);
    }
  }
}

TEST(CudaSm90, SaysWhyItRefuses) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"64x64x96:mlp:norm", "has no norm prologue"},
      {"64x64x96:mlp_grad:interleaved8", "g: rows or columns in blocks"},
      {"64x64x96:mlp_grad:recompute:save_dg_du:interleaved8", "dg: rows or columns in blocks"},
      {"64x64x96:mlp_grad:bf16/bf16/bf16/fp16", "dw_gate: is fp16, wanted fp32 or bf16"},
      {"64x64x96:mlp_grad:broadcast", "x: row_stride is 0 bytes"},
      {"64x64x96:mlp_grad:recompute:interleaved8", "w_gate: rows or columns in blocks"},
      {"64x64x96:mlp:fp32", "takes bf16 or fp16"},
      {"64x64x96:down:bf16/bf16/fp32", "takes bf16 or fp16"},
      {"64x64x96:gate_up:fp16/bf16/fp16", "takes bf16 or fp16"},
      {"64x64x96:mlp:align=8", "alignment_bytes is 8"},
      {"64x64x96:gate_up_grad:bf16/bf16/fp32", "takes bf16 or fp16"},
      {"64x64x96:gate_up_grad:broadcast", "dy: row_stride is 0 bytes"},
      {"64x64x96:gate_up_grad:interleaved8", "g: rows or columns in blocks"},
      {"64x64x96:gate_up:save:interleaved8", "g: rows or columns in blocks"},
      {"64x60x96:gate_up", "d is 60 and h 96, wanted multiples of 8"},
      {"64x64x100:down", "d is 64 and h 100, wanted multiples of 8"},
      {"64x64x96:gate_up:pad=3", "x: row_stride of 134 bytes is no multiple of 16"},
      {"64x64x96:gate_up:interleaved3", "blocks of 3 rows neither divide 8"},
  };
  for (const auto& [text, reason] : cases) {
    const Problem problem = problem_of(text);
    EXPECT_NE(reason_of(problem, h200()).find(reason), std::string::npos)
        << text << ": " << reason_of(problem, h200());
    EXPECT_STRNE(plan(problem, h200()).value().variant_name(), "cuda.sm90") << text;
  }
}

TEST(CudaSm90, LeavesTheElementwiseOperatorsToOthers) {
  for (const std::string op : {"gate_mul", "gate_mul_grad"}) {
    const Problem problem = problem_of("64x64x96:" + op);
    EXPECT_EQ(reason_of(problem, h200()), "has no " + op);
    EXPECT_STREQ(plan(problem, h200()).value().variant_name(), "cuda.elementwise");
  }
}

TEST(CudaSm90, RefusesOtherDevices) {
  const Problem problem = problem_of("512x4096x14336:mlp");
  EXPECT_STREQ(plan(problem, a100()).value().variant_name(), "cuda.sm80");
  EXPECT_EQ(reason_of(problem, a100()), "needs a Hopper GPU (9.0), the device is 8.0");
  Device newer = h200();
  newer.arch = Arch::kBlackwell;
  newer.compute_capability = 100;
  EXPECT_EQ(reason_of(problem, newer), "needs a Hopper GPU (9.0), the device is 10.0");
  Device small = h200();
  small.smem_per_block_bytes = 232447;
  EXPECT_NE(reason_of(problem, small).find("needs 232448 bytes of shared memory"),
            std::string::npos);
}

std::string variant_of(const std::string& text, const Device& device) {
  const auto made = plan(problem_of(text), device);
  return made ? made->variant_name() : made.error().message;
}

// What a row says of itself.
Refusal library_row(const std::string& text, const Device& device,
                    const std::string& variant = "cuda.sm90_cublaslt") {
  for (const Refusal& row : explain(problem_of(text), device).variants) {
    if (row.variant == variant) return row;
  }
  return {"no such variant", "no such variant"};
}

// Measured orders, docs/kernels/cublaslt.md. What plan() chooses follows from the description of
// the device alone: no library is looked for.
TEST(Sm90CublasLt, IsTheChoiceWhereItWasMeasuredToBeFaster) {
  const Device with = gpu::h200_with_cublaslt();
  for (const char* text :
       {"65x4096x14336:down", "512x4096x14336:down:bias_down", "96x4096x14336", "384x4096x14336",
        "2048x4096x14336", "512x8192x28672:fp16", "768x4096x14336:mlp_grad",
        "512x16384x53248:mlp_grad:concat", "8192x2048x8192:mlp_grad"}) {
    EXPECT_EQ(variant_of(text, with), "cuda.sm90_cublaslt") << text;
    EXPECT_EQ(library_row(text, with).yields, "") << text;
    EXPECT_EQ(variant_of(text, h200()), "cuda.sm90") << text;
  }
  for (const char* text :
       {"4096x4096x14336:down", "1024x8192x28672", "512x16384x53248", "1024x4096x14336:mlp_grad",
        "8192x4096x14336:mlp_grad", "8192x2056x8192:mlp_grad"}) {
    EXPECT_EQ(variant_of(text, with), "cuda.sm90") << text;
    EXPECT_NE(library_row(text, with).yields, "") << text;
  }
  EXPECT_EQ(plan(problem_of("128x4096x14336"), with).value().config.name,
            std::string("sm90_cublaslt.mlp.co128x224c1g16+lt0"));
  EXPECT_EQ(variant_of("128x4096x14336:residual", with), "cuda.sm90");
  EXPECT_EQ(variant_of("128x4096x14336:gate_up", with), "cuda.sm90");
  EXPECT_NE(variant_of("64x4096x14336", with), "cuda.sm90_cublaslt");
}

// An H100's L2 feeds tiles of 128 columns less: cuBLASLt is ahead longer, and own tiles are wider.
TEST(Sm90CublasLt, IsTheChoiceOfLongerProductsOnAnH100) {
  const Device h100 = gpu::h100_with_cublaslt();
  for (const char* text : {"4096x4096x14336:down", "4096x8192x28672", "2048x16384x53248"}) {
    EXPECT_EQ(variant_of(text, h100), "cuda.sm90_cublaslt") << text;
    EXPECT_EQ(variant_of(text, gpu::h200_with_cublaslt()), "cuda.sm90") << text;
  }
  EXPECT_EQ(variant_of("8192x8192x28672", h100), "cuda.sm90");
  const auto own = [](const char* text, Device device) {
    device.cublaslt_version = 0;
    return std::string(plan(problem_of(text), device).value().config.name);
  };
  EXPECT_EQ(own("4096x8192x28672:down", h100), "sm90.down.pp128x192c2g8");
  EXPECT_EQ(own("4096x8192x28672:down", h200()), "sm90.down.pp128x128c2g8");
  EXPECT_EQ(own("16384x4096x14336:down", h100), "sm90.down.pp128x192c2g8");
  // Full waves of 128 are worth more.
  EXPECT_EQ(own("4096x4096x14336:down", h100), "sm90.down.pp128x128c2g8");
}

TEST(Sm90CublasLt, IsTheChoiceBehindANormWhereItIsWithout) {
  const Device with = gpu::h200_with_cublaslt();
  const std::string row = "cuda.sm90_cublaslt_norm";
  for (const char* text : {"65x4096x14336:norm", "192x4096x14336:add_norm",
                           "2048x4096x14336:add_norm:bias_down", "512x8192x28672:fp16:norm"}) {
    EXPECT_EQ(variant_of(text, with), row) << text;
    EXPECT_EQ(variant_of(text, h200()), "cuda.sm90_norm") << text;
  }
  for (const char* text :
       {"4096x4096x14336:add_norm", "128x4096x14336:gate_up:norm", "128x4096x14336:norm:residual",
        "128x4096x14336:add_norm:residual_norm_input"}) {
    EXPECT_EQ(variant_of(text, with), "cuda.sm90_norm") << text;
  }
  EXPECT_EQ(library_row("4096x4096x14336:add_norm", with, row).yields,
            library_row("4096x4096x14336", with).yields);
  EXPECT_EQ(library_row("128x4096x14336:norm:residual", with, row).reason,
            "residual: cuBLASLt rounds the product before it adds");
  EXPECT_EQ(library_row("128x4096x14336", with, row).reason, "is for problems with a norm");
}

TEST(Sm90CublasLt, IsFoundByTheDeviceOfTheCInterfaceToo) {
  sluice_problem problem;
  ASSERT_EQ(sluice_problem_init(&problem, sizeof(problem), nullptr), SLUICE_OK);
  problem.m = 128;
  problem.d = 4096;
  problem.h = 14336;
  sluice_device device{};
  device.struct_size = sizeof(device);
  device.backend = 1;  // CUDA
  device.arch = static_cast<int32_t>(Arch::kHopper);
  device.compute_capability = 90;
  device.sm_count = gpu::kH200SmCount;
  device.smem_per_block_bytes = h200().smem_per_block_bytes;
  for (const auto& [found, variant] : {std::pair{0, "cuda.sm90"}, {130100, "cuda.sm90_cublaslt"}}) {
    device.cublaslt_version = found;
    sluice_plan plan;
    ASSERT_EQ(sluice_plan_init(&plan, &problem, &device, nullptr, nullptr), SLUICE_OK);
    EXPECT_STREQ(sluice_plan_variant(&plan), variant);
  }
  // A caller of the first version, whose struct ended before the member: it is not looked at.
  device.struct_size = offsetof(sluice_device, cublaslt_version);
  sluice_plan plan;
  ASSERT_EQ(sluice_plan_init(&plan, &problem, &device, nullptr, nullptr), SLUICE_OK);
  EXPECT_STREQ(sluice_plan_variant(&plan), "cuda.sm90");
}

TEST(Sm90CublasLt, RefusesWithAReason) {
  const auto reason = [](const std::string& text, const Device& device) {
    return library_row(text, device).reason;
  };
  const Device with = gpu::h200_with_cublaslt();
  EXPECT_EQ(reason("64x64x96:gate_up", with), "gate_up has no plain product");
  EXPECT_EQ(reason("64x64x96:down:residual", with),
            "residual: cuBLASLt rounds the product before it adds");
  EXPECT_EQ(reason("64x64x96:down", with), "");
  EXPECT_EQ(reason("64x64x96:down", h200()), "libcublasLt.so.13 and .12 were not found");
}

}  // namespace
}  // namespace sluice
