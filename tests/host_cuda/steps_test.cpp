// SPDX-License-Identifier: Apache-2.0
// Operators as steps: which steps a plan has on which device, by which kernels, and what lower()
// binds to them.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <string>

#include "choice.hpp"
#include "core/lower.hpp"
#include "harness/device_file.hpp"

namespace sluice {
namespace {

using detail::lower;
using detail::Role;
using gpu::problem_of;
using gpu::steps_of;

Device device_of(const std::string& name) {
  return harness::read_device(SLUICE_DEVICES "/" + name + ".json").value();
}

struct Row {
  const char* device;
  const char* text;
  const char* recipe;
  const char* steps;
};
constexpr Row kRows[] = {
    // Hopper, few tokens: a norm deferred into gate_up, or launched where weights are few.
    {"h200", "1x4096x14336:mlp", "cuda.sm90_decode",
     "gate_up:cuda.sm90_decode down:cuda.sm90_decode"},
    {"h100", "64x4096x14336:mlp", "cuda.sm90_decode",
     "gate_up:cuda.sm90_decode down:cuda.sm90_decode"},
    {"h20", "16x4096x14336:gate_up", "cuda.sm90_decode", "gate_up:cuda.sm90_decode"},
    {"h200", "1x4096x14336:mlp:add_norm", "cuda.sm90_decode",
     "gate_up:cuda.sm90_decode down:cuda.sm90_decode"},
    {"h200", "1x576x1536:mlp:add_norm", "cuda.sm90_decode",
     "norm:cuda.norm gate_up:cuda.sm90_decode down:cuda.sm90_decode"},
    {"h200", "16x4096x14336:gate_up:norm", "cuda.sm90_decode",
     "norm:cuda.norm gate_up:cuda.sm90_decode"},
    // Many: tensor cores, down by cuBLASLt where that is faster.
    {"h200", "128x4096x14336:mlp", "cuda.sm90_decode",
     "gate_up:cuda.sm90_decode down:cuda.sm90_decode"},
    {"h200", "192x4096x14336:mlp", "cuda.sm90", "gate_up:cuda.sm90_gemm down:cuda.cublaslt"},
    {"h200", "4096x4096x14336:mlp", "cuda.sm90", "gate_up:cuda.sm90_gemm down:cuda.cublaslt"},
    {"h100", "4096x4096x14336:mlp", "cuda.sm90", "gate_up:cuda.sm90_gemm down:cuda.cublaslt"},
    {"h200", "8192x8192x28672:mlp:add_norm:residual_norm_input", "cuda.sm90",
     "norm:cuda.norm gate_up:cuda.sm90_gemm down:cuda.sm90_gemm"},
    {"h200", "16x4096x14336:mlp:save", "cuda.sm90", "gate_up:cuda.sm90_gemm down:cuda.sm90_gemm"},
    {"h200", "4096x4096x14336:gate_up_grad", "cuda.sm90", "gate_up_grad:cuda.sm90_gemm"},
    {"h200", "4096x4096x14336:mlp_grad", "cuda.sm90",
     "gate_up_grad:cuda.sm90_gemm input_grad:cuda.sm90_gemm weight_grad:cuda.sm90_gemm "
     "weight_grad_down:cuda.sm90_gemm"},
    {"h200", "512x4096x14336:mlp_grad:bias", "cuda.sm90",
     "gate_up_grad:cuda.sm90_gemm input_grad:cuda.cublaslt weight_grad:cuda.cublaslt "
     "weight_grad_down:cuda.cublaslt column_sum_gate:cuda.column_sum "
     "column_sum_up:cuda.column_sum"},
    {"h200", "512x4096x14336:mlp_grad:bias_down", "cuda.sm90",
     "gate_up_grad:cuda.sm90_gemm input_grad:cuda.cublaslt weight_grad:cuda.cublaslt "
     "weight_grad_down:cuda.cublaslt column_sum_down:cuda.column_sum"},
    // The most that there are.
    {"h200", "4096x4096x14336:mlp_grad:recompute:bias:bias_down", "cuda.sm90",
     "gate_up:cuda.sm90_gemm gate_up_grad:cuda.sm90_gemm input_grad:cuda.sm90_gemm "
     "weight_grad:cuda.sm90_gemm weight_grad_down:cuda.sm90_gemm "
     "column_sum_gate:cuda.column_sum column_sum_up:cuda.column_sum "
     "column_sum_down:cuda.column_sum"},
    // mma.sync on what is no Hopper, and where Hopper's copies do not reach.
    {"a100", "1x4096x14336:mlp", "cuda.sm80", "gate_up:cuda.sm80_decode down:cuda.sm80_decode"},
    {"l40s", "64x4096x14336:mlp:norm", "cuda.sm80",
     "norm:cuda.norm gate_up:cuda.sm80_decode down:cuda.sm80_decode"},
    {"rtx4090", "8x4096x14336:mlp", "cuda.sm80", "gate_up:cuda.sm80_decode down:cuda.sm80_decode"},
    {"rtx5090", "1x4096x14336:mlp", "cuda.sm80", "gate_up:cuda.sm80_decode down:cuda.sm80_decode"},
    {"rtx5090", "64x4096x14336:mlp:add_norm", "cuda.sm80",
     "norm:cuda.norm gate_up:cuda.sm80_decode down:cuda.sm80_decode"},
    {"b200", "1x4096x14336:mlp", "cuda.sm80", "gate_up:cuda.sm80_decode down:cuda.sm80_decode"},
    {"b200", "64x4096x14336:down:residual", "cuda.sm80", "down:cuda.sm80_decode"},
    {"b200", "65x4096x14336:mlp", "cuda.sm80", "gate_up:cuda.sm80_gemm down:cuda.sm80_gemm"},
    {"a100", "65x4096x14336:mlp", "cuda.sm80", "gate_up:cuda.sm80_gemm down:cuda.sm80_gemm"},
    {"h200", "17x4096x14304:gate_up:interleaved3", "cuda.sm80", "gate_up:cuda.sm80_gemm"},
    {"l40s", "512x4096x14336:mlp:norm", "cuda.sm80",
     "norm:cuda.norm gate_up:cuda.sm80_gemm down:cuda.sm80_gemm"},
    {"b200", "512x4096x14336:down:residual", "cuda.sm80", "down:cuda.sm80_gemm"},
    {"h200", "512x4096x14337:gate_up:interleaved3", "cuda.cublaslt", "gate_up:cuda.cublaslt_any"},
    {"h200", "512x4096x14304:gate_up:interleaved3", "cuda.sm80", "gate_up:cuda.sm80_gemm"},
    // Element by element, the norm, and all that is left in one step.
    {"h200", "512x1x14336:gate_mul", "cuda.elementwise", "gate_mul:cuda.elementwise"},
    {"b200", "512x1x14336:gate_mul_grad", "cuda.elementwise", "gate_mul_grad:cuda.elementwise"},
    {"h200", "512x4096x14336:mlp_grad:recompute:interleaved8", "cuda.sm80",
     "gate_up:cuda.sm80_gemm gate_up_grad:cuda.sm80_gemm input_grad:cuda.sm80_gemm "
     "weight_grad:cuda.sm80_gemm weight_grad_down:cuda.sm80_gemm"},
    {"h200", "512x4096x14336:mlp:fp32:norm", "cuda.cublaslt",
     "norm:cuda.norm_any gate_up:cuda.cublaslt_any down:cuda.cublaslt_any"},
    // Wider rows than cuda.norm's; more rows than a GEMM counts.
    {"h200", "128x49160x8192:mlp:norm", "cuda.sm90",
     "norm:cuda.norm_any gate_up:cuda.cublaslt down:cuda.sm90_gemm"},
    {"a100", "128x49160x8192:gate_up:norm", "cuda.sm80",
     "norm:cuda.norm_any gate_up:cuda.sm80_gemm"},
    {"h200", "2147483656x8x8:input_grad", "cuda.simt", "input_grad:cuda.simt"},
    {"a100", "512x4096x14336:mlp_grad:recompute:bias", "cuda.sm80",
     "gate_up:cuda.sm80_gemm gate_up_grad:cuda.sm80_gemm input_grad:cuda.sm80_gemm "
     "weight_grad:cuda.sm80_gemm weight_grad_down:cuda.sm80_gemm column_sum_gate:cuda.column_sum "
     "column_sum_up:cuda.column_sum"},
    {"a100", "8x4096x14336:mlp:save", "cuda.sm80", "gate_up:cuda.sm80_gemm down:cuda.sm80_decode"},
    {"a100", "512x4096x14336:gate_up_grad", "cuda.sm80", "gate_up_grad:cuda.sm80_gemm"},
    {"a100", "512x4096x14336:mlp_grad:fp32", "cuda.cublaslt",
     "gate_up_grad:cuda.cublaslt_any input_grad:cuda.cublaslt_any weight_grad:cuda.cublaslt_any "
     "weight_grad_down:cuda.cublaslt_any"},
};

TEST(Steps, AreThoseOfTheDeviceAndTheProblem) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(std::string(row.device) + " " + row.text);
    const Device device = device_of(row.device);
    EXPECT_EQ(gpu::variant_of(row.text, device), row.recipe);
    EXPECT_EQ(steps_of(row.text, device), row.steps);
  }
}

