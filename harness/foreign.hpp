// SPDX-License-Identifier: Apache-2.0
// Foreign kernels: somebody else's operators through sluice/foreign.h, on the same operands,
// against the same oracle and bounds as the library's own. What `sluice verify --foreign` calls.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "harness/verify.hpp"
#include "sluice/foreign.h"

namespace sluice::harness {

/// What somebody else computes: a function for each operator, null for those that it lacks.
struct ForeignKernels {
  std::array<sluice_foreign_function*, kOpCount> functions{};

  [[nodiscard]] sluice_foreign_function* find(Op op) const noexcept {
    return functions[static_cast<std::size_t>(op)];
  }
};

/// Loads a library for the rest of the process: its threads and its runtimes' (OpenMP's, CUDA's)
/// may outlive the last call, so unloading it could crash. Errors: kInvalidArgument naming the path
/// and what is wrong: no such file, what the loader says, no sluice_foreign_version, another
/// version, no operator.
[[nodiscard]] Expected<ForeignKernels> open_foreign(const std::string& path);

struct ForeignReport {
  Case test_case{};
  std::string skipped;              ///< why the library does not take the case; empty where it does
  std::string error;                ///< what the function said went wrong; empty where nothing
  std::vector<Comparison> outputs;  ///< of the first call, of the second where that alone failed
  std::string stray_write;          ///< what check_canaries() found; empty where nothing
  std::string changed;  ///< the output whose bits changed on the second call: no failure, since
                        ///< sums by atomics are right too; empty where none

  [[nodiscard]] bool passed() const noexcept;
  /// As passed(), but an output may be mistrusted, as special values of the tests' own cases make
  /// it.
  [[nodiscard]] bool right() const noexcept;
  /// Verdict and findings, a line each; `command` repeats the case once its text is added.
  [[nodiscard]] std::string text(const std::string& command) const;
};

/// Calls the function twice, with outputs that start as NaN and as zeros: each call must give what
/// the oracle says and write nothing else. Errors: those of the rig; kInternal where the device
/// failed after a call.
[[nodiscard]] Expected<ForeignReport> verify_foreign(const Case& c, Rig& rig,
                                                     const ForeignKernels& kernels,
                                                     const VerifyOptions& verify = {});

}  // namespace sluice::harness
