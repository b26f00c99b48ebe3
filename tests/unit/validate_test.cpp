// SPDX-License-Identifier: Apache-2.0
// validate(): every rule has a problem that breaks it and only it, and the message it gets.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "expect_error.hpp"
#include "sluice/operands.hpp"
#include "sluice/plan.hpp"

namespace sluice {
namespace {

using test::refuses;
using test::succeeds;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

Problem problem_of(Op op) {
  Problem p;
  p.op = op;
  p.m = 4;
  p.d = 6;
  p.h = 10;
  p.norm.enabled = op == Op::kNorm;
  return p;
}

struct Wrong {
  std::string message;
  std::function<void(Problem&)> spoil;
  Op op = Op::kMlp;
};

void expect_all(const std::vector<Wrong>& cases) {
  for (const Wrong& wrong : cases) {
    Problem p = problem_of(wrong.op);
    ASSERT_TRUE(succeeds(validate(p))) << to_string(wrong.op);
    wrong.spoil(p);
    EXPECT_TRUE(refuses(validate(p), wrong.message));
  }
}

TEST(Validate, AcceptsEveryOperatorOfEveryType) {
  for (int op = 0; op < kOpCount; ++op) {
    for (int dtype = 0; dtype < kFloatDTypeCount; ++dtype) {
      Problem p = problem_of(static_cast<Op>(op));
      p.x_dtype = p.w_dtype = p.y_dtype = p.dw_dtype = static_cast<DType>(dtype);
      EXPECT_TRUE(succeeds(validate(p))) << to_string(p);
      p.m = 0;
      EXPECT_TRUE(succeeds(validate(p))) << to_string(p);
    }
  }
}

TEST(Validate, AcceptsWeightsInBlocks) {
  for (int op = 0; op < kOpCount; ++op) {
    for (int dtype = kFloatDTypeCount; dtype < kDTypeCount; ++dtype) {
      Problem p = problem_of(static_cast<Op>(op));
      p.w_dtype = static_cast<DType>(dtype);
      p.d = 64;
      p.h = 96;
      EXPECT_TRUE(succeeds(validate(p))) << to_string(p);
      p.layout.w_gate_up = interleaved_rows(2, p.d, p.w_dtype);
      EXPECT_TRUE(succeeds(validate(p))) << to_string(p);
    }
  }
  Problem down = problem_of(Op::kDown);  // reads no weight with D columns
  down.w_dtype = DType::kQ8_0;
  down.d = 5;
  down.h = 32;
  EXPECT_TRUE(succeeds(validate(down)));
}

TEST(Validate, Blocks) {
  const auto q4 = [](Problem& p) { p.w_dtype = DType::kQ4_0, p.d = 64, p.h = 96; };
  expect_all({
      {"x_dtype: got q8_0, wanted bf16, fp16, fp32 or fp64: only weights have blocks",
       [](Problem& p) { p.x_dtype = DType::kQ8_0; }},
      {"y_dtype: got q4_1, wanted", [](Problem& p) { p.y_dtype = DType::kQ4_1; }},
      {"dw_dtype: got q4_0, wanted", [](Problem& p) { p.dw_dtype = DType::kQ4_0; }},
      {"d: got 40, wanted a multiple of 32: w_gate is in blocks of q4_0",
       [=](Problem& p) { q4(p), p.d = 40; }},
      {"h: got 33, wanted a multiple of 32: w_down is in blocks of q4_0",
       [=](Problem& p) { q4(p), p.h = 33; }},
      {"w_gate: row_stride is 34 bytes, wanted at least 36",  // two blocks of 18 bytes
       [=](Problem& p) { q4(p), p.layout.w_gate_up.row_stride_bytes = 34; }},
      {"w_down: row_stride is 55 bytes, wanted a multiple of the scale's 2",
       [=](Problem& p) { q4(p), p.layout.w_down.row_stride_bytes = 55; }},
  });
}

TEST(Validate, Dims) {
  expect_all({
      {"m: got -1, wanted at least 0", [](Problem& p) { p.m = -1; }},
      {"d: got 0, wanted at least 1", [](Problem& p) { p.d = 0; }},
      {"d: got -6, wanted at least 0", [](Problem& p) { p.d = -6; }, Op::kGateMul},
      {"h: got 0, wanted at least 1", [](Problem& p) { p.h = 0; }},
      {"d: got -1, wanted at least 0", [](Problem& p) { p.d = -1; }, Op::kColumnSum},
      {"d: got 0, wanted at least 1", [](Problem& p) { p.d = 0; }, Op::kNorm},
      {"h: got -1, wanted at least 0", [](Problem& p) { p.h = -1; }, Op::kNorm},
      {"d: got 0, wanted at least 1", [](Problem& p) { p.d = 0; }, Op::kWeightGrad},
      {"h: got 0, wanted at least 1", [](Problem& p) { p.h = 0; }, Op::kInputGrad},
      {"m * d: 9223372036854775807 * 6 elements overflow", [](Problem& p) { p.m = kHuge; }},
      {"m * d: 576460752303423488 * 1 elements overflow",
       [](Problem& p) { p.m = std::int64_t{1} << 59, p.d = p.h = 1; }},
      {"m * h: ", [](Problem& p) { p.m = 1, p.h = kHuge; }},
      {"h * d: ", [](Problem& p) { p.d = p.h = std::int64_t{1} << 31; }},
      {"d: 1 * 4611686018427387904 elements",
       [](Problem& p) { p.m = p.h = 0, p.d = kHuge / 2 + 1; }, Op::kNorm},
      {"h: 1 * 9223372036854775807 elements", [](Problem& p) { p.m = p.d = 0, p.h = kHuge; },
       Op::kColumnSum},
  });
  for (const Op op : {Op::kGateMul, Op::kGateMulGrad, Op::kColumnSum}) {
    Problem p = problem_of(op);
    p.d = 0;  // not read by these operators
    EXPECT_TRUE(succeeds(validate(p))) << to_string(op);
  }
  Problem norm = problem_of(Op::kNorm);
  norm.h = 0;
  EXPECT_TRUE(succeeds(validate(norm)));
}

TEST(Validate, EnumsOutOfRange) {
  expect_all({
      {"op: got 11, wanted 0 to 10", [](Problem& p) { p.op = static_cast<Op>(11); }},
      {"x_dtype: got 7, wanted 0 to 6", [](Problem& p) { p.x_dtype = static_cast<DType>(7); }},
      {"w_dtype: got 9, wanted 0 to 6", [](Problem& p) { p.w_dtype = static_cast<DType>(9); }},
      {"y_dtype: got 255, wanted 0 to 6", [](Problem& p) { p.y_dtype = static_cast<DType>(255); }},
      {"dw_dtype: got 7, wanted 0 to 6", [](Problem& p) { p.dw_dtype = static_cast<DType>(7); }},
      {"gate.activation: got 6, wanted 0 to 5",
       [](Problem& p) { p.gate.activation = static_cast<Activation>(6); }},
      {"residual: got 3, wanted 0 to 2", [](Problem& p) { p.residual = static_cast<Residual>(3); }},
  });
}

TEST(Validate, EveryFloatOfTheGate) {
  for (const float bad : {kNan, kInf, -kInf}) {
    expect_all({
        {"gate.alpha: got", [=](Problem& p) { p.gate.alpha = bad; }},
        {"gate.up_offset: got", [=](Problem& p) { p.gate.up_offset = bad; }},
        {"gate.gate_multiplier: got", [=](Problem& p) { p.gate.gate_multiplier = bad; }},
        {"gate.output_multiplier: got", [=](Problem& p) { p.gate.output_multiplier = bad; }},
    });
  }
  for (const float bad : {kNan, -kInf, 0.0F, -0.0F, -7.0F}) {
    expect_all({{"gate.limit: got", [=](Problem& p) { p.gate.limit = bad; }}});
  }
  for (const Activation a :
       {Activation::kGeluTanh, Activation::kGeluErf, Activation::kRelu, Activation::kIdentity}) {
    const std::string name = to_string(a);
    expect_all({{"gate.alpha: got 1.702000, but " + name + " has no alpha; wanted 1",
                 [=](Problem& p) { p.gate = {.activation = a, .alpha = 1.702F}; }}});
  }
  Problem p = problem_of(Op::kMlp);
  p.gate = Gate::clamped_swiglu();
  EXPECT_TRUE(succeeds(validate(p)));
}

TEST(Validate, Norm) {
  const auto norm = [](float eps, float offset) {
    return [=](Problem& p) {
      p.norm = {.enabled = true, .add = false, .eps = eps, .weight_offset = offset};
    };
  };
  expect_all({
      {"norm.eps: got 0, wanted a finite number above 0", norm(0, 0)},
      {"norm.eps: got -1, wanted", norm(-1, 0)},
      {"norm.eps: got nan, wanted", norm(kNan, 0)},
      {"norm.eps: got inf, wanted", norm(kInf, 0)},
      {"norm.weight_offset: got nan", norm(1e-5F, kNan)},
      {"norm.weight_offset: got inf", norm(1e-5F, kInf)},
      {"norm.add: set without norm.enabled", [](Problem& p) { p.norm.add = true; }},
      {"residual: the norm's input needs norm.enabled",
       [](Problem& p) { p.residual = Residual::kNormInput; }},
      {"norm.enabled: not set for the operator norm", [](Problem& p) { p.norm.enabled = false; },
       Op::kNorm},
      {"y_dtype: got fp32, wanted x's bf16 for norm", [](Problem& p) { p.y_dtype = DType::kF32; },
       Op::kNorm},
      {"residual: set for norm, wanted only for",
       [](Problem& p) { p.residual = Residual::kNormInput; }, Op::kNorm},
  });
}

// A flag is legal for exactly these operators.
TEST(Validate, FlagsFitTheOperator) {
  struct Flag {
    std::string name;
    std::function<void(Problem&)> set;
    std::vector<Op> legal;
  };
  const std::vector<Flag> flags = {
      {"norm", [](Problem& p) { p.norm.enabled = true; }, {Op::kGateUp, Op::kMlp, Op::kNorm}},
      {"residual", [](Problem& p) { p.residual = Residual::kOperand; }, {Op::kDown, Op::kMlp}},
      {"save_g_u", [](Problem& p) { p.save_g_u = true; }, {Op::kGateUp, Op::kMlp}},
      {"recompute", [](Problem& p) { p.recompute = true; }, {Op::kMlpGrad}},
      {"accumulate_dw",
       [](Problem& p) { p.accumulate_dw = true; },
       {Op::kMlpGrad, Op::kWeightGrad, Op::kColumnSum}},
      {"save_dg_du", [](Problem& p) { p.save_dg_du = true; }, {Op::kMlpGrad}},
      {"round_gate", [](Problem& p) { p.round_gate = true; }, {Op::kGateMul, Op::kGateMulGrad}},
      {"reduce",
       [](Problem& p) {
         p.reduce = {ReduceKind::kAllReduce, 1, 2, {}};
       },
       {Op::kDown, Op::kMlp}},
      {"bias_gate_up",
       [](Problem& p) { p.bias_gate_up = true; },
       {Op::kGateUp, Op::kMlp, Op::kMlpGrad}},
      {"bias_down", [](Problem& p) { p.bias_down = true; }, {Op::kDown, Op::kMlp, Op::kMlpGrad}},
  };
  for (const Flag& flag : flags) {
    for (int i = 0; i < kOpCount; ++i) {
      const Op op = static_cast<Op>(i);
      Problem p = problem_of(op);
      flag.set(p);
      if (std::find(flag.legal.begin(), flag.legal.end(), op) != flag.legal.end()) {
        EXPECT_TRUE(succeeds(validate(p))) << flag.name << " " << to_string(op);
      } else {
        EXPECT_TRUE(
            refuses(validate(p), flag.name + ": set for " + to_string(op) + ", wanted only for"));
      }
    }
  }
}

TEST(Validate, Alignment) {
  for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-16}, std::int64_t{24},
                                 std::int64_t{8192}, kHuge, std::int64_t{1} << 63}) {
    expect_all({{"alignment_bytes: got " + std::to_string(bad) + ", wanted a power of two",
                 [=](Problem& p) { p.alignment_bytes = bad; }}});
  }
  // A promise below an element's size is legal: run() asks each pointer for its own element's.
  Problem p{.op = Op::kMlp, .m = 4, .d = 6, .h = 10};
  p.alignment_bytes = 1;
  p.w_dtype = DType::kF32;
  EXPECT_TRUE(validate(p));
}