// A config's text says all that differs: no two candidates share one.
TEST(Steps, NoTwoCandidatesHaveOneName) {
  for (const char* text : {"64x1000x7:mlp:norm", "64x1000x7:gate_up:norm", "64x4096x4096:mlp:norm",
                           "64x4096x4096:mlp:fp32:norm", "512x4096x4096:mlp:norm"}) {
    std::set<std::string> names;
    const auto all = candidates(problem_of(text), device_of("h200"));
    for (const Plan& plan : all.value()) {
      const std::string name = std::string(plan.variant_name()) + " " + plan.config_name();
      EXPECT_TRUE(names.insert(name).second) << text << ": " << name;
    }
    EXPECT_FALSE(names.empty()) << text;
  }
}

TEST(Steps, ComeWithWhatTheirRecipeIsThereFor) {
  const auto reason = [](const char* device, const char* text) {
    return explain(problem_of(text), device_of(device)).reason;
  };
  const std::string decode = reason("h200", "64x4096x14336:mlp");
  EXPECT_NE(decode.find("bandwidth-bound"), std::string::npos) << decode;
  const std::string tiles = reason("h200", "161x4096x14336:mlp");
  EXPECT_NE(tiles.find("Hopper's tensor cores"), std::string::npos) << tiles;
  const std::string others = reason("a100", "65x4096x14336:mlp");
  EXPECT_NE(others.find("mma.sync"), std::string::npos) << others;
}

