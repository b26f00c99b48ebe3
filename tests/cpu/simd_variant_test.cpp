// SPDX-License-Identifier: Apache-2.0
// What cpu.simd takes, refuses and offers: reasons, configs, choice by target.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cpu/cpuid.hpp"
#include "sluice/sluice.hpp"
#include "targets.hpp"

namespace sluice::test {
namespace {

std::string reason(const Problem& problem) {
  for (const Refusal& r : explain(problem, cpu_device()).variants) {
    if (r.variant == "cpu.simd") return r.reason;
  }
  return "no such variant";
}

// How the one step of cpu.simd cuts the problem.
std::string blocks_of(const Problem& problem, const Device& device) {
  const auto steps = explain(problem, device).steps;
  return steps.size() == 1 ? steps.front().blocks : std::to_string(steps.size()) + " steps";
}

Problem typed(Op op, DType x, DType w, DType y) {
  Problem p{.op = op, .m = 4, .d = 8, .h = 8};
  p.x_dtype = x;
  p.w_dtype = w;
  p.y_dtype = y;
  return p;
}

TEST(SimdVariant, TakesDocumentedTypes) {
  constexpr DType kB = DType::kBF16;
  constexpr DType kH = DType::kF16;
  constexpr DType kS = DType::kF32;
  for (const Op o : {Op::kGateUp, Op::kDown, Op::kMlp, Op::kGateMul, Op::kGateMulGrad,
                     Op::kGateUpGrad, Op::kMlpGrad}) {
    for (const DType x : {kB, kH, kS}) {
      EXPECT_EQ(reason(typed(o, x, x, x)), "") << to_string(o);
      EXPECT_EQ(reason(typed(o, x, x, kS)), "") << to_string(o);
    }
    EXPECT_EQ(reason(typed(o, kS, kB, kS)), "") << to_string(o);
    EXPECT_EQ(reason(typed(o, kS, kH, kS)), "") << to_string(o);
  }
}

// The norm has one type but for its weights; the operators that only steps are have no engine.
TEST(SimdVariant, TakesTheNormAndLeavesBackwardStepsToTheReference) {
  for (const DType x : {DType::kBF16, DType::kF16, DType::kF32}) {
    Problem p = typed(Op::kNorm, x, x, x);
    p.norm.enabled = true;
    EXPECT_EQ(reason(p), "") << to_string(x);
    for (const Op op : {Op::kInputGrad, Op::kWeightGrad, Op::kColumnSum}) {
      EXPECT_EQ(reason(typed(op, x, x, x)), std::string("has no ") + to_string(op));
      EXPECT_STREQ(plan(typed(op, x, x, x), cpu_device())->variant_name(), "cpu.reference");
    }
  }
}

TEST(SimdVariant, TakesWeightsInBlocksForwardOnly) {
  for (const DType w : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
    for (const DType x : {DType::kBF16, DType::kF16, DType::kF32}) {
      for (const Op op : {Op::kGateUp, Op::kDown, Op::kMlp}) {
        Problem p = typed(op, x, w, x);
        p.d = p.h = 64;
        EXPECT_EQ(reason(p), "") << to_string(op);
      }
      for (const Op op : {Op::kGateUpGrad, Op::kMlpGrad}) {
        Problem p = typed(op, x, w, x);
        p.d = p.h = 64;
        EXPECT_EQ(reason(p), std::string(op == Op::kMlpGrad ? "w_gate" : "w_down") +
                                 " is in blocks of " + to_string(w) +
                                 "; gate_up, down and mlp alone take blocks");
        EXPECT_STREQ(plan(p, cpu_device())->variant_name(), "cpu.reference");
      }
    }
  }
}

TEST(SimdVariant, RefusesOtherTypesWithAReason) {
  EXPECT_EQ(reason(typed(Op::kMlp, DType::kF64, DType::kF64, DType::kF64)),
            "x is fp64, the engine computes in fp32");
  EXPECT_EQ(reason(typed(Op::kMlp, DType::kBF16, DType::kF16, DType::kBF16)),
            "weights are fp16 with x of bf16; wanted bf16, or x of fp32");
  EXPECT_EQ(reason(typed(Op::kDown, DType::kBF16, DType::kBF16, DType::kF16)),
            "y is fp16 with x of bf16; wanted bf16 or fp32");
  EXPECT_EQ(reason(typed(Op::kMlpGrad, DType::kF32, DType::kF32, DType::kBF16)),
            "dy is bf16 with x of fp32; wanted fp32 or fp32");
  Problem grad = typed(Op::kMlpGrad, DType::kF32, DType::kF32, DType::kF32);
  grad.dw_dtype = DType::kF64;
  EXPECT_EQ(reason(grad), "dw_gate is fp64, the engine computes in fp32");
  grad.dw_dtype = DType::kF32;
  grad.save_dg_du = true;
  EXPECT_EQ(reason(grad), "");
  grad.layout.dg_du = interleaved_cols(1, grad.h, DType::kF32);
  EXPECT_EQ(reason(grad), "dg has columns in blocks; the products behind it read whole rows");
  // What an operator does not touch may be of any type.
  EXPECT_EQ(reason(typed(Op::kGateMul, DType::kBF16, DType::kF64, DType::kF64)), "");
}

TEST(SimdVariant, RefusedProblemsGoToTheReference) {
  const auto made = plan(typed(Op::kMlp, DType::kF64, DType::kF64, DType::kF64), cpu_device());
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_STREQ(made->variant_name(), "cpu.reference");
}

TEST(SimdVariant, OffersTheTargetsOfTheDeviceBestFirst) {
  const Problem p = typed(Op::kMlp, DType::kBF16, DType::kBF16, DType::kBF16);
  Device device;
  device.simd_targets = 0b111;
  EXPECT_EQ(config_names("cpu.simd", p, device),
            (std::vector<std::string>{"mlp=avx512", "mlp=avx2", "mlp=emulated"}));
  device.simd_targets = 0b011;
  EXPECT_EQ(config_names("cpu.simd", p, device),
            (std::vector<std::string>{"mlp=avx2", "mlp=emulated"}));
  device.simd_targets = 0b001;
  EXPECT_EQ(plan(p, device)->config_name(), "mlp=emulated");
}

TEST(SimdVariant, OffersProductsOfBf16WhereTheyAre) {
  Device device;
  device.simd_targets = 0b1111;
  constexpr DType kB = DType::kBF16;
  constexpr DType kS = DType::kF32;
  for (const Op op : {Op::kGateUp, Op::kDown, Op::kMlp}) {
    EXPECT_EQ(plan(typed(op, kB, kB, kB), device)->config_name(), config_of(op, "avx512_bf16"));
    EXPECT_EQ(plan(typed(op, kS, kB, kS), device)->config_name(), config_of(op, "avx512"));
  }
  for (const Op op : {Op::kGateUpGrad, Op::kMlpGrad}) {
    EXPECT_EQ(plan(typed(op, kB, kB, kB), device)->config_name(), config_of(op, "avx512_bf16"));
    EXPECT_EQ(plan(typed(op, kB, kB, kS), device)->config_name(), config_of(op, "avx512"));
  }
  EXPECT_EQ(plan(typed(Op::kGateMul, kB, kB, kB), device)->config_name(), "gate_mul=avx512");
  for (const DType blocks : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
    Problem p = typed(Op::kMlp, kB, blocks, kB);
    p.d = p.h = 64;
    for (const std::int64_t m : {1, 17}) {
      p.m = m;
      EXPECT_EQ(plan(p, device)->config_name(),
                blocks == DType::kQ4_1 ? "mlp=avx512" : "mlp=avx512_bf16");
    }
  }
}

// Where they are slow, only one token of a forward operator by weights in bf16 has them first; all
// may be forced.
TEST(SimdVariant, PutsSlowProductsOfBf16Second) {
  Device device;
  device.simd_targets = 0b1111;
  device.slow_bf16_products = true;
  constexpr DType kB = DType::kBF16;
  const auto configs_of = [](Op op, bool bf16_first) {
    std::vector<std::string> out = {config_of(op, "avx512"), config_of(op, "avx512_bf16"),
                                    config_of(op, "avx2"), config_of(op, "emulated")};
    if (bf16_first) std::swap(out[0], out[1]);
    return out;
  };
  for (const DType weights : {kB, DType::kQ8_0, DType::kQ4_0}) {
    for (const Op op : {Op::kGateUp, Op::kDown, Op::kMlp}) {
      Problem p = typed(op, kB, weights, kB);
      p.d = p.h = 64;
      for (const std::int64_t m : {1, 2, 16, 64}) {
        p.m = m;
        const bool waits_for_memory = m == 1 && weights == kB;
        EXPECT_EQ(config_names("cpu.simd", p, device), configs_of(op, waits_for_memory)) << m;
      }
    }
  }
  for (const std::int64_t m : {1, 64}) {
    Problem p = typed(Op::kMlpGrad, kB, kB, kB);
    p.m = m;
    EXPECT_EQ(config_names("cpu.simd", p, device), configs_of(p.op, false)) << m;
  }
  const Problem p = typed(Op::kMlp, kB, kB, kB);
  const std::string why = "bf16 is widened: this CPU multiplies it slower than fp32\n";
  EXPECT_EQ(blocks_of(p, device).substr(0, why.size()), why);
  Problem fixed = typed(Op::kMlp, kB, DType::kQ8_0, kB);  // nothing is widened
  fixed.m = 1;
  fixed.d = fixed.h = 64;
  EXPECT_EQ(blocks_of(fixed, device).find("widened"), std::string::npos);
  Options options;
  options.variant = "cpu.simd";
  options.config = "mlp=avx512_bf16";
  const auto forced = plan(p, device, options);
  ASSERT_TRUE(forced) << forced.error().message;
  EXPECT_EQ(forced->config_name(), "mlp=avx512_bf16");
  // A CPU without them has nothing to put second or to say.
  device.simd_targets = 0b0111;
  EXPECT_EQ(config_names("cpu.simd", p, device).front(), "mlp=avx512");
  EXPECT_EQ(blocks_of(p, device).find("widened: this CPU"), std::string::npos);
}

// Family and model as cpuid packs them into a signature.
TEST(SimdVariant, KnowsSlowProductsOfBf16ByVendorAndFamily) {
  constexpr std::uint32_t kEmeraldRapids = 0xC06F2;
  constexpr std::uint32_t kZen4 = 0xA10F11;
  constexpr std::uint32_t kZen5 = 0xB00F21;
  EXPECT_EQ(cpu::family_of(kEmeraldRapids), 6U);
  EXPECT_EQ(cpu::family_of(kZen4), 0x19U);
  EXPECT_EQ(cpu::family_of(kZen5), 0x1AU);
  EXPECT_TRUE(cpu::has_slow_bf16_products("GenuineIntel", kEmeraldRapids));
  EXPECT_FALSE(cpu::has_slow_bf16_products("AuthenticAMD", kZen4));
  EXPECT_FALSE(cpu::has_slow_bf16_products("AuthenticAMD", kZen5));
  EXPECT_FALSE(cpu::has_slow_bf16_products("", 0));
}

// The cache model says what it chose: paths, tasks that cover the problem, bytes.
TEST(SimdVariant, ExplainsItsBlocks) {
  Device device;
  device.simd_targets = 0b111;
  device.threads = 2;
  device.l2_bytes = std::int64_t{1} << 20;
  const auto blocks = [&](Op op, std::int64_t m) {
    Problem p{.op = op, .m = m, .d = 2048, .h = 8192};
    return blocks_of(p, device);
  };
  EXPECT_EQ(blocks(Op::kMlp, 4),
            "dot products, as M <= 16: every weight is read once, in place\n"
            "gate_up: 32 tasks of 256 rows of each matrix, 1024 KiB; tokens in fp32\n"
            "down: 32 tasks of 64 rows, 1024 KiB; tokens in fp32");
  EXPECT_EQ(blocks(Op::kMlp, 1),
            "dot products, as M <= 16: every weight is read once, in place\n"
            "gate_up: 32 tasks of 256 rows of each matrix, 1024 KiB; tokens in fp32\n"
            "down: 32 tasks of 64 rows, 1024 KiB; tokens in bf16");
  const Problem small{.op = Op::kMlp, .m = 1, .d = 576, .h = 1536};
  EXPECT_EQ(blocks_of(small, device),
            "dot products, as M <= 16: every weight is read once, in place\n"
            "gate_up: 6 tasks of 256 rows of each matrix, 288 KiB; tokens in fp32\n"
            "down: 6 tasks of 96 rows, 288 KiB; tokens in fp32");
  EXPECT_EQ(
      blocks(Op::kDown, 600),
      "GEMM: tiles of 12 weight rows by 32 tokens, or 24 by 16, in registers\n"
      "L1: strips of 12 weight rows by a K block, widened to fp32\n"
      "L2: C, a strip and a panel of tokens within 896 of 1024 KiB\n"
      "down: 22 x 1 tasks of 96 rows by 224 tokens, K blocks of 256: strip 12, C 90, panel 32 "
      "KiB\n"
      "3 passes of 224 tokens");
  Problem in_place{.op = Op::kMlp, .m = 16, .d = 576, .h = 1536};
  in_place.x_dtype = in_place.w_dtype = in_place.y_dtype = DType::kF32;
  EXPECT_EQ(blocks_of(in_place, device),
            "GEMM: tiles of 12 weight rows by 16 tokens in registers\n"
            "L2: weights as they lie, pieces of 2048 columns, and the tokens' pieces, 128 KiB\n"
            "gate_up: 32 tasks of 48 rows of each matrix\n"
            "down: 12 tasks of 48 rows");
  EXPECT_NE(blocks(Op::kMlpGrad, 64).find("dw_down: "), std::string::npos);
  EXPECT_EQ(blocks(Op::kGateMul, 64), "chunks of 256 columns, which stay in L1");
  EXPECT_EQ(blocks(Op::kMlp, 0), "") << "nothing to cut";
  Problem norm{.op = Op::kNorm, .m = 64, .d = 2048};
  norm.norm.enabled = true;
  EXPECT_EQ(blocks_of(norm, device), "a task a row: 64 rows, twice over each");
}

TEST(SimdVariant, ForcingATargetTheDeviceLacksIsRefused) {
  const Problem p = typed(Op::kMlp, DType::kBF16, DType::kBF16, DType::kBF16);
  Device device;
  device.simd_targets = 0b001;
  Options options;
  options.variant = "cpu.simd";
  options.config = "mlp=avx512";
  const auto made = plan(p, device, options);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
}

TEST(SimdVariant, AThisCpuHasAtLeastTheEmulatedTarget) {
  EXPECT_FALSE(words().empty());
  EXPECT_EQ(words().front(), "emulated");
}

}  // namespace
}  // namespace sluice::test