// x is [4, 6], w_gate [10, 6], g [4, 10], all bf16: 12-byte and 20-byte rows.
TEST(Validate, Strides) {
  const auto x = [](Layout layout) { return [=](Problem& p) { p.layout.x = layout; }; };
  const auto w = [](Layout layout) { return [=](Problem& p) { p.layout.w_gate_up = layout; }; };
  const auto g = [](Layout layout) { return [=](Problem& p) { p.layout.g_u = layout; }; };
  expect_all({
      {"x: row_stride is 10 bytes, wanted at least 12", x({.row_stride_bytes = 10})},
      {"x: row_stride is 13 bytes, wanted a multiple of the element's 2",
       x({.row_stride_bytes = 13})},
      {"x: row_stride is -12 bytes, wanted at least 12", x({.row_stride_bytes = -12})},
      {"x: row_stride of 9223372036854775806 bytes times 4 rows overflows",
       x({.row_stride_bytes = kHuge - 1})},
      {"y: row_stride is 0 bytes, wanted at least 12",  // a broadcast output
       [](Problem& p) { p.layout.y.row_stride_bytes = 0; }},
      {"x: block_rows is 2, wanted 0 (only gate and up weights",
       x({.block_rows = 2, .block_stride_bytes = 48})},
      {"x: block_cols is 2, wanted 0 (only g, u, dg and du",
       x({.block_cols = 2, .col_block_stride_bytes = 8})},
      {"w_gate: block_rows -1, block_cols 0, wanted 0 or more", w({.block_rows = -1})},
      {"w_gate: block_cols is 2, wanted 0", w({.block_cols = 2, .col_block_stride_bytes = 8})},
      {"w_gate: block_stride is 22 bytes, wanted at least 24",
       w({.block_rows = 2, .block_stride_bytes = 22})},
      {"w_gate: block_stride is 25 bytes, wanted a multiple of the element's 2",
       w({.block_rows = 2, .block_stride_bytes = 25})},
      {"w_gate: block_stride of 9223372036854775806 bytes overflows",
       w({.block_rows = 2, .block_stride_bytes = kHuge - 1})},
      {"w_gate: block_rows 9223372036854775807 times row_stride 12 overflows",
       w({.block_rows = kHuge, .block_stride_bytes = 48})},
      {"g: block_rows is 2, wanted 0", g({.block_rows = 2, .block_stride_bytes = 80}),
       Op::kGateMul},
      {"g: block_rows 0, block_cols -3, wanted 0 or more", g({.block_cols = -3}), Op::kGateMul},
      {"g: col_block_stride is 6 bytes, wanted at least 8",
       g({.block_cols = 4, .col_block_stride_bytes = 6}), Op::kGateMul},
      {"g: col_block_stride is 9 bytes, wanted a multiple",
       g({.block_cols = 4, .col_block_stride_bytes = 9}), Op::kGateMul},
      {"g: block_cols 9223372036854775807 overflows",
       g({.block_cols = kHuge, .col_block_stride_bytes = 8}), Op::kGateMul},
      {"g: column offsets overflow", g({.block_cols = 4, .col_block_stride_bytes = kHuge - 1}),
       Op::kGateMul},
      // 10 columns in blocks of 4 at a stride of 16: 2 · 16 + 2 · 2 bytes.
      {"g: row_stride is 34 bytes, wanted at least 36",
       g({.row_stride_bytes = 34, .block_cols = 4, .col_block_stride_bytes = 16}), Op::kGateMul},
      {"residual: row_stride is 10 bytes, wanted at least 12",
       [](Problem& p) {
         p.residual = Residual::kOperand;
         p.layout.residual.row_stride_bytes = 10;
       }},
  });
}