TEST(Steps, OfMlpGradAreNineLaunchesAtMost) {
  const auto made =
      plan(problem_of("4096x4096x14336:mlp_grad:recompute:bias:bias_down"), device_of("h200"));
  ASSERT_TRUE(made) << made.error().message;
  // weight_grad is two launches.
  EXPECT_EQ(made->step_count + 1, 9);
  static_assert(kMaxSteps >= 8);
}

// Addresses that no step reads: lower() only passes them on.
struct Given {
  std::array<char, 64> bytes{};
  int used = 0;
  void* next() { return &bytes.at(static_cast<std::size_t>(used++)); }
};

// Every operand that the problem has, and every part of scratch, each somewhere else.
struct Bound {
  explicit Bound(const std::string& text) : problem(problem_of(text)) {
    for (const OperandSpec& spec : operand_specs(problem)) {
      if (spec.access != Access::kUnused) set_address(operands, spec.id, given.next());
    }
    for (void** part : {&scratch.n, &scratch.r, &scratch.h, &scratch.dg_du, &scratch.kernel}) {
      *part = given.next();
    }
  }
  [[nodiscard]] detail::Lowered step(Role role, bool norm_step = false) const {
    return lower(problem, role, norm_step, &operands, scratch);
  }
  // The right half of scratch's rows.
  [[nodiscard]] const void* du() const {
    return static_cast<const char*>(scratch.dg_du) + problem.h * size_bytes(problem.x_dtype);
  }
  Given given;
  Problem problem;
  Operands operands{};
  ScratchParts<void*> scratch{};
};

// The pointers of a step that its problem uses, and no others: what run() would check.
void expect_only_used(const detail::Lowered& step) {
  EXPECT_TRUE(validate(step.problem));
  for (const OperandSpec& spec : operand_specs(step.problem)) {
    const void* const pointer = address(step.operands, spec.id);
    if (spec.access == Access::kUnused) {
      EXPECT_EQ(pointer, nullptr) << spec.name;
    } else if (spec.required) {
      EXPECT_NE(pointer, nullptr) << spec.name;
    }
  }
}

