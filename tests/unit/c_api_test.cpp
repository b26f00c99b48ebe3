// SPDX-License-Identifier: Apache-2.0
// The C ABI: null arguments, struct versions, out-of-range enums, and that it computes what the C++
// API computes. tests/install and examples compile sluice.h as C99.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "sluice/sluice.h"
#include "sluice/sluice.hpp"

namespace sluice {
namespace {

// C and C++ have the same operands and layouts, in the same places.
#define SLUICE_VECTOR(id, member, shape, dtype)                                              \
  static_assert(                                                                             \
      offsetof(Operands, member) == static_cast<std::size_t>(Operand::id) * sizeof(void*) && \
      offsetof(sluice_operands, member) == sizeof(std::size_t) + offsetof(Operands, member));
#define SLUICE_MATRIX(id, member, shape, dtype, layout) \
  SLUICE_VECTOR(id, member, shape, dtype)               \
  static_assert(offsetof(sluice_layouts, layout) == offsetof(Layouts, layout));
#include "core/operands.inc"

sluice_problem small_problem() {
  sluice_problem p;
  EXPECT_EQ(sluice_problem_init(&p, sizeof(p), nullptr), SLUICE_OK);
  p.m = 3;
  p.d = 8;
  p.h = 16;
  p.x_dtype = p.w_dtype = p.y_dtype = SLUICE_FP32;
  return p;
}

sluice_device cpu() {
  sluice_device d;
  EXPECT_EQ(sluice_cpu_device(&d, sizeof(d), nullptr), SLUICE_OK);
  return d;
}

// `call(&error)` must fail with `code` and say `text`; and fail alike without an error to fill.
template <class Call>
void expect_error(sluice_status code, const std::string& text, const Call& call) {
  sluice_error error;
  std::memset(&error, 0x7F, sizeof(error));
  EXPECT_EQ(call(&error), code) << text;
  EXPECT_EQ(error.code, code);
  EXPECT_EQ(error.cuda_code, 0);
  EXPECT_NE(std::string(error.message).find(text), std::string::npos)
      << "got \"" << error.message << "\", wanted \"" << text << "\"";
  EXPECT_EQ(call(static_cast<sluice_error*>(nullptr)), code);
}

TEST(CApi, VersionAndNames) {
  EXPECT_STREQ(sluice_version(), SLUICE_VERSION);
  EXPECT_STREQ(sluice_dtype_name(SLUICE_BF16), "bf16");
  EXPECT_STREQ(sluice_op_name(SLUICE_MLP_GRAD), "mlp_grad");
  EXPECT_STREQ(sluice_activation_name(SLUICE_IDENTITY), "identity");
  EXPECT_STREQ(sluice_dtype_name(SLUICE_Q4_1), "q4_1");
  for (const int bad : {-1, 7, 256}) EXPECT_EQ(sluice_dtype_name(bad), nullptr) << bad;
  EXPECT_STREQ(sluice_op_name(SLUICE_NORM), "norm");
  EXPECT_STREQ(sluice_op_name(SLUICE_COLUMN_SUM), "column_sum");
  EXPECT_STREQ(sluice_op_name(SLUICE_LINEAR), "down");
  EXPECT_EQ(sluice_op_name(11), nullptr);
  EXPECT_EQ(sluice_activation_name(6), nullptr);
}

TEST(CApi, VariantNamesAreTheTable) {
  const auto names = variant_names(Backend::kCpu);
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(sluice_variant_name(SLUICE_CPU, static_cast<int32_t>(i)), names[i]);
  }
  EXPECT_EQ(sluice_variant_name(SLUICE_CPU, static_cast<int32_t>(names.size())), nullptr);
  for (const int32_t below : {-1, INT32_MIN}) {
    EXPECT_EQ(sluice_variant_name(SLUICE_CPU, below), nullptr);
  }
  EXPECT_EQ(sluice_variant_name(9, 0), nullptr);
}

TEST(CApi, ACpuMayBeHeldToASimdTarget) {
  sluice_device d = cpu();
  const std::uint32_t all = d.simd_targets;
  for (const char* nothing : {static_cast<const char*>(nullptr), "", "avx512_bf16"}) {
    EXPECT_EQ(sluice_limit_simd(&d, nothing, nullptr), SLUICE_OK);
    EXPECT_EQ(d.simd_targets, all);
  }
  for (const char* wrong : {"avx", "AVX2", "avx2 "}) {
    expect_error(SLUICE_INVALID_ARGUMENT, std::string("SIMD target: got \"") + wrong,
                 [&](auto* e) { return sluice_limit_simd(&d, wrong, e); });
    EXPECT_EQ(d.simd_targets, all);
  }
  d.simd_targets = 0xF;
  EXPECT_EQ(sluice_limit_simd(&d, "avx512", nullptr), SLUICE_OK);
  EXPECT_EQ(d.simd_targets, 7U);
  EXPECT_EQ(sluice_limit_simd(&d, "avx2", nullptr), SLUICE_OK);
  EXPECT_EQ(d.simd_targets, 3U);
  EXPECT_EQ(sluice_limit_simd(&d, "emulated", nullptr), SLUICE_OK);
  EXPECT_EQ(d.simd_targets, 1U);
  EXPECT_EQ(sluice_limit_simd(&d, "avx2", nullptr), SLUICE_OK);
  EXPECT_EQ(d.simd_targets, 1U);
  expect_error(SLUICE_INVALID_ARGUMENT, "device: got null",
               [](auto* e) { return sluice_limit_simd(nullptr, "avx2", e); });
}

// Each number of bytes reaches the library, which refuses a negative one by its name.
TEST(CApi, EveryCountOfADeviceArrives) {
  const sluice_problem p = small_problem();
  const struct {
    const char* name;
    std::int64_t sluice_device::*member;
  } members[] = {
      {"device.l1d_bytes: got -1", &sluice_device::l1d_bytes},
      {"device.l2_bytes: got -1", &sluice_device::l2_bytes},
      {"device.l3_bytes: got -1", &sluice_device::l3_bytes},
      {"device.memory_bytes: got -1", &sluice_device::memory_bytes},
      {"device.memory_bytes_per_second: got -1", &sluice_device::memory_bytes_per_second}};
  for (const auto& member : members) {
    sluice_device d = cpu();
    d.*member.member = -1;
    sluice_plan plan;
    expect_error(SLUICE_INVALID_ARGUMENT, member.name,
                 [&](auto* e) { return sluice_plan_init(&plan, &p, &d, nullptr, e); });
  }
}

TEST(CApi, NullArgumentsAreErrors) {
  const sluice_problem p = small_problem();
  const sluice_device d = cpu();
  sluice_plan plan;
  sluice_operand_spec spec;
  sluice_layout layout;
  const sluice_workspace none{};
  constexpr sluice_status kBad = SLUICE_INVALID_ARGUMENT;
  expect_error(kBad, "problem: got null",
               [](auto* e) { return sluice_problem_init(nullptr, sizeof(sluice_problem), e); });
  expect_error(kBad, "device: got null",
               [](auto* e) { return sluice_cpu_device(nullptr, sizeof(sluice_device), e); });
  expect_error(kBad, "device: got null",
               [](auto* e) { return sluice_cuda_device(0, nullptr, sizeof(sluice_device), e); });
  expect_error(kBad, "problem: got null", [](auto* e) { return sluice_validate(nullptr, e); });
  expect_error(kBad, "problem: got null",
               [&](auto* e) { return sluice_operand_query(nullptr, 0, &spec, sizeof(spec), e); });
  expect_error(kBad, "spec: got null",
               [&](auto* e) { return sluice_operand_query(&p, 0, nullptr, sizeof(spec), e); });
  expect_error(kBad, "problem: got null",
               [](auto* e) { return sluice_cost(nullptr, nullptr, nullptr, e); });
  expect_error(kBad, "plan: got null",
               [&](auto* e) { return sluice_plan_init(nullptr, &p, &d, nullptr, e); });
  expect_error(kBad, "problem: got null",
               [&](auto* e) { return sluice_plan_init(&plan, nullptr, &d, nullptr, e); });
  expect_error(kBad, "device: got null",
               [&](auto* e) { return sluice_plan_init(&plan, &p, nullptr, nullptr, e); });
  expect_error(kBad, "layout: got null",
               [](auto* e) { return sluice_interleaved_rows(1, 8, SLUICE_BF16, nullptr, e); });
  expect_error(kBad, "block: got 0",
               [&](auto* e) { return sluice_interleaved_cols(0, 8, SLUICE_BF16, &layout, e); });
  expect_error(kBad, "dtype: got 7",
               [&](auto* e) { return sluice_interleaved_rows(1, 8, 7, &layout, e); });
  expect_error(kBad, "dtype: got 4",  // activations have no blocks
               [&](auto* e) { return sluice_interleaved_cols(1, 8, SLUICE_Q8_0, &layout, e); });
  expect_error(kBad, "plan: got null", [](auto* e) { return sluice_run(nullptr, nullptr, e); });
  expect_error(kBad, "device: got null",
               [&](auto* e) { return sluice_workspace_init(none, nullptr, nullptr, e); });
  expect_error(kBad, "workspace: got 0 bytes",
               [&](auto* e) { return sluice_workspace_init(none, &d, nullptr, e); });
  expect_error(kBad, "buffer: got null",
               [&](auto* e) { return sluice_explain(&p, &d, nullptr, nullptr, 8, nullptr, e); });
  expect_error(kBad, "problem: got null", [&](auto* e) {
    return sluice_explain(nullptr, &d, nullptr, nullptr, 0, nullptr, e);
  });
  EXPECT_EQ(sluice_plan_workspace_bytes(nullptr), 0U);
  EXPECT_STREQ(sluice_plan_variant(nullptr), "");
  EXPECT_STREQ(sluice_plan_config(nullptr), "");
  EXPECT_EQ(sluice_plan_source(nullptr), -1);
  EXPECT_EQ(sluice_plan_threads(nullptr), -1);
}

TEST(CApi, OperandsNullAndMemoryThatIsNoPlanAreErrors) {
  const sluice_problem p = small_problem();
  const sluice_device d = cpu();
  sluice_plan plan{};
  sluice_operands operands{};
  operands.struct_size = sizeof(operands);
  sluice_run_args args{};
  const auto refuses_args = [&](const char* message) {
    expect_error(SLUICE_INVALID_ARGUMENT, message,
                 [&](auto* e) { return sluice_run(&plan, &args, e); });
  };
  refuses_args("plan: got memory that sluice_plan_init did not fill");
  EXPECT_STREQ(sluice_plan_variant(&plan), "");
  ASSERT_EQ(sluice_plan_init(&plan, &p, &d, nullptr, nullptr), SLUICE_OK);
  expect_error(SLUICE_INVALID_ARGUMENT, "args: got null",
               [&](auto* e) { return sluice_run(&plan, nullptr, e); });
  refuses_args("args: struct_size is 0, wanted at least");
  args.struct_size = sizeof(args);
  refuses_args("operands: got null");
  args.operands = &operands;
  refuses_args("x: got null, wanted a pointer to [3, 8] fp32");
}

// int32 lets values through that the one-byte C++ enums would cut to legal ones.
TEST(CApi, EnumsOutOfRange) {
  const auto refused = [](const std::string& text, auto spoil) {
    sluice_problem p = small_problem();
    spoil(p);
    expect_error(SLUICE_INVALID_ARGUMENT, text, [&](auto* e) { return sluice_validate(&p, e); });
  };
  refused("op: got 256, wanted 0 to 10", [](auto& p) { p.op = 256; });
  refused("x_dtype: got -1, wanted 0 to 6", [](auto& p) { p.x_dtype = -1; });
  refused("w_dtype: got 256", [](auto& p) { p.w_dtype = 256; });
  refused("y_dtype: got 7", [](auto& p) { p.y_dtype = 7; });
  refused("y_dtype: got q8_0", [](auto& p) { p.y_dtype = SLUICE_Q8_0; });
  refused("dw_dtype: got 512", [](auto& p) { p.dw_dtype = 512; });
  refused("residual: got 256", [](auto& p) { p.residual = 256; });
  refused("gate.activation: got 256", [](auto& p) { p.gate.activation = 256; });
  refused("norm.enabled: got 2, wanted 0 to 1", [](auto& p) { p.norm.enabled = 2; });
  refused("norm.add: got -1", [](auto& p) { p.norm.add = -1; });
  refused("bias_gate_up: got 256", [](auto& p) { p.bias_gate_up = 256; });
  refused("bias_down: got 7", [](auto& p) { p.bias_down = 7; });
  refused("save_g_u: got 7", [](auto& p) { p.save_g_u = 7; });
  refused("recompute: got 7", [](auto& p) { p.recompute = 7; });
  refused("accumulate_dw: got 7", [](auto& p) { p.accumulate_dw = 7; });
  refused("save_dg_du: got 7", [](auto& p) { p.save_dg_du = 7; });
  refused("weights_static: got 7", [](auto& p) { p.weights_static = 7; });
  refused("round_gate: got 7", [](auto& p) { p.round_gate = 7; });
  sluice_device d = cpu();
  const sluice_problem p = small_problem();
  sluice_plan plan;
  d.backend = 2;
  expect_error(SLUICE_INVALID_ARGUMENT, "device.backend: got 2",
               [&](auto* e) { return sluice_plan_init(&plan, &p, &d, nullptr, e); });
  d = cpu();
  d.arch = 6;
  expect_error(SLUICE_INVALID_ARGUMENT, "device.arch: got 6",
               [&](auto* e) { return sluice_plan_init(&plan, &p, &d, nullptr, e); });
  d = cpu();
  d.cooperative_launch = 2;
  expect_error(SLUICE_INVALID_ARGUMENT, "device.cooperative_launch: got 2",
               [&](auto* e) { return sluice_plan_init(&plan, &p, &d, nullptr, e); });
  sluice_operand_spec spec;
  for (const int32_t index : {-1, SLUICE_OPERAND_COUNT}) {
    expect_error(SLUICE_INVALID_ARGUMENT, "index: got",
                 [&](auto* e) { return sluice_operand_query(&p, index, &spec, sizeof(spec), e); });
  }
}

// Each member reaches its C++ counterpart: spoiled alone, it is the one that the core names.
TEST(CApi, EveryMemberComesThrough) {
  const auto named = [](const std::string& name, auto spoil) {
    sluice_problem p = small_problem();
    spoil(p);
    expect_error(SLUICE_INVALID_ARGUMENT, name, [&](auto* e) { return sluice_validate(&p, e); });
  };
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  named("m: got -5", [](auto& p) { p.m = -5; });
  named("d: got -5", [](auto& p) { p.d = -5; });
  named("h: got -5", [](auto& p) { p.h = -5; });
  named("gate.alpha: ", [](auto& p) { p.gate.alpha = kNan; });
  named("gate.limit: ", [](auto& p) { p.gate.limit = kNan; });
  named("gate.up_offset: ", [](auto& p) { p.gate.up_offset = kNan; });
  named("gate.gate_multiplier: ", [](auto& p) { p.gate.gate_multiplier = kNan; });
  named("gate.output_multiplier: ", [](auto& p) { p.gate.output_multiplier = kNan; });
  named("norm.eps: ", [](auto& p) { p.norm.enabled = 1, p.norm.eps = kNan; });
  named("norm.weight_offset: ", [](auto& p) { p.norm.enabled = 1, p.norm.weight_offset = kNan; });
  named("norm.add: ", [](auto& p) { p.norm.add = 1; });
  named("norm: set for down", [](auto& p) { p.op = SLUICE_DOWN, p.norm.enabled = 1; });
  named("residual: set for gate_up", [](auto& p) { p.op = SLUICE_GATE_UP, p.residual = 1; });
  named("save_g_u: set for down", [](auto& p) { p.op = SLUICE_DOWN, p.save_g_u = 1; });
  named("bias_gate_up: set for down", [](auto& p) { p.op = SLUICE_DOWN, p.bias_gate_up = 1; });
  named("bias_down: set for gate_up", [](auto& p) { p.op = SLUICE_GATE_UP, p.bias_down = 1; });
  named("recompute: set for mlp", [](auto& p) { p.recompute = 1; });
  named("accumulate_dw: set for mlp", [](auto& p) { p.accumulate_dw = 1; });
  named("save_dg_du: set for mlp", [](auto& p) { p.save_dg_du = 1; });
  named("round_gate: set for mlp", [](auto& p) { p.round_gate = 1; });
  constexpr sluice_norm kNorm{1, 0, 1e-5F, 0};
  named("reduce.kind: got none beside rank 1, world 0", [](auto& p) { p.reduce.rank = 1; });
  named("reduce.world: got 3", [](auto& p) { p.reduce = {1, 0, 3, {}}; });
  named("reduce.rank: got 2", [](auto& p) { p.reduce = {1, 2, 2, {}}; });
  named("reduce.norm.add: set", [&](auto& p) {
    p.reduce = {1, 0, 2, kNorm}, p.reduce.norm.add = 1;
  });
  named("reduce.norm.eps: ", [&](auto& p) {
    p.reduce = {1, 0, 2, kNorm}, p.reduce.norm.eps = kNan;
  });
  named("reduce.norm.weight_offset: ", [&](auto& p) {
    p.reduce = {1, 0, 2, kNorm}, p.reduce.norm.weight_offset = kNan;
  });
  named("alignment_bytes: got 3", [](auto& p) { p.alignment_bytes = 3; });
  named("x: row_stride", [](auto& p) { p.layout.x.row_stride_bytes = 1; });
  named("w_gate: row_stride", [](auto& p) { p.layout.w_gate_up.row_stride_bytes = 1; });
  named("w_down: row_stride", [](auto& p) { p.layout.w_down.row_stride_bytes = 1; });
  named("y: row_stride", [](auto& p) { p.layout.y.row_stride_bytes = 1; });
  const auto gradient = [&](const std::string& name, auto spoil) {
    named(name, [&](auto& p) { p.op = SLUICE_MLP_GRAD, spoil(p.layout); });
  };
  gradient("g: row_stride", [](auto& l) { l.g_u.row_stride_bytes = 1; });
  gradient("dy: row_stride", [](auto& l) { l.dy.row_stride_bytes = 1; });
  gradient("dx: row_stride", [](auto& l) { l.dx.row_stride_bytes = 1; });
  gradient("dw_gate: row_stride", [](auto& l) { l.dw_gate_up.row_stride_bytes = 1; });
  gradient("dw_down: row_stride", [](auto& l) { l.dw_down.row_stride_bytes = 1; });
}

TEST(CApi, ErrorsOfTheCoreComeThrough) {
  sluice_problem p = small_problem();
  p.gate.limit = -1;
  expect_error(SLUICE_INVALID_ARGUMENT, "gate.limit: got -1",
               [&](auto* e) { return sluice_validate(&p, e); });
  if (sluice_cuda_device_count() == 0) {
    sluice_device d;
    sluice_error error;
    EXPECT_NE(sluice_cuda_device(0, &d, sizeof(d), &error), SLUICE_OK);
    EXPECT_STRNE(error.message, "");
  }
}

TEST(CApi, DefaultsAreTheCppDefaults) {
  sluice_problem c;
  ASSERT_EQ(sluice_problem_init(&c, sizeof(c), nullptr), SLUICE_OK);
  const Problem p;
  EXPECT_EQ(c.op, static_cast<int>(p.op));
  EXPECT_EQ(c.x_dtype, static_cast<int>(p.x_dtype));
  EXPECT_EQ(c.dw_dtype, static_cast<int>(p.dw_dtype));
  EXPECT_EQ(c.gate.limit, p.gate.limit);
  EXPECT_EQ(c.gate.alpha, p.gate.alpha);
  EXPECT_EQ(c.norm.eps, p.norm.eps);
  EXPECT_EQ(c.weights_static, 1);
  EXPECT_EQ(c.alignment_bytes, p.alignment_bytes);
  EXPECT_EQ(c.layout.dw_down.row_stride_bytes, SLUICE_CONTIGUOUS);
}

TEST(CApi, OperandQueryIsTheCppTable) {
  sluice_problem c = small_problem();
  c.op = SLUICE_MLP_GRAD;
  c.accumulate_dw = 1;
  c.bias_gate_up = 1;
  Problem p;
  p.op = Op::kMlpGrad;
  p.m = c.m, p.d = c.d, p.h = c.h;
  p.x_dtype = p.w_dtype = p.y_dtype = DType::kF32;
  p.accumulate_dw = p.bias_gate_up = true;
  const auto specs = operand_specs(p);
  for (int32_t i = 0; i < SLUICE_OPERAND_COUNT; ++i) {
    sluice_operand_spec got;
    ASSERT_EQ(sluice_operand_query(&c, i, &got, sizeof(got), nullptr), SLUICE_OK);
    const OperandSpec& want = specs[static_cast<std::size_t>(i)];
    EXPECT_STREQ(got.name, want.name);
    EXPECT_EQ(got.access, static_cast<int>(want.access)) << want.name;
    EXPECT_EQ(got.required, want.required ? 1 : 0) << want.name;
    EXPECT_EQ(got.dtype, static_cast<int>(want.dtype)) << want.name;
    EXPECT_EQ(got.rows, want.rows) << want.name;
    EXPECT_EQ(got.cols, want.cols) << want.name;
    EXPECT_EQ(got.layout.row_stride_bytes, want.layout.row_stride_bytes) << want.name;
    EXPECT_EQ(got.extent_bytes, want.access == Access::kUnused ? 0 : extent_bytes(want));
  }
  double work = 0;
  double bytes = 0;
  ASSERT_EQ(sluice_cost(&c, &work, &bytes, nullptr), SLUICE_OK);
  EXPECT_EQ(work, flops(p));
  EXPECT_EQ(bytes, bytes_moved(p));
}

struct Data {
  std::vector<float> x = std::vector<float>(3 * 8), w_gate = std::vector<float>(16 * 8),
                     w_up = std::vector<float>(16 * 8), w_down = std::vector<float>(8 * 16);
  Data() {
    float seed = 0;
    for (auto* v : {&x, &w_gate, &w_up, &w_down}) {
      for (float& value : *v) value = std::sin(seed += 1.0F);
    }
  }
};

TEST(CApi, ComputesWhatTheCppApiComputes) {
  const sluice_problem c = small_problem();
  const sluice_device d = cpu();
  sluice_options options{};
  options.struct_size = sizeof(options);
  options.variant = "cpu.reference";
  options.threads = 1;
  sluice_plan plan_c;
  sluice_error error;
  ASSERT_EQ(sluice_plan_init(&plan_c, &c, &d, &options, &error), SLUICE_OK) << error.message;
  EXPECT_EQ(error.code, SLUICE_OK);
  EXPECT_STREQ(sluice_plan_variant(&plan_c), "cpu.reference");
  EXPECT_STREQ(sluice_plan_config(&plan_c), "mlp=fp64");
  EXPECT_EQ(sluice_plan_source(&plan_c), SLUICE_FORCED);
  EXPECT_EQ(sluice_plan_threads(&plan_c), 1);

  const sluice_plan copied = plan_c;  // a plan is copied by assignment
  Data data;
  std::vector<float> y_c(3 * 8, -1.0F);
  std::vector<float> y_cpp(3 * 8, -2.0F);
  struct alignas(kWorkspaceAlignment) Scratch {
    unsigned char bytes[2 * SLUICE_WORKSPACE_HEADER_BYTES];
  };
  const auto scratch = std::make_unique<Scratch>();
  const sluice_workspace workspace{scratch->bytes, sizeof(scratch->bytes), nullptr};
  ASSERT_EQ(sluice_workspace_init(workspace, &d, nullptr, nullptr), SLUICE_OK);
  ASSERT_LE(sluice_plan_workspace_bytes(&copied), workspace.bytes);
  sluice_operands operands{};
  operands.struct_size = sizeof(operands);
  operands.x = data.x.data();
  operands.w_gate = data.w_gate.data();
  operands.w_up = data.w_up.data();
  operands.w_down = data.w_down.data();
  operands.y = y_c.data();
  const sluice_run_args args{sizeof(args), &operands, workspace, nullptr, nullptr};
  ASSERT_EQ(sluice_run(&copied, &args, &error), SLUICE_OK) << error.message;

  Problem p;
  p.m = 3, p.d = 8, p.h = 16;
  p.x_dtype = p.w_dtype = p.y_dtype = DType::kF32;
  const Plan made = plan(p, cpu_device(), {.variant = "cpu.reference"}).value();
  Operands cpp;
  cpp.x = data.x.data();
  cpp.w_gate = data.w_gate.data();
  cpp.w_up = data.w_up.data();
  cpp.w_down = data.w_down.data();
  cpp.y = y_cpp.data();
  ASSERT_TRUE(run(made, cpp, {scratch->bytes, sizeof(scratch->bytes)}, nullptr).has_value());
  EXPECT_EQ(y_c, y_cpp);
}

int32_t recommend(void* user, const sluice_problem* problem, const sluice_device* device,
                  sluice_tune_choice* choice) {
  ++*static_cast<int*>(user);
  EXPECT_EQ(problem->m, 3);
  EXPECT_EQ(device->backend, SLUICE_CPU);
  std::strcpy(choice->variant, "cpu.reference");
  return 1;
}

TEST(CApi, TuningCallbackIsAsked) {
  const sluice_problem p = small_problem();
  const sluice_device d = cpu();
  int asked = 0;
  sluice_options options{};
  options.struct_size = sizeof(options);
  options.tune_find = recommend;
  options.tune_user = &asked;
  sluice_plan plan;
  ASSERT_EQ(sluice_plan_init(&plan, &p, &d, &options, nullptr), SLUICE_OK);
  EXPECT_EQ(asked, 1);
  EXPECT_STREQ(sluice_plan_variant(&plan), "cpu.reference");
  EXPECT_EQ(sluice_plan_source(&plan), SLUICE_TUNE_TABLE);
}

// Calls that a plan makes of the caller's threads, taken in turn.
TEST(CApi, RunsOnTheCallersThreads) {
  const sluice_device d = cpu();
  sluice_problem p = small_problem();
  p.op = SLUICE_GATE_MUL;
  p.m = 300;
  p.h = 700;
  std::int32_t asked = 0;
  sluice_options options{};
  options.struct_size = sizeof(options);
  options.threads = 3;
  options.parallel_for = [](void* user, int32_t count, void (*body)(void*, int32_t), void* work) {
    *static_cast<std::int32_t*>(user) += count;
    for (int32_t i = 0; i < count; ++i) body(work, i);
  };
  options.parallel_user = &asked;
  std::vector<float> g(300 * 700);
  for (std::size_t i = 0; i < g.size(); ++i) g[i] = std::sin(static_cast<float>(i));
  const std::vector<float> u(g.rbegin(), g.rend());
  const auto h_of = [&] {
    sluice_plan plan;
    EXPECT_EQ(sluice_plan_init(&plan, &p, &d, &options, nullptr), SLUICE_OK);
    std::vector<float> h(g.size());
    sluice_operands operands{};
    operands.struct_size = sizeof(operands);
    operands.g = g.data();
    operands.u = const_cast<float*>(u.data());
    operands.h = h.data();
    const sluice_run_args args{sizeof(args), &operands, {}, nullptr, nullptr};
    EXPECT_EQ(sluice_run(&plan, &args, nullptr), SLUICE_OK);
    return h;
  };
  const auto h = h_of();
  EXPECT_EQ(asked, 3);
  options.parallel_for = nullptr;
  EXPECT_EQ(h, h_of());
  EXPECT_EQ(asked, 3);
}

TEST(CApi, LogCallbackIsTold) {
  const sluice_problem p = small_problem();
  const sluice_device d = cpu();
  std::string told;
  sluice_options options{};
  options.struct_size = sizeof(options);
  options.log_write = [](void* user, const char* line) {
    *static_cast<std::string*>(user) += line;
  };
  options.log_user = &told;
  sluice_plan plan;
  ASSERT_EQ(sluice_plan_init(&plan, &p, &d, &options, nullptr), SLUICE_OK);
  EXPECT_NE(told.find(sluice_plan_variant(&plan)), std::string::npos) << told;
}

TEST(CApi, ExplainFillsOrCutsTheCallersBuffer) {
  const sluice_problem p = small_problem();
  const sluice_device d = cpu();
  size_t needed = 0;
  ASSERT_EQ(sluice_explain(&p, &d, nullptr, nullptr, 0, &needed, nullptr), SLUICE_OK);
  ASSERT_GT(needed, 1U);
  std::vector<char> buffer(needed, '?');
  ASSERT_EQ(sluice_explain(&p, &d, nullptr, buffer.data(), needed, nullptr, nullptr), SLUICE_OK);
  const std::string text(buffer.data());
  EXPECT_EQ(text.size() + 1, needed);
  EXPECT_NE(text.find("cpu.reference: "), std::string::npos) << text;
  EXPECT_NE(text.find(": chosen, config "), std::string::npos) << text;
  EXPECT_NE(text.find("\n  recipe: the CPU's threads"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  mlp: "), std::string::npos) << "no step in: " << text;
  // A line a variant, the recipe and each step, whose own lines are one.
  sluice_problem many = p;
  many.m = 400;
  std::vector<char> long_text(8192);
  ASSERT_EQ(
      sluice_explain(&many, &d, nullptr, long_text.data(), long_text.size(), nullptr, nullptr),
      SLUICE_OK);
  std::istringstream lines(long_text.data());
  int indented = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("  ", 0) == 0) {
      ++indented;
    } else {
      EXPECT_EQ(line.rfind("cpu.", 0), 0U) << line;
    }
  }
  EXPECT_EQ(indented, 2);
  std::vector<char> cut(10, '?');
  ASSERT_EQ(sluice_explain(&p, &d, nullptr, cut.data(), 9, &needed, nullptr), SLUICE_OK);
  EXPECT_EQ(std::string(cut.data()), text.substr(0, 8));
  EXPECT_EQ(cut[9], '?');
  sluice_problem wrong = p;
  wrong.m = -1;
  ASSERT_EQ(sluice_explain(&wrong, &d, nullptr, buffer.data(), buffer.size(), nullptr, nullptr),
            SLUICE_OK);
  EXPECT_NE(std::string(buffer.data()).find("m: got -1"), std::string::npos);
}

TEST(CApi, LayoutHelpersAreTheCppOnes) {
  sluice_layout c;
  ASSERT_EQ(sluice_interleaved_rows(8, 40, SLUICE_BF16, &c, nullptr), SLUICE_OK);
  const Layout rows = interleaved_rows(8, 40, DType::kBF16);
  EXPECT_EQ(c.row_stride_bytes, rows.row_stride_bytes);
  EXPECT_EQ(c.block_rows, 8);
  EXPECT_EQ(c.block_stride_bytes, rows.block_stride_bytes);
  ASSERT_EQ(sluice_interleaved_cols(8, 40, SLUICE_BF16, &c, nullptr), SLUICE_OK);
  EXPECT_EQ(c.block_cols, 8);
  EXPECT_EQ(c.col_block_stride_bytes, 32);
}

}  // namespace
}  // namespace sluice
