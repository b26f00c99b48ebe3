// SPDX-License-Identifier: Apache-2.0
// Callers of other versions: structs with struct_size are read and written as docs/abi.md says.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "core/c_convert.hpp"
#include "expect_error.hpp"

namespace sluice::test {
namespace {

// A struct that has grown: its first version ended before `added`.
struct Grown {
  std::size_t struct_size;
  std::int64_t first;
  std::int64_t added;
};
// The same of a version to come.
struct Later {
  Grown known;
  std::int64_t later;
};

}  // namespace
}  // namespace sluice::test

template <>
inline constexpr std::size_t sluice::c_api::kFirstBytes<sluice::test::Grown> =
    offsetof(sluice::test::Grown, added);

namespace sluice::test {
namespace {

using c_api::read;
using c_api::write;

constexpr std::size_t kFirst = offsetof(Grown, added);
constexpr std::int64_t kJunk = 0x5A5A5A5A;

TEST(CStructs, WhatAnOlderCallerDoesNotHaveIsNotReadAndZero) {
  const Grown old{kFirst, 7, kJunk};
  const auto value = read(&old, "grown");
  ASSERT_TRUE(succeeds(value));
  EXPECT_EQ(value->first, 7);
  EXPECT_EQ(value->added, 0);
  for (const std::size_t size : {std::size_t{0}, kFirst - 1}) {
    const Grown small{size, 7, 0};
    EXPECT_TRUE(refuses(read(&small, "grown"),
                        "grown: struct_size is " + std::to_string(size) + ", wanted at least 16"));
  }
  EXPECT_TRUE(refuses(read(static_cast<const Grown*>(nullptr), "grown"), "grown: got null"));
}

TEST(CStructs, WhatALaterCallerSetsIsRefused) {
  Later later{{sizeof(Later), 7, 8}, 0};
  const auto value = read(&later.known, "grown");
  ASSERT_TRUE(succeeds(value));
  EXPECT_EQ(value->added, 8);
  later.later = 1;
  EXPECT_TRUE(fails(read(&later.known, "grown"), ErrorCode::kUnsupported,
                    "grown: sets a member that Sluice"));
}

TEST(CStructs, CallersAreToldWhatTheyHaveRoomFor) {
  Later later;
  std::memset(&later, 0x5A, sizeof(later));
  ASSERT_TRUE(succeeds(write(Grown{0, 7, 8}, &later.known, kFirst, "grown")));
  EXPECT_EQ(later.known.struct_size, kFirst);
  EXPECT_EQ(later.known.first, 7);
  EXPECT_EQ(later.known.added, kJunk << 32 | kJunk);
  ASSERT_TRUE(succeeds(write(Grown{0, 7, 8}, &later.known, sizeof(later), "grown")));
  EXPECT_EQ(later.known.struct_size, sizeof(later));
  EXPECT_EQ(later.known.added, 8);
  EXPECT_EQ(later.later, 0);
  EXPECT_TRUE(refuses(write(Grown{}, &later.known, kFirst - 1, "grown"),
                      "grown: struct_size is 15, wanted at least 16"));
}

// Every struct of sluice.h that says its size has that of its first version.
TEST(CStructs, TheApiReadsAndWritesThemSo) {
  sluice_problem problem{};
  sluice_error error{};
  ASSERT_EQ(sluice_problem_init(&problem, sizeof(problem), &error), SLUICE_OK);
  problem.m = problem.d = problem.h = 8;
  sluice_device device{};
  ASSERT_EQ(sluice_cpu_device(&device, sizeof(device), &error), SLUICE_OK);
  sluice_plan plan;
  sluice_options options{};
  options.struct_size = sizeof(options);
  const auto expect_too_small = [&](std::size_t& size, std::size_t first, const char* message) {
    const std::size_t full = std::exchange(size, first - 1);
    EXPECT_EQ(sluice_plan_init(&plan, &problem, &device, &options, &error),
              SLUICE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error.message).find(message), std::string::npos) << error.message;
    size = full;
  };
  expect_too_small(problem.struct_size, c_api::kFirstBytes<sluice_problem>,
                   "problem: struct_size is");
  expect_too_small(device.struct_size, sizeof(device), "device: struct_size is");
  expect_too_small(options.struct_size, sizeof(options), "options: struct_size is");
  EXPECT_EQ(sluice_problem_init(&problem, 8, &error), SLUICE_INVALID_ARGUMENT);
  options.experimental = 2;
  EXPECT_EQ(sluice_plan_init(&plan, &problem, &device, &options, &error), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "options.experimental: got 2, wanted 0 to 1");
  options.experimental = 0;
  device.slow_bf16_products = 2;
  EXPECT_EQ(sluice_plan_init(&plan, &problem, &device, &options, &error), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "device.slow_bf16_products: got 2, wanted 0 to 1");
  device.slow_bf16_products = 0;
  device.cublaslt_version = -1;
  EXPECT_EQ(sluice_plan_init(&plan, &problem, &device, &options, &error), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "device.cublaslt_version: got -1, wanted 0 to 2147483647");
  device.cublaslt_version = 0;
  EXPECT_EQ(sluice_plan_init(&plan, &problem, &device, &options, &error), SLUICE_OK);
}

// Every member has another value than a new struct's, so that one left out shows.
TEST(CStructs, AProblemBecomesCMemberByMember) {
  Problem p;
  p.op = Op::kMlp, p.x_dtype = DType::kF32, p.w_dtype = DType::kF16, p.y_dtype = DType::kF64;
  p.dw_dtype = DType::kF32, p.residual = Residual::kOperand;
  p.m = 2, p.d = 3, p.h = 5;
  p.gate = {Activation::kGeluErf, 1.5F, 2.5F, 3.5F, 4.5F, 5.5F};
  p.norm = {.enabled = true, .add = true, .eps = 0.25F, .weight_offset = 0.5F};
  p.bias_gate_up = p.bias_down = p.save_g_u = p.recompute = p.accumulate_dw = true;
  p.save_dg_du = p.round_gate = true;
  p.weights_static = false;
  p.alignment_bytes = 8;
  p.reduce = {ReduceKind::kAllReduce,
              3,
              4,
              {.enabled = true, .add = false, .eps = 0.125F, .weight_offset = 0.75F}};
  p.layout.x.row_stride_bytes = 7, p.layout.dw_down.col_block_stride_bytes = 9;
  const sluice_problem c = to_c(p);
  EXPECT_EQ(c.struct_size, sizeof(c));
  EXPECT_EQ(c.op, SLUICE_MLP);
  EXPECT_EQ(c.x_dtype, SLUICE_FP32);
  EXPECT_EQ(c.w_dtype, SLUICE_FP16);
  EXPECT_EQ(c.y_dtype, SLUICE_FP64);
  EXPECT_EQ(c.dw_dtype, SLUICE_FP32);
  EXPECT_EQ(c.residual, SLUICE_RESIDUAL_OPERAND);
  EXPECT_EQ(c.m, 2);
  EXPECT_EQ(c.d, 3);
  EXPECT_EQ(c.h, 5);
  EXPECT_EQ(c.gate.activation, SLUICE_GELU_ERF);
  const float gate[] = {c.gate.alpha, c.gate.limit, c.gate.up_offset, c.gate.gate_multiplier,
                        c.gate.output_multiplier};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(gate[i], 1.5F + static_cast<float>(i)) << i;
  EXPECT_EQ(c.norm.eps, 0.25F);
  EXPECT_EQ(c.norm.weight_offset, 0.5F);
  for (const std::int32_t flag :
       {c.norm.enabled, c.norm.add, c.bias_gate_up, c.bias_down, c.save_g_u, c.recompute,
        c.accumulate_dw, c.save_dg_du, c.round_gate}) {
    EXPECT_EQ(flag, 1);
  }
  EXPECT_EQ(c.weights_static, 0);
  EXPECT_EQ(c.alignment_bytes, 8);
  EXPECT_EQ(c.reduce.kind, SLUICE_ALL_REDUCE);
  EXPECT_EQ(c.reduce.rank, 3);
  EXPECT_EQ(c.reduce.world, 4);
  EXPECT_EQ(c.reduce.norm.enabled, 1);
  EXPECT_EQ(c.reduce.norm.eps, 0.125F);
  EXPECT_EQ(c.reduce.norm.weight_offset, 0.75F);
  EXPECT_EQ(c.layout.x.row_stride_bytes, 7);
  EXPECT_EQ(c.layout.dw_down.col_block_stride_bytes, 9);
}

TEST(CStructs, ADeviceIsWhatTheCAbiSays) {
  sluice_device wanted{};
  ASSERT_EQ(sluice_cpu_device(&wanted, sizeof(wanted), nullptr), SLUICE_OK);
  Device d = cpu_device();
  EXPECT_EQ(to_c(d).simd_targets, wanted.simd_targets);
  EXPECT_STREQ(to_c(d).name, wanted.name);
  d.backend = Backend::kCuda, d.ordinal = 2;
  const sluice_device c = to_c(d);
  EXPECT_EQ(c.struct_size, sizeof(c));
  EXPECT_EQ(c.backend, SLUICE_CUDA_DEVICE);
  EXPECT_EQ(c.ordinal, 2);
}

TEST(CStructs, OperandsBecomeC) {
  char memory[2];
  Operands operands;
  operands.x = &memory[0], operands.db_down = &memory[1];
  const sluice_operands c = to_c(operands);
  EXPECT_EQ(c.struct_size, sizeof(c));
  EXPECT_EQ(c.x, &memory[0]);
  EXPECT_EQ(c.db_down, &memory[1]);
}

}  // namespace
}  // namespace sluice::test
