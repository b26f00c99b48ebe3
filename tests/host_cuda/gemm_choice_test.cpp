// SPDX-License-Identifier: Apache-2.0
// What the recipe of the Hopper GEMM takes, refuses and offers, and which kernel serves which of
// its steps: on any CPU.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "choice.hpp"
#include "cuda/kernel_rows.hpp"
#include "cuda/sm90/gemm/table.hpp"
#include "fake_devices.hpp"
#include "sluice/plan.hpp"
#include "sluice/sluice.h"

namespace sluice {
namespace {

using cuda::sm90::gemm::GemmKind;
using gpu::a100;
using gpu::h200;
using gpu::problem_of;
using gpu::variant_of;

// Of cuda.sm90, where decode would be chosen too.
constexpr Options kSm90{.variant = "cuda.sm90"};

std::string steps_of(const std::string& text, const Device& device) {
  return gpu::steps_of(text, device, kSm90);
}

ExplainedStep step_of(const std::string& text, const Device& device, std::string_view name,
                      const Options& options = kSm90) {
  return gpu::step_of(text, device, name, options);
}

// "" where cuda.sm90 takes the problem, else its reason.
std::string reason_of(const Problem& problem, const Device& device) {
  return gpu::reason_of("cuda.sm90", problem, device);
}

TEST(CudaSm90, IsChosenOnHopper) {
  for (const std::string types : {"bf16", "fp16"}) {
    const auto chosen = [&](const std::string& text) {
      return gpu::chosen(text + ":" + types, h200());
    };
    EXPECT_EQ(chosen("512x4096x14336:gate_up"), "cuda.sm90 gate_up=co128x224c1g16");
    // Blocks come as they lie where a tile is a multiple of a block of both: 160 rows of 32, not of
    // 64. Blocks of 24 come by copies of whole ones, three groups each.
    EXPECT_EQ(chosen("1024x4096x14336:gate_up"), "cuda.sm90 gate_up=pp128x160c2g8");
    EXPECT_EQ(chosen("1024x4096x14336:gate_up:interleaved8"), "cuda.sm90 gate_up=pp128x160c2g8");
    EXPECT_EQ(chosen("1024x4096x14336:gate_up:interleaved16"), "cuda.sm90 gate_up=pp128x160c2g8");
    EXPECT_EQ(chosen("1024x4096x14336:gate_up:interleaved32"), "cuda.sm90 gate_up=pp128x192c2g8");
    EXPECT_EQ(chosen("1024x4096x14352:gate_up:interleaved24"), "cuda.sm90 gate_up=pp128x192c2g8");
    EXPECT_EQ(chosen("512x4096x14336:down:residual"), "cuda.sm90 down=pp128x128c1g16");
    EXPECT_EQ(chosen("8192x4096x14336:gate_up_grad"), "cuda.sm90 gate_up_grad=pp128x192c2g8");
    EXPECT_EQ(chosen("8192x4096x14336:mlp_grad"),
              "cuda.sm90 gate_up_grad=pp128x192c2g8,input_grad=co128x256c2g8,"
              "weight_grad=pp128x192c2g8,weight_grad_down=pp128x192c2g8");
    EXPECT_EQ(chosen("8192x4096x14336:mlp"), "cuda.sm90 gate_up=pp128x192c2g8,down=co128x256c2g8");
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
  const auto cut = plan(problem_of("144x3584x18944:gate_up"), h200(),
                        {.variant = "cuda.sm90", .config = "gate_up=sk192x224c1g16"});
  ASSERT_TRUE(cut) << cut.error().message;
  EXPECT_EQ(cut.value().workspace_bytes,
            kWorkspaceHeaderBytes + std::size_t{2} * 132 * 192 * 224 * 4);
  const auto pairs = plan(problem_of("144x5120x25600:gate_up"), h200(),
                          {.variant = "cuda.sm90", .config = "gate_up=sw144x256c2g16"});
  ASSERT_TRUE(pairs) << pairs.error().message;
  EXPECT_EQ(pairs.value().workspace_bytes,
            kWorkspaceHeaderBytes + std::size_t{2} * 66 * 2 * 256 * 144 * 4);
  constexpr std::size_t kHidden = std::size_t{512} * 14336 * 2;
  EXPECT_EQ(bytes("512x4096x14336:mlp"), kWorkspaceHeaderBytes + kHidden);
  // Rows of h begin at a line of L2.
  EXPECT_EQ(bytes("512x4096x14328:mlp"), kWorkspaceHeaderBytes + kHidden);
  // h, dg and du; with recompute g and u lie where dg and du will.
  EXPECT_EQ(bytes("512x4096x14336:mlp_grad"), kWorkspaceHeaderBytes + 3 * kHidden);
  EXPECT_EQ(bytes("512x4096x14336:mlp_grad:recompute"), kWorkspaceHeaderBytes + 3 * kHidden);
  EXPECT_EQ(bytes("512x4096x14336:mlp_grad:save_dg_du:in_place"), kWorkspaceHeaderBytes + kHidden);
  EXPECT_EQ(bytes("512x4096x14336:mlp_grad:save_dg_du:recompute"), kWorkspaceHeaderBytes + kHidden);
}

TEST(CudaSm90, HasRoomForACopyOfXWhereItMakesOne) {
  const auto bytes = [](const std::string& text, const char* config) {
    const Options options{.variant = "cuda.sm90", .config = config};
    const std::size_t all = plan(problem_of(text), h200(), options).value().workspace_bytes;
    const std::string op = text.substr(text.find(':') + 1);
    const ExplainedStep step = step_of(text, h200(), op, options);
    EXPECT_EQ(all > 0, step.blocks.find("copied to whole lines of L2") != std::string::npos)
        << text << ": " << step.blocks;
    return all;
  };
  constexpr const char* kGateUp = "gate_up=pp128x192c2g8";
  EXPECT_EQ(bytes("1024x776x24592:gate_up", kGateUp),
            kWorkspaceHeaderBytes + std::size_t{1024} * 832 * 2);
  EXPECT_EQ(bytes("1024x24592x776:down", "down=pp128x192c2g8"),
            kWorkspaceHeaderBytes + std::size_t{1024} * 832 * 2);
  EXPECT_EQ(bytes("1024x768x24592:gate_up", kGateUp), 0U);
  EXPECT_EQ(bytes("1x776x24592:gate_up", kGateUp), 0U);
  EXPECT_EQ(bytes("0x776x24592:gate_up", kGateUp), 0U);
  // A copy takes 256 MiB at most.
  EXPECT_GT(bytes("161319x776x24592:gate_up", kGateUp), 0U);
  EXPECT_EQ(bytes("161320x776x24592:gate_up", kGateUp), 0U);
}

// Rows whose distance no tensor map takes: an odd one, none.
TEST(CudaSm90, CopiesRowsThatNoTensorMapWalks) {
  struct Asked {
    const char* text;
    Layout Layouts::*layout;
    std::int64_t cols;
    bool output;
  };
  const Asked all[] = {{"300x4096x14336:gate_up", &Layouts::x, 4096, false},
                       {"300x4096x14336:down", &Layouts::h, 14336, false},
                       {"300x4096x14336:gate_up", &Layouts::h, 14336, true},
                       {"300x4096x14336:down", &Layouts::y, 4096, true}};
  for (const auto& [text, layout, cols, output] : all) {
    for (const std::int64_t stride : {2 * cols + 2, 2 * cols + 8, std::int64_t{0}}) {
      if (output && stride == 0) continue;
      Problem p = problem_of(text);
      (p.layout.*layout).row_stride_bytes = stride;
      EXPECT_EQ(plan(p, h200())->variant_name(), std::string("cuda.sm90")) << text << stride;
      const std::string tiling = to_string(p.op) + std::string("=pp128x128c1g16");
      const Options options{.variant = "cuda.sm90", .config = tiling.c_str()};
      EXPECT_EQ(plan(p, h200(), options)->workspace_bytes,
                kWorkspaceHeaderBytes + static_cast<std::size_t>(300 * 2 * cols))
          << text << stride;
      const std::string said = explain(p, h200(), options).steps.at(0).blocks;
      EXPECT_NE(said.find(output ? "; rows of the output copied last"
                                 : "rows of the input copied to whole lines of L2 first; "),
                std::string::npos)
          << said;
    }
  }
  // Beside partial sums; one row needs none; of any size, and at what is too far for a map.
  Problem cut = problem_of("144x3584x18944:gate_up");
  const Options stream_k{.variant = "cuda.sm90", .config = "gate_up=sk192x224c1g16"};
  const std::size_t partials = plan(cut, h200(), stream_k)->workspace_bytes;
  EXPECT_GT(partials, 0U);
  cut.layout.x.row_stride_bytes = 7170;
  EXPECT_EQ(plan(cut, h200(), stream_k)->workspace_bytes, partials + std::size_t{144} * 7168);
  Problem one = problem_of("1x4096x14336:gate_up");
  one.layout.x.row_stride_bytes = 8194;
  EXPECT_EQ(plan(one, h200())->workspace_bytes, 0U);
  Problem large = problem_of("65536x4096x576:gate_up");
  large.layout.x.row_stride_bytes = 8194;
  EXPECT_EQ(plan(large, h200())->variant_name(), std::string("cuda.sm90"));
  EXPECT_GE(plan(large, h200())->workspace_bytes, std::size_t{65536} * 8192);
  for (const int m : {2, 300}) {
    Problem far = problem_of("2x4096x14336:gate_up");
    far.m = m;
    far.layout.x.row_stride_bytes = std::int64_t{1} << 40;
    EXPECT_NE(plan(far, h200())->variant_name(), std::string("cuda.simt")) << m;
    EXPECT_EQ(plan(far, h200())->workspace_bytes,
              kWorkspaceHeaderBytes + static_cast<std::size_t>(m) * 8192);
  }
  // By the decode kernel.
  for (const int m : {4, 16, 64, 160}) {
    Problem few = problem_of("4x4096x2048:gate_up");
    few.m = m;
    few.layout.x.row_stride_bytes = 8200;
    const auto made = plan(few, h200());
    EXPECT_EQ(made->variant_name(), std::string("cuda.sm90_decode")) << m;
    EXPECT_EQ(made->workspace_bytes, kWorkspaceHeaderBytes + static_cast<std::size_t>(m) * 8192);
  }
}

// Rows of a residual that words do not begin; one row for all is read as it is.
TEST(CudaSm90, CopiesAResidualThatItCannotReadByWords) {
  const auto with_stride = [](const std::string& text, std::int64_t bytes) {
    Problem p = problem_of(text);
    p.layout.residual.row_stride_bytes = bytes;
    return p;
  };
  const std::string text = "300x4096x14336:down:residual";
  constexpr std::size_t kCopyBytes = std::size_t{300} * 4096 * 2;
  for (const Device& device : {h200(), gpu::h200_with_cublaslt()}) {
    for (const auto& [stride, bytes] : {std::pair<std::int64_t, std::size_t>{8192, 0U},
                                        {8196, 0U},
                                        {8194, kWorkspaceHeaderBytes + kCopyBytes},
                                        {0, 0U}}) {
      const auto made = plan(with_stride(text, stride), device, {.config = "down=pp128x128c1g16"});
      ASSERT_TRUE(made) << made.error().message;
      EXPECT_EQ(made->workspace_bytes, bytes) << stride;
    }
  }
  const Explanation odd = explain(with_stride(text, 8194), h200());
  EXPECT_EQ(plan(with_stride(text, 8194), h200())->variant_name(), std::string("cuda.sm90"));
  ASSERT_FALSE(odd.steps.empty());
  EXPECT_EQ(odd.steps[0].blocks.rfind("rows of the residual copied to whole lines", 0), 0U)
      << odd.steps[0].blocks;
  // Behind a copy of h.
  EXPECT_EQ(plan(with_stride("1024x24592x776:down:residual", 2 * 24592 + 2), h200(),
                 {.config = "down=pp128x192c2g8"})
                ->workspace_bytes,
            kWorkspaceHeaderBytes + std::size_t{1024} * (832 + 24640) * 2);
}

TEST(CudaSm90, EveryConfigIsOfferedOnceTheChoiceFirst) {
  // At 384 tokens, and one loop order more: a row of tiles after the other.
  const std::size_t gated =
      1 +
      cuda::sm90::gemm::ranked({384, 2 * 14336, 4096, GemmKind::kGateUp, gpu::kH200SmCount}, {});
  const std::size_t plain =
      1 + cuda::sm90::gemm::ranked({384, 4096, 14336, GemmKind::kDown, gpu::kH200SmCount}, {});
  const std::size_t grads = cuda::sm90::gemm::tilings(GemmKind::kGateUpGrad).size();
  const std::size_t input_grads = cuda::sm90::gemm::tilings(GemmKind::kInputGrad).size();
  const std::size_t weight_grads = cuda::sm90::gemm::tilings(GemmKind::kWeightGrad).size();
  for (const auto& [op, count] : {std::pair<std::string, std::size_t>{"gate_up", gated},
                                  {"down", plain},
                                  {"gate_up_grad", grads},
                                  {"input_grad", input_grads},
                                  {"weight_grad", weight_grads},
                                  {"mlp_grad", grads + input_grads + weight_grads - 2},
                                  {"mlp", gated + plain - 1}}) {
    const Problem problem = problem_of("384x4096x14336:" + op);
    const std::vector<std::string> names = config_names("cuda.sm90", problem, h200());
    EXPECT_EQ(names.size(), count) << op;
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), count) << op;
    EXPECT_EQ(names.front(), plan(problem, h200()).value().config_name());
    for (const std::string& name : names) {
      Options options;
      options.variant = "cuda.sm90";
      options.config = name.c_str();
      const auto forced = plan(problem, h200(), options);
      ASSERT_TRUE(forced) << name;
      EXPECT_EQ(forced->config_name(), name);
    }
  }
}

// Gate and up that no tensor map leads between go to cuda.sm80_gemm; what that one refuses, rows
// that span more than 32 GiB, to cuda.simt. Here no launch succeeds.
TEST(CudaSm90, WeightsOutOfReachAreAnotherKernels) {
  Problem problem = problem_of("300x512x1024:gate_up:save");
  problem.layout.x.row_stride_bytes = std::int64_t{1} << 32;
  const Device device = h200();
  std::array<KernelConfig, 1> config;
  ASSERT_GT(cuda::kSm90Gemm.configs(problem, device, config), 0U);
  const auto at = [](std::uintptr_t address) { return reinterpret_cast<void*>(address); };
  const auto message = [&](std::uintptr_t w_gate, std::uintptr_t w_up) {
    Operands o;
    o.x = at(1U << 20), o.h = at(2U << 20), o.g = at(4U << 20), o.u = at(6U << 20);
    o.w_gate = at(w_gate), o.w_up = at(w_up);
    const Status status = cuda::kSm90Gemm.launch({.kernel = &cuda::kSm90Gemm,
                                                  .problem = problem,
                                                  .operands = o,
                                                  .device = device,
                                                  .config = config[0]},
                                                 nullptr);
    return std::string(status ? "ok" : status.error().message);
  };
  constexpr std::uintptr_t kHere = std::uintptr_t{1} << 30;
  constexpr std::uintptr_t kFar = std::uintptr_t{1} << 40;
  for (const std::uintptr_t w_up : {kHere, kHere + kFar, kHere + 3 * kFar}) {
    for (const std::string& text : {message(kHere, w_up), message(w_up, kHere)}) {
      EXPECT_EQ(text.find("apart"), std::string::npos) << text;
      EXPECT_NE(text.find("cudaLaunchKernelExC"), std::string::npos) << text;
    }
  }
  const std::string near = message(kHere, kHere + kFar - 4096);
  EXPECT_EQ(near.find("apart"), std::string::npos) << near;
  problem.layout.x = problem_of("300x512x1024").layout.x;
  const std::string served = message(kHere, kHere + kFar);
  EXPECT_EQ(served.find("apart"), std::string::npos) << served;
}

TEST(CudaSm90, SaysWhyItRefuses) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"64x64x96:mlp_grad:interleaved8", "g: rows or columns in blocks"},
      {"64x64x96:mlp_grad:recompute:save_dg_du:interleaved8", "g: rows or columns in blocks"},
      {"64x64x96:mlp_grad:bf16/bf16/bf16/fp16", "dw_gate: is fp16, wanted fp32 or bf16"},
      {"64x64x96:mlp_grad:broadcast", "dy: row_stride is 0 bytes"},
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
      {"64x64x96:gate_up:pad=3", "w_gate: row_stride of 134 bytes is no multiple of 16"},
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

