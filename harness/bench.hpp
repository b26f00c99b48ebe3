// SPDX-License-Identifier: Apache-2.0
// Benchmarks of the library: check the result once, then time the operator beside its baselines on
// operands that rotate beyond the caches, and say it in rows of the results file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/baseline.hpp"
#include "harness/case.hpp"
#include "harness/ceilings.hpp"
#include "harness/paired_ceilings.hpp"
#include "harness/results.hpp"
#include "harness/rig.hpp"
#include "harness/timer.hpp"
#include "harness/verify.hpp"

namespace sluice::harness {

/// What is timed: the forward operator; of training its gradient, or both one after the other; the
/// forward operator as in a decode step of an engine, behind a small kernel that writes x (GPU).
enum class Pass : std::uint8_t { kForward, kBackward, kFull, kDecode };

struct BenchOptions {
  Options plan{};  ///< of the operator under test; own_unfused follows its variant
  TimerOptions timer{};
  VerifyOptions verify{};
  bool check = true;  ///< verify before timing; without it rows have no rel_err
  Pass pass = Pass::kForward;
  std::size_t copies = 0;                  ///< of the weights, and runs of a pass; 0: timing.hpp
  const PairedCeilings* paired = nullptr;  ///< timed in turn with the cases; null for none
  std::optional<std::string> model;        ///< for the rows
  int tp = 1;                              ///< for the rows
  std::vector<std::string> baselines{};    ///< names of those to time; empty for all there are
  /// Told what is being done, for a progress line; may be empty.
  std::function<void(const std::string&)> progress;
};

/// What bench_case() found.
struct CaseBench {
  std::vector<Row> rows;             ///< one a baseline, one without where there is none
  std::vector<VerifyReport> checks;  ///< of every operator timed
  bool converged = true;             ///< false where the time cap came before the noise goal
  [[nodiscard]] bool passed() const noexcept;
};

/// Checks a case against the oracle and, where it passes or is not to be checked, times it. With
/// Pass::kBackward and kFull a kMlp case stands for its training pair: kMlp that saves g and u, and
/// kMlpGrad. With Pass::kDecode a time runs from the small kernel's end to the operator's: that of
/// both less that of the kernel alone, a chain of each.
/// Errors: those of plan(), run() and the rig; kInvalidArgument for a pass that the case's operator
/// does not have, or m = 0; kUnsupported for kDecode without a GPU. A wrong result is no error:
/// rows is empty and passed() false.
[[nodiscard]] Expected<CaseBench> bench_case(const Case& test_case, Rig& rig,
                                             const Ceilings& ceilings, const BenchOptions& options);

/// The rivals of a case on a rig: the library's own unfused path, and on a GPU what
/// make_cuda_baselines() finds. A rival that does not take the case is left out.
[[nodiscard]] Expected<std::vector<std::unique_ptr<Baseline>>> make_baselines(
    const Case& test_case, Rig& rig, const Options& forced);

/// The names that these may have: the words of row_baselines() that this program itself times.
[[nodiscard]] std::span<const char* const> timed_baselines();

/// w_up - w_gate in bytes for weights that share a buffer, below 0 where up comes first; else 0.
[[nodiscard]] std::int64_t signed_pair_offset(const Case& test_case);

/// "silu", "clamped_swiglu", "silu(alpha=1.7)": the gate as the grammar spells it.
[[nodiscard]] std::string gate_text(const Gate& gate);
/// "separate", "concat", "interleaved8+up_first": the placement as the grammar spells it.
[[nodiscard]] std::string layout_text(const Case& test_case);
/// "bf16", or "fp32/bf16/fp32" where x, weights and y differ.
[[nodiscard]] std::string dtype_text(const Problem& problem);

/// The fields of a row that follow from a problem, a plan and the candidate's timing; baseline
/// fields are left empty.
[[nodiscard]] Row make_row(const Case& test_case, const Plan& plan, const Timing& timing,
                           const Ceilings& ceilings);

/// Fills the shares of paired ceilings, where there are any, from the timings of a case.
void set_shares(Row& row, const PairedCeilings* paired, std::span<const Timing> timings,
                double bytes, double flops);

/// Fills the baseline's fields and the ratio.
void set_baseline(Row& row, const std::string& name, std::int64_t extra_bytes,
                  const Timing& timing);

/// Bytes of all operands of a problem, weights of one layer included.
[[nodiscard]] std::int64_t operand_bytes(const Problem& problem);
/// Of those, the bytes that each copy of a forward pass has of its own (timing::rotates()).
[[nodiscard]] std::int64_t rotating_bytes(const Problem& problem);

}  // namespace sluice::harness
