// SPDX-License-Identifier: Apache-2.0
// From an operator to its steps: what each step's own problem is, and where its operands lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/kernel.hpp"

namespace sluice::detail {

/// What a step is in the operator that it is a part of.
enum class Role : std::uint8_t {
  kWhole,           ///< all of the operator, by one kernel
  kNorm,            ///< n (and r) from x
  kGateUp,          ///< h from x or n; with recompute also g and u, to where dg and du will lie
  kDown,            ///< y from h
  kGateUpGrad,      ///< dg, du and h from dy, g and u
  kInputGrad,       ///< dx from dg and du
  kWeightGrad,      ///< dw_gate and dw_up from dg, du and x
  kWeightGradDown,  ///< dw_down from dy and h
  kColumnSumGate,   ///< db_gate from dg
  kColumnSumUp,     ///< db_up from du
  kColumnSumDown,   ///< db_down from dy
  kAllReduce,       ///< y of all ranks from kDown's, and the next norm of it
};

/// "gate_up": a step as configs and explain() name it. kWhole has its operator's name.
[[nodiscard]] const char* name_of(Role role, Op op) noexcept;

/// The part that computes this operator by itself; kWhole where there is none.
[[nodiscard]] Role role_of(Op op) noexcept;

/// A step's own problem and operands.
struct Lowered {
  Problem problem;
  Operands operands;
};

/// Of the step with this role; `scratch` holds the pointers of Plan::scratch, null at planning.
/// Without `given` (at planning) optional operands count as given.
[[nodiscard]] Lowered lower(const Problem& problem, Role role, bool norm_step,
                            const Operands* given, const ScratchParts<void*>& scratch) noexcept;

/// The step's own problem, at planning.
[[nodiscard]] Problem step_problem(const Problem& problem, Role role, bool norm_step) noexcept;

/// Whether ranks add their parts of y: down is then followed by kAllReduce.
[[nodiscard]] bool reduces(const Problem& problem) noexcept;

/// A plan's steps.
[[nodiscard]] std::span<const PlannedStep> steps_of(const Plan& plan) noexcept;

/// Whether the steps begin with a launch of the norm.
[[nodiscard]] bool has_norm_step(std::span<const PlannedStep> steps) noexcept;

/// What the steps keep between them, in bytes; 0 for what they do not have.
[[nodiscard]] ScratchParts<std::size_t> scratch_bytes(const Problem& problem, const Device& device,
                                                      int threads,
                                                      std::span<const PlannedStep> steps) noexcept;

}  // namespace sluice::detail