// cuda.sm90 launches every norm before gate_up, whose tiling is that without a norm.
TEST(CudaSm90, LaunchesTheNormFirst) {
  for (const std::string norm : {":norm", ":add_norm", ":add_norm:residual_norm_input"}) {
    EXPECT_EQ(steps_of("512x4096x14336" + norm, h200()),
              "norm:cuda.norm gate_up:cuda.sm90_gemm down:cuda.sm90_gemm");
    EXPECT_EQ(gpu::chosen("512x4096x14336" + norm, h200()),
              "cuda.sm90 norm=row," + plan(problem_of("512x4096x14336"), h200())->config_name());
    EXPECT_EQ(step_of("512x4096x14336" + norm, h200(), "norm").passed_over, "");
  }
}

// dw_down is computed as dw_gate and dw_up are, unless its config is forced.
TEST(CudaSm90, DwDownFollowsTheOtherWeightGradients) {
  const std::string text = "2048x4096x14336:mlp_grad";
  const auto with = [&](const char* config, const Device& device) {
    return gpu::chosen(text, device, {.variant = "cuda.sm90", .config = config});
  };
  const std::string rest = "cuda.sm90 gate_up_grad=pp128x192c2g8,input_grad=co128x256c2g8,";
  EXPECT_EQ(with(nullptr, h200()),
            rest + "weight_grad=pp128x192c2g8,weight_grad_down=pp128x192c2g8");
  EXPECT_EQ(with("weight_grad=pp128x128c2g8", h200()),
            rest + "weight_grad=pp128x128c2g8,weight_grad_down=pp128x128c2g8");
  EXPECT_EQ(with("weight_grad=pp128x128c2g8,weight_grad_down=pp128x192c2g8", h200()),
            rest + "weight_grad=pp128x128c2g8,weight_grad_down=pp128x192c2g8");
  EXPECT_EQ(with("weight_grad=lt2", gpu::h200_with_cublaslt()),
            rest + "weight_grad=lt2,weight_grad_down=lt2");
  EXPECT_NE(with("weight_grad=lt2", h200()).find("config: got \"weight_grad=lt2\""),
            std::string::npos);
}