TEST(Lower, TheWholeIsItsOnlyStep) {
  for (const auto& [text, role] : {std::pair{"8x64x96:gate_up:norm", Role::kGateUp},
                                   {"8x64x96:down:residual", Role::kDown},
                                   {"8x64x96:gate_up_grad", Role::kGateUpGrad},
                                   {"8x64x96:mlp:norm", Role::kWhole}}) {
    const Bound bound(text);
    const detail::Lowered step = bound.step(role);
    EXPECT_EQ(step.problem.op, bound.problem.op);
    EXPECT_EQ(step.problem.norm.enabled, bound.problem.norm.enabled);
    EXPECT_EQ(step.problem.residual, bound.problem.residual);
    for (int i = 0; i < kOperandCount; ++i) {
      const auto id = static_cast<Operand>(i);
      EXPECT_EQ(address(step.operands, id), address(bound.operands, id)) << text;
    }
  }
}

TEST(Lower, ALaunchOfTheNormFeedsGateUp) {
  const Bound bound("8x64x96:mlp:add_norm:bias:bias_down:pad=8");
  const detail::Lowered norm = bound.step(Role::kNorm, true);
  expect_only_used(norm);
  EXPECT_EQ(norm.problem.op, Op::kNorm);
  EXPECT_EQ(norm.operands.x, bound.operands.x);
  EXPECT_EQ(norm.operands.x_residual, bound.operands.x_residual);
  EXPECT_EQ(norm.operands.norm_weight, bound.operands.norm_weight);
  EXPECT_EQ(norm.operands.x_sum, bound.operands.x_sum);
  EXPECT_EQ(norm.operands.y, bound.scratch.n);
  const detail::Lowered gate_up = bound.step(Role::kGateUp, true);
  expect_only_used(gate_up);
  EXPECT_FALSE(gate_up.problem.norm.enabled);
  EXPECT_TRUE(gate_up.problem.bias_gate_up);
  EXPECT_EQ(gate_up.operands.x, bound.scratch.n);
  EXPECT_EQ(gate_up.operands.h, bound.scratch.h);
  // x's rows have gaps, those of n none.
  EXPECT_EQ(operand_spec(gate_up.problem, Operand::kX).layout.row_stride_bytes, 64 * 2);
  const detail::Lowered down = bound.step(Role::kDown, true);
  expect_only_used(down);
  EXPECT_EQ(down.operands.h, bound.scratch.h);
  EXPECT_EQ(down.operands.b_down, bound.operands.b_down);
  EXPECT_EQ(down.operands.residual, nullptr);
  EXPECT_EQ(down.problem.residual, Residual::kNone);
}

// y adds the norm's input: x itself, or its sum with x_residual, where its owner or scratch has it.
TEST(Lower, DownAddsWhatTheNormNormalised) {
  for (const bool norm_step : {false, true}) {
    const Role normed = norm_step ? Role::kNorm : Role::kGateUp;
    Bound bound("8x64x96:mlp:add_norm:residual_norm_input:pad=8");
    const Layout padded = operand_spec(bound.problem, Operand::kXSum).layout;
    EXPECT_GT(padded.row_stride_bytes, 64 * 2);
    detail::Lowered down = bound.step(Role::kDown, norm_step);
    expect_only_used(down);
    EXPECT_EQ(down.problem.residual, Residual::kOperand);
    EXPECT_EQ(down.operands.residual, bound.operands.x_sum);
    EXPECT_EQ(operand_spec(down.problem, Operand::kResidual).layout, padded);
    EXPECT_EQ(bound.step(normed, norm_step).operands.x_sum, bound.operands.x_sum);

    bound.operands.x_sum = nullptr;
    down = bound.step(Role::kDown, norm_step);
    EXPECT_EQ(down.operands.residual, bound.scratch.r);
    EXPECT_EQ(operand_spec(down.problem, Operand::kResidual).layout.row_stride_bytes, 64 * 2);
    const detail::Lowered first = bound.step(normed, norm_step);
    expect_only_used(first);
    EXPECT_EQ(first.operands.x_sum, bound.scratch.r);
    EXPECT_EQ(operand_spec(first.problem, Operand::kXSum).layout.row_stride_bytes, 64 * 2);
    // At planning the sum counts as given.
    EXPECT_EQ(operand_spec(lower(bound.problem, Role::kDown, norm_step, nullptr, {}).problem,
                           Operand::kResidual)
                  .layout,
              padded);

    const Bound plain("8x64x96:mlp:norm:residual_norm_input:pad=8");
    EXPECT_EQ(plain.step(Role::kDown, norm_step).operands.residual, plain.operands.x);
    EXPECT_EQ(plain.step(normed, norm_step).operands.x_sum, nullptr);
  }
  // A sum that nobody asks for and y does not add has no place.
  Bound unkept("8x64x96:mlp:add_norm");
  unkept.operands.x_sum = nullptr;
  EXPECT_EQ(unkept.step(Role::kNorm, true).operands.x_sum, nullptr);
}

