// SPDX-License-Identifier: Apache-2.0
// Cases and running of them, shared by the tests of the engine.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "harness/data.hpp"
#include "harness/verify.hpp"
#include "targets.hpp"

namespace sluice::test {

inline harness::Case parse(const std::string& text) {
  auto c = harness::parse_case(text);
  if (!c) {
    ADD_FAILURE() << text << ": " << c.error().message;
    return {};
  }
  return *c;
}

/// Every byte of every output, rows' gaps included.
inline std::vector<std::vector<char>> output_bytes(harness::OperandSet& set) {
  std::vector<std::vector<char>> out;
  for (const Operand id : set.outputs()) {
    const auto matrix = set.host_matrix(id);
    const auto* bytes = static_cast<const char*>(matrix->data);
    out.emplace_back(bytes, bytes + extent_bytes(matrix->spec));
  }
  return out;
}

/// By the target that `word` names; by plan()'s own choice where it is empty.
inline Expected<Plan> simd_plan(const harness::Case& c, const std::string& word, int threads) {
  const std::string config = config_of(c.problem.op, word);
  Options options;
  options.variant = "cpu.simd";
  options.config = word.empty() ? nullptr : config.c_str();
  options.threads = threads;
  return plan(c.problem, cpu_device(), options);
}

/// Whether cpu.simd has this target for the problem: avx512_bf16 is for some only.
inline bool offers(const harness::Case& c, const std::string& word) {
  const std::string config = config_of(c.problem.op, word);
  const auto names = config_names("cpu.simd", c.problem, cpu_device());
  return std::find(names.begin(), names.end(), config) != names.end();
}

/// Runs a plan on a set with a workspace of its own.
inline Status run_once(const Plan& plan, harness::OperandSet& set) {
  auto memory = harness::make_workspace(plan, set.rig());
  if (!memory) return memory.error();
  return run(plan, set.operands(), memory->workspace, nullptr);
}

/// Output bits of one run of the case.
inline std::vector<std::vector<char>> bits_of(const harness::Case& c, const std::string& word,
                                              int threads) {
  auto rig = harness::open_rig("cpu");
  auto set = harness::OperandSet::make(c, **rig);
  auto made = simd_plan(c, word, threads);
  EXPECT_TRUE(made) << made.error().message;
  if (!set || !made) return {};
  const Status ran = run_once(*made, **set);
  EXPECT_TRUE(ran) << ran.error().message;
  return output_bytes(**set);
}

/// One case for every operator and both forward paths, with everything on.
inline std::vector<std::string> full_cases() {
  return {
      "5x70x45:gate_up:bf16:bias:add_norm:save",
      "37x70x93:gate_up:fp16:gelu_tanh:norm:save:interleaved3",
      "3x129x70:down:fp16:bias_down:residual",
      "61x129x300:down:bf16/bf16/fp32:bias_down:residual",
      "4x300x200:mlp:bf16:bias:bias_down:add_norm:residual_norm_input:concat",
      "50x130x270:mlp:fp32:gelu_erf:bias:bias_down:add_norm:residual_norm_input:interleaved1",
      "23x64x515:gate_mul:bf16:clamped_swiglu:interleaved1",
      "23x64x515:gate_mul_grad:fp16:gelu_tanh",
      "31x99x150:gate_up_grad:bf16:concat",
      "31x99x150:mlp_grad:bf16:bias:bias_down",
      "40x99x150:mlp_grad:fp32/bf16/fp32:bias:bias_down:recompute:accumulate:interleaved8",
      "7x300:norm:bf16",
      "61x129:add_norm(weight_offset=1):fp16",
  };
}

}  // namespace sluice::test