TEST(Validate, LegalLayouts) {
  Problem p = problem_of(Op::kMlp);
  p.layout.x.row_stride_bytes = 0;  // one row, repeated
  p.layout.w_gate_up = interleaved_rows(4, p.d, p.w_dtype);
  p.layout.y.row_stride_bytes = 14;
  EXPECT_TRUE(succeeds(validate(p)));
  p.m = 1;  // one row has no stride to break
  p.layout.y.row_stride_bytes = 2;
  EXPECT_TRUE(succeeds(validate(p)));
  p.layout.h.row_stride_bytes = 1;  // h is no operand of mlp
  EXPECT_TRUE(succeeds(validate(p)));
  Problem g = problem_of(Op::kGateMul);
  for (const std::int64_t block : {1, 3, 4, 10, 16}) {
    g.layout.g_u = interleaved_cols(block, g.h, g.x_dtype);
    EXPECT_TRUE(succeeds(validate(g))) << block;
  }
}

TEST(Validate, HelpersOfAbsurdArgumentsStayRefused) {
  Problem p = problem_of(Op::kMlp);
  p.layout.w_gate_up = interleaved_rows(kHuge / 2, kHuge / 2, p.w_dtype);
  EXPECT_TRUE(refuses(validate(p), "w_gate: "));
  p = problem_of(Op::kGateMul);
  p.layout.g_u = interleaved_cols(kHuge / 2, kHuge / 2, p.x_dtype);
  EXPECT_TRUE(refuses(validate(p), "g: "));
}

