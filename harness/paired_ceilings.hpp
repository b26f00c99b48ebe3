// SPDX-License-Identifier: Apache-2.0
// Shares of a CPU's ceilings from paired samples. Memory bandwidth and clock of a shared host
// change by the second, so a ceiling measured once says little about a kernel timed a minute later.
// Here the loops behind the ceilings take turns with the kernel, and each of its samples is
// compared with theirs of the same round.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "harness/cpu_loops.hpp"
#include "harness/timer.hpp"

namespace sluice::harness {

/// Medians over the rounds.
struct CeilingShares {
  std::optional<double> read;  ///< bytes over time over the better of one and four streams
  std::optional<double> fma;   ///< FLOPs over time over the fp32 FMA peak, whatever the kernel uses
};

class PairedCeilings {
 public:
  /// Errors: those of CpuLoops.
  [[nodiscard]] static Expected<PairedCeilings> make(const Device& device, int threads, bool quick);

  /// To be timed beside the kernel, behind all other candidates. They do not prolong the sampling.
  void append_to(std::vector<Candidate>& candidates) const;

  /// What time_interleaved() gave for the candidates: the kernel's first, those of append_to()
  /// last. `bytes` and `flops` are those of one run of the kernel.
  [[nodiscard]] CeilingShares shares(std::span<const Timing> timings, double bytes,
                                     double flops) const;

 private:
  explicit PairedCeilings(std::unique_ptr<CpuLoops> loops) : loops_(std::move(loops)) {}
  std::unique_ptr<CpuLoops> loops_;
  double fma_flops_ = 0;  // of one run
};

}  // namespace sluice::harness