constexpr const char* kOwn = "cuda.sm90_gemm";
constexpr const char* kLibrary = "cuda.cublaslt";

std::string down_kernel(const std::string& text, const Device& device) {
  return step_of(text, device, "down").kernel;
}

// Measured orders, docs/kernels/cublaslt.md. What plan() chooses follows from the description of
// the device alone: no library is looked for.
TEST(Sm90CublasLt, IsTheChoiceWhereItWasMeasuredToBeFaster) {
  const Device with = gpu::h200_with_cublaslt();
  for (const char* text : {"192x4096x14336:down", "512x4096x14336:down:bias_down", "192x4096x14336",
                           "384x4096x14336", "2048x4096x14336", "512x8192x28672:fp16"}) {
    EXPECT_EQ(variant_of(text, with), "cuda.sm90") << text;
    EXPECT_EQ(down_kernel(text, with), kLibrary) << text;
    EXPECT_EQ(step_of(text, with, "down").passed_over, "") << text;
    EXPECT_EQ(down_kernel(text, h200()), kOwn) << text;
    EXPECT_EQ(step_of(text, h200(), "down").passed_over,
              "cuda.cublaslt: libcublasLt.so.13 and .12 were not found");
  }
  for (const char* text : {"8192x8192x28672:down", "4096x16384x53248"}) {
    EXPECT_EQ(down_kernel(text, with), kOwn) << text;
    const std::string why = step_of(text, with, "down").passed_over;
    EXPECT_NE(why.find("cuda.cublaslt: down of "), std::string::npos) << why;
    EXPECT_NE(why.find("TFLOP: above 3.7 this library's own is faster"), std::string::npos) << why;
  }
  EXPECT_EQ(gpu::chosen("128x4096x14336", with, kSm90),
            "cuda.sm90 gate_up=co128x224c1g16,down=lt0");
  // A residual is a launch more, which counts beside short products.
  EXPECT_EQ(down_kernel("305x2944x25344:residual", with), kLibrary);
  EXPECT_EQ(down_kernel("1045x11776x1920", with), kLibrary);
  EXPECT_EQ(down_kernel("1045x11776x1920:residual", with), kOwn);
  EXPECT_EQ(down_kernel("305x2944x25344:residual", h200()), kOwn);
  EXPECT_EQ(steps_of("128x4096x14336:gate_up", with), "gate_up:cuda.sm90_gemm");
  EXPECT_EQ(variant_of("64x4096x14336", with), "cuda.sm90_decode");
}

