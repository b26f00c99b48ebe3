// SPDX-License-Identifier: Apache-2.0
// The library's own unfused MLP: what a caller without the fused operators would write with the
// others. Projections by the `down` operator (a plain GEMM), `gate_mul`, and `down` again.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "harness/baseline.hpp"
#include "harness/rig.hpp"
#include "sluice/plan.hpp"

namespace sluice::harness {

/// g = x·Wgᵀ + bg and u = x·Wuᵀ + bu into buffers in x's dtype, h = act(g) ⊙ u into another, and
/// for kMlp y = h·Wdᵀ + bd (+ residual).
///
/// One projection of 2·H rows serves both halves where they are one evenly strided matrix (concat,
/// interleaved) and have no bias, two of H rows otherwise. g and u are rounded to x's dtype between
/// the operators, which the fused operators do not do.
class UnfusedMlp final : public Baseline {
 public:
  /// Plans the operators, allocates g, u, h and the workspace. `pair_offset_bytes` is w_up - w_gate
  /// where both are views of one buffer, 0 where they are separate tensors. `variant` names who
  /// runs the projections where it takes them, so that a forced variant is compared with its own
  /// GEMM; null leaves them to plan().
  /// Errors: kUnsupported for an operator other than kGateUp and kMlp, a norm prologue, saving of g
  /// and u, and row blocks that no plain GEMM describes; those of plan() and the rig.
  static Expected<std::unique_ptr<UnfusedMlp>> make(const Problem& problem,
                                                    std::int64_t pair_offset_bytes, Rig& rig,
                                                    int threads, const char* variant = nullptr);

  [[nodiscard]] std::string name() const override { return "own_unfused"; }
  [[nodiscard]] std::int64_t extra_bytes() const override;
  [[nodiscard]] Run bind(const Operands& operands) override;

  /// Enqueues the operators on `stream`. Writes what the fused operator writes (y, or h of
  /// kGateUp). Errors: those of run().
  Status enqueue(const Operands& operands, Stream stream) const;

 private:
  UnfusedMlp() = default;
  Status plan_all(const Problem& problem, std::int64_t pair_offset_bytes, Rig& rig, int threads,
                  const char* variant);

  Op op_ = Op::kMlp;
  bool merged_ = false;
  bool up_first_ = false;
  std::int64_t second_offset_bytes_ = 0;  ///< from the first half of the merged output to the other
  Plan project_{};
  Plan gate_{};
  Plan down_{};
  RigBuffer g_;  ///< [M, H], or both halves in [M, 2H] where merged
  RigBuffer u_;  ///< [M, H]; empty where merged
  RigBuffer h_;  ///< [M, H]; empty for kGateUp
  RigBuffer workspace_memory_;
  Workspace workspace_{};
};

}  // namespace sluice::harness
