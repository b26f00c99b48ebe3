// SPDX-License-Identifier: Apache-2.0
// cuBLASLt, found when a program runs: the process's own copy first, then the system's. Programs
// start and everything but the baselines works without it.
#pragma once

#include <cstdint>
#include <memory>

#include "harness/rig.hpp"
#include "sluice/plan.hpp"
#include "sluice/status.hpp"
#include "sluice/types.hpp"

namespace sluice::harness {

/// One product out[M, N] = a[M, K] · b[N, K]ᵀ, row-major, fp32 accumulation; with `b_is_k_by_n`
/// b lies as [K, N], with `a_is_k_by_m` a as [K, M].
struct LtGemm {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  DType dtype = DType::kBF16;  ///< bf16 or fp16, of all three
  std::int64_t a_stride = 0;   ///< elements from row to row
  std::int64_t b_stride = 0;
  std::int64_t out_stride = 0;
  bool b_is_k_by_n = false;
  bool a_is_k_by_m = false;
  bool out_is_fp32 = false;  ///< else of `dtype`
};

/// A product set up once: descriptors, workspace and the algorithm.
class LtPlan {
 public:
  virtual ~LtPlan() = default;
  /// Enqueues it; can be captured. Errors: kDevice with cuBLASLt's code.
  virtual Status run(const void* a, const void* b, void* out, Stream stream) = 0;
};

/// A handle on a rig's device, with a workspace of 32 MiB.
class CublasLt {
 public:
  /// Errors: kUnsupported where the library is not found.
  [[nodiscard]] static Expected<std::unique_ptr<CublasLt>> open(Rig& rig);
  ~CublasLt();

  /// Sets a product up and chooses the fastest of the first eight algorithms that the library's
  /// heuristic offers, by timing each on these operands (`out` is overwritten). Synchronises.
  [[nodiscard]] Expected<std::unique_ptr<LtPlan>> plan(const LtGemm& gemm, const void* a,
                                                       const void* b, void* out);

  [[nodiscard]] static std::int64_t workspace_bytes() noexcept;

 private:
  struct State;
  explicit CublasLt(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sluice::harness