TEST(Sm90CublasLt, ComputesGradientsWhereTheyAreFewTokensOrNarrow) {
  const Device with = gpu::h200_with_cublaslt();
  const auto steps = [](const std::string& kernel) {
    return "gate_up_grad:cuda.sm90_gemm input_grad:" + kernel + " weight_grad:" + kernel +
           " weight_grad_down:" + kernel;
  };
  for (const char* text :
       {"768x4096x14336:mlp_grad", "512x16384x53248:mlp_grad:concat", "8192x2048x8192:mlp_grad"}) {
    EXPECT_EQ(steps_of(text, with), steps(kLibrary)) << text;
    EXPECT_EQ(steps_of(text, h200()), steps(kOwn)) << text;
  }
  for (const char* text :
       {"1024x4096x14336:mlp_grad", "8192x4096x14336:mlp_grad", "8192x2056x8192:mlp_grad"}) {
    EXPECT_EQ(steps_of(text, with), steps(kOwn)) << text;
    EXPECT_EQ(
        step_of(text, with, "input_grad").passed_over,
        "cuda.cublaslt: mlp_grad of m above 768, d above 2048: this library's own is as fast");
  }
  EXPECT_EQ(steps_of("512x4096x14336:input_grad:concat", with), "input_grad:cuda.cublaslt");
  EXPECT_EQ(steps_of("1024x4096x14336:weight_grad", with), "weight_grad:cuda.sm90_gemm");
}

