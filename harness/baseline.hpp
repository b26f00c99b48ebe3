// SPDX-License-Identifier: Apache-2.0
// Baseline: another way to compute what an operator computes, timed beside it in the same run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/case.hpp"
#include "harness/timer.hpp"
#include "sluice/operands.hpp"

namespace sluice::harness {

class Rig;

/// One rival, set up for one case: buffers of its own and handles are made with it, never in a run.
class Baseline {
 public:
  virtual ~Baseline() = default;
  Baseline() = default;
  Baseline(const Baseline&) = delete;
  Baseline& operator=(const Baseline&) = delete;

  /// One of row_baselines() in results.hpp: "own_unfused", "cublaslt+act", …
  [[nodiscard]] virtual std::string name() const = 0;

  /// Device bytes it needs beyond the operands: buffers of intermediates and workspaces.
  [[nodiscard]] virtual std::int64_t extra_bytes() const = 0;

  /// A run on these operands of the case; writes the same outputs as the operator, unless it is a
  /// ceiling (cublaslt_gemm). The Run must not outlive the baseline.
  [[nodiscard]] virtual Run bind(const Operands& operands) = 0;
};

#if defined(SLUICE_WITH_CUDA)
/// The rivals of a CUDA rig for a case, none where none fits; in harness/cuda/baselines.cpp.
/// Errors: those of the device. A missing vendor library is no error but an empty list.
Expected<std::vector<std::unique_ptr<Baseline>>> make_cuda_baselines(const Case& test_case,
                                                                     Rig& rig);
#endif

}  // namespace sluice::harness