TEST(Lower, DgAndDuLieInScratchOrWhereTheyAreSaved) {
  const Bound kept("8x64x96:mlp_grad:save_dg_du:bias");
  const Bound scratched("8x64x96:mlp_grad:bias");
  for (const Bound* bound : {&kept, &scratched}) {
    const bool saved = bound == &kept;
    const void* const dg = saved ? bound->operands.dg : bound->scratch.dg_du;
    const void* const du = saved ? bound->operands.du : bound->du();
    for (const Role role : {Role::kGateUpGrad, Role::kInputGrad, Role::kWeightGrad}) {
      const detail::Lowered step = bound->step(role);
      expect_only_used(step);
      EXPECT_EQ(step.operands.dg, dg);
      EXPECT_EQ(step.operands.du, du);
      const Layout layout = operand_spec(step.problem, Operand::kDg).layout;
      EXPECT_EQ(layout.row_stride_bytes, (saved ? 1 : 2) * 96 * 2);
    }
    EXPECT_EQ(bound->step(Role::kColumnSumGate).operands.dg, dg);
    EXPECT_EQ(bound->step(Role::kColumnSumGate).operands.db_gate, bound->operands.db_gate);
    EXPECT_EQ(bound->step(Role::kColumnSumUp).operands.dg, du);
    EXPECT_EQ(bound->step(Role::kColumnSumUp).operands.db_gate, bound->operands.db_up);
    EXPECT_EQ(bound->step(Role::kGateUpGrad).operands.g, bound->operands.g);
  }
}

// gate_up writes g and u where gate_up_grad overwrites them in place by dg and du.
TEST(Lower, RecomputedGAndULieWhereDgAndDuWill) {
  for (const std::string flag : {"", ":save_dg_du"}) {
    const Bound bound("8x64x96:mlp_grad:recompute" + flag);
    const detail::Lowered gate_up = bound.step(Role::kGateUp);
    const detail::Lowered grad = bound.step(Role::kGateUpGrad);
    expect_only_used(gate_up);
    expect_only_used(grad);
    EXPECT_TRUE(gate_up.problem.save_g_u);
    EXPECT_EQ(gate_up.operands.h, bound.scratch.h);
    EXPECT_EQ(gate_up.operands.g, grad.operands.dg);
    EXPECT_EQ(gate_up.operands.u, grad.operands.du);
    EXPECT_EQ(grad.operands.g, grad.operands.dg);
    EXPECT_EQ(grad.operands.u, grad.operands.du);
    EXPECT_EQ(operand_spec(gate_up.problem, Operand::kG).layout,
              operand_spec(grad.problem, Operand::kDg).layout);
    EXPECT_EQ(grad.operands.h, nullptr);  // gate_up wrote it
  }
}

// dw_down = dy^T h is a weight's gradient with other names.
TEST(Lower, DwDownIsAWeightGradOfDyAndH) {
  Bound bound("8x64x96:mlp_grad:bias_down:accumulate");
  const detail::Lowered step = bound.step(Role::kWeightGradDown);
  expect_only_used(step);
  EXPECT_EQ(step.problem.op, Op::kWeightGrad);
  EXPECT_EQ(step.problem.h, 64);
  EXPECT_EQ(step.problem.d, 96);
  EXPECT_TRUE(step.problem.accumulate_dw);
  EXPECT_EQ(step.operands.dg, bound.operands.dy);
  EXPECT_EQ(step.operands.x, bound.scratch.h);
  EXPECT_EQ(step.operands.dw_gate, bound.operands.dw_down);
  EXPECT_EQ(step.operands.dw_up, nullptr);
  EXPECT_EQ(bound.step(Role::kGateUpGrad).operands.h, bound.scratch.h);
  const detail::Lowered sum = bound.step(Role::kColumnSumDown);
  expect_only_used(sum);
  EXPECT_EQ(sum.problem.h, 64);
  EXPECT_EQ(sum.operands.dg, bound.operands.dy);
  EXPECT_EQ(sum.operands.db_gate, bound.operands.db_down);
  // Nobody asks for it: h is not written.
  bound.operands.dw_down = nullptr;
  EXPECT_EQ(bound.step(Role::kGateUpGrad).operands.h, nullptr);
}

}  // namespace
}  // namespace sluice