// What is expected to be slower is offered after what is expected to be faster, and can be forced.
TEST(Sm90CublasLt, AndOwnTilingsAreOfferedTogetherThePreferredFirst) {
  const Device with = gpu::h200_with_cublaslt();
  const auto downs = [&](const std::string& text) {
    std::string kinds;  // 'l' or 'o' each
    for (const std::string& name : config_names("cuda.sm90", problem_of(text), with)) {
      kinds += name.find("down=lt") != std::string::npos ? 'l' : 'o';
    }
    return kinds;
  };
  const std::string few = downs("512x4096x14336:down");
  EXPECT_EQ(few.substr(0, 9), "llllllllo");
  EXPECT_EQ(few.find('l', 8), std::string::npos) << few;
  const std::string many = downs("8192x8192x28672:down");
  EXPECT_EQ(many.substr(0, 1), "o");
  EXPECT_EQ(many.find('l') + 8, many.size()) << many;
  EXPECT_EQ(gpu::chosen("8192x8192x28672:down", with, {.config = "down=lt3"}),
            "cuda.sm90 down=lt3");
  EXPECT_EQ(gpu::chosen("512x4096x14336:down", with, {.config = "down=pp128x128c1g16"}),
            "cuda.sm90 down=pp128x128c1g16");
}