TEST(Validate, DevicesThatCannotBe) {
  EXPECT_TRUE(succeeds(validate(cpu_device())));
  EXPECT_TRUE(succeeds(validate(Device{.backend = Backend::kCuda, .sm_count = 1})));
  const struct {
    const char* message;
    void (*change)(Device& device);
  } cases[] = {
      {"device.backend: got 2, wanted 0 to 1",
       [](Device& d) { d.backend = static_cast<Backend>(2); }},
      {"device.threads: got -1, wanted 0 to 65536", [](Device& d) { d.threads = -1; }},
      {"device.sm_count: got 0, wanted 1 to 65536", [](Device& d) { d.backend = Backend::kCuda; }},
      {"device.ordinal: got -1, wanted 0 to 2147483647", [](Device& d) { d.ordinal = -1; }},
      {"device.compute_capability: got -1, wanted 0 to",
       [](Device& d) { d.compute_capability = -1; }},
      {"device.cublaslt_version: got -1, wanted 0 to", [](Device& d) { d.cublaslt_version = -1; }},
      {"device.driver_version: got -1, wanted 0 to", [](Device& d) { d.driver_version = -1; }},
      {"device.runtime_version: got -1, wanted 0 to", [](Device& d) { d.runtime_version = -1; }},
      {"device.l2_bytes: got -1, wanted 0 to", [](Device& d) { d.l2_bytes = -1; }},
      {"device.memory_bytes: got 9223372036854775807, wanted 0 to",
       [](Device& d) { d.memory_bytes = kHuge; }},
      {"device.memory_bytes_per_second: got -1, wanted 0 to",
       [](Device& d) { d.memory_bytes_per_second = -1; }},
      {"device.simd_targets: got 14, wanted bit 0 set", [](Device& d) { d.simd_targets = 14; }},
  };
  for (const auto& c : cases) {
    Device device = cpu_device();
    c.change(device);
    EXPECT_TRUE(refuses(validate(device), c.message));
    EXPECT_TRUE(refuses(plan(problem_of(Op::kMlpGrad), device), c.message));
    EXPECT_TRUE(refuses(plan(problem_of(Op::kMlp), device, {.variant = "cpu.simd"}), c.message));
    EXPECT_TRUE(explain(problem_of(Op::kMlp), device).variants.empty()) << c.message;
    EXPECT_TRUE(config_names("cpu.simd", problem_of(Op::kMlp), device).empty()) << c.message;
  }
}

}  // namespace
}  // namespace sluice