TEST(Sm90CublasLt, IsTheChoiceOfLongProducts) {
  const Device h100 = gpu::h100_with_cublaslt();
  for (const Device& device : {h100, gpu::h200_with_cublaslt()}) {
    for (const char* text : {"4096x4096x14336:down", "4096x8192x28672", "2048x16384x53248"}) {
      EXPECT_EQ(down_kernel(text, device), kLibrary) << text;
    }
    EXPECT_EQ(down_kernel("8192x8192x28672", device), kOwn);
  }
  const auto own = [](const char* text, Device device) {
    device.cublaslt_version = 0;
    return gpu::chosen(text, device);
  };
  for (const char* text :
       {"4096x8192x28672:down", "16384x4096x14336:down", "4096x4096x14336:down"}) {
    EXPECT_EQ(own(text, h100), "cuda.sm90 down=co128x256c2g8") << text;
    EXPECT_EQ(own(text, h200()), "cuda.sm90 down=co128x256c2g8") << text;
  }
}

// gate_up with sums in fp32, by the estimates of both: too many tiles for split K, too few for
// waves.
TEST(Sm90CublasLt, ComputesGateUpOfFewTiles) {
  const Device h100 = gpu::h100_with_cublaslt();
  for (const char* text :
       {"161x13128x3688:gate_up:concat", "836x8080x5384:gate_up:save:bias",
        "468x9376x848:gate_up:fp16:interleaved8+up_first", "300x16384x53248:gate_up"}) {
    EXPECT_EQ(steps_of(text, h100), "gate_up:cuda.cublaslt") << text;
    EXPECT_EQ(gpu::chosen(text, h100), "cuda.sm90 gate_up=lt0") << text;
  }
  EXPECT_EQ(steps_of("158x13128x3688:norm", gpu::h200_with_cublaslt()),
            "norm:cuda.norm gate_up:cuda.cublaslt down:cuda.cublaslt");
  for (const char* text : {"297x1408x7552:gate_up", "512x4096x14336:gate_up",
                           "71x1976x10448:gate_up", "73x4864x736:gate_up:save:bias"}) {
    const ExplainedStep step = step_of(text, h100, "gate_up");
    EXPECT_EQ(step.kernel, kOwn) << text;
    EXPECT_NE(step.passed_over.find("cuda.cublaslt: gate_up: estimated at "), std::string::npos)
        << step.passed_over;
  }
  const auto refusal = [&](const std::string& text) {
    const ExplainedStep step = step_of(text, h100, "gate_up");
    EXPECT_EQ(step.kernel, kOwn) << text;
    return step.passed_over;
  };
  EXPECT_EQ(refusal("8192x1024x8208:gate_up"),
            "cuda.cublaslt: its sums in fp32 take 513 MiB, wanted at most 256");
}

// An own down starts while an own gate_up ends: where both are short, both are own in mlp, and
// neither would be alone.
TEST(Sm90CublasLt, YieldsToPairsOfShortProducts) {
  for (const Device& with : {gpu::h200_with_cublaslt(), gpu::h100_with_cublaslt()}) {
    for (const char* text : {"97x2136x1440", "102x1912x512:gelu_tanh", "120x1384x608:interleaved1",
                             "117x1408x1920", "100x1112x688:concat"}) {
      EXPECT_EQ(steps_of(text, with), "gate_up:cuda.sm90_gemm down:cuda.sm90_gemm") << text;
    }
    EXPECT_EQ(down_kernel("97x2136x1440:down", with), kLibrary);
    EXPECT_EQ(down_kernel("249x3592x1104", with), kLibrary) << "behind a gate_up by cuBLASLt";
  }
}

TEST(Sm90CublasLt, IsTheChoiceBehindANormWhereItIsWithout) {
  const Device with = gpu::h200_with_cublaslt();
  for (const char* text : {"128x4096x14336:norm", "192x4096x14336:add_norm",
                           "2048x4096x14336:add_norm:bias_down", "512x8192x28672:fp16:norm"}) {
    EXPECT_EQ(steps_of(text, with), "norm:cuda.norm gate_up:cuda.sm90_gemm down:cuda.cublaslt");
    EXPECT_EQ(steps_of(text, h200()), "norm:cuda.norm gate_up:cuda.sm90_gemm down:cuda.sm90_gemm");
  }
  for (const char* text :
       {"192x4096x14336:norm:residual", "192x4096x14336:residual_norm_input:norm"}) {
    EXPECT_EQ(steps_of(text, with), "norm:cuda.norm gate_up:cuda.sm90_gemm down:cuda.cublaslt");
  }
  EXPECT_EQ(steps_of("8192x8192x28672:add_norm", with),
            "norm:cuda.norm gate_up:cuda.sm90_gemm down:cuda.sm90_gemm");
  EXPECT_EQ(step_of("8192x8192x28672:add_norm", with, "down").passed_over,
            step_of("8192x8192x28672", with, "down").passed_over);
}

// Own kernels take what cuBLASLt refuses in one step alone.
TEST(Sm90CublasLt, RefusesAStepWithAReason) {
  const Device with = gpu::h200_with_cublaslt();
  const auto why = [&](const std::string& text, const char* step) {
    const ExplainedStep found = step_of(text, with, step);
    EXPECT_EQ(found.kernel, kOwn) << text;
    return found.passed_over;
  };
  EXPECT_EQ(why("96x64x96:mlp_grad:bf16/bf16/bf16/bf16:accumulate", "weight_grad"),
            "cuda.cublaslt: dw_gate: adds to fp32 alone, cuBLASLt rounds the product before it "
            "adds");
  EXPECT_EQ(step_of("96x64x96:mlp_grad:bf16/bf16/bf16/bf16:accumulate", with, "input_grad").kernel,
            kLibrary);
  Problem repeated = problem_of("200x64x96:down:residual");
  repeated.layout.residual.row_stride_bytes = 0;
  EXPECT_EQ(explain(repeated, with).steps.at(0).passed_over,
            "cuda.cublaslt: residual: rows are 0 bytes apart, wanted a multiple of 16 not below "
            "their width");
  EXPECT_EQ(why("16384x4104x8:down:residual", "down"),
            "cuda.cublaslt: its sums in fp32 take 256 MiB, wanted at most 256");
  EXPECT_EQ(why("96x64x96:mlp_grad:recompute:interleaved1", "input_grad"),
            "cuda.cublaslt: w_gate: rows have several strides");
  const std::string forced = gpu::chosen("96x64x96:mlp_grad:recompute:interleaved1", with,
                                         {.config = "weight_grad_down=lt0"});
  EXPECT_NE(forced.find(",weight_grad=pp"), std::string::npos) << forced;
  EXPECT_NE(forced.find(",weight_grad_down=lt0"), std::string::npos) << forced;
  Problem blocks = problem_of("96x64x96:mlp_grad");
  blocks.layout.dw_gate_up = interleaved_rows(8, 64, blocks.dw_dtype);
  for (const ExplainedStep& step : explain(blocks, with).steps) {
    // dw_down is computed as the others are.
    const bool weight = step.name.rfind("weight_grad", 0) == 0;
    EXPECT_EQ(step.kernel, weight || step.name == "gate_up_grad" ? kOwn : kLibrary) << step.name;
    if (step.name == "weight_grad") {
      EXPECT_EQ(step.passed_over, "cuda.cublaslt: dw_gate: rows have several strides");
    }
  }
}

TEST(Sm90CublasLt, IsFoundByTheDeviceOfTheCInterfaceToo) {
  sluice_problem problem;
  ASSERT_EQ(sluice_problem_init(&problem, sizeof(problem), nullptr), SLUICE_OK);
  problem.m = 192;
  problem.d = 4096;
  problem.h = 14336;
  sluice_device device{};
  device.struct_size = sizeof(device);
  device.backend = 1;  // CUDA
  device.arch = static_cast<int32_t>(Arch::kHopper);
  device.compute_capability = 90;
  device.sm_count = gpu::kH200SmCount;
  device.smem_per_block_bytes = h200().smem_per_block_bytes;
  const auto by_library = [&] {
    sluice_plan plan;
    EXPECT_EQ(sluice_plan_init(&plan, &problem, &device, nullptr, nullptr), SLUICE_OK);
    EXPECT_STREQ(sluice_plan_variant(&plan), "cuda.sm90");
    return std::string(sluice_plan_config(&plan)).find("down=lt0") != std::string::npos;
  };
  EXPECT_FALSE(by_library());
  device.cublaslt_version = 130100;
  EXPECT_TRUE(by_library());
}

}  // namespace
}  // namespace sluice
