// SPDX-License-Identifier: Apache-2.0
// Verification: plan, run, compare with the oracle, look for stray writes, run again for the same
// bits. What `sluice verify`, the property tests and the benchmarks' check all call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/case.hpp"
#include "harness/compare.hpp"
#include "harness/data.hpp"
#include "harness/rig.hpp"
#include "sluice/plan.hpp"

namespace sluice::harness {

struct VerifyOptions {
  /// Outputs of at most this many elements are compared whole, if that costs no more than
  /// max_operations.
  std::int64_t max_elements = 1 << 16;
  /// About the most multiplications that the oracle may do for one case.
  double max_operations = 2e9;
  /// Rows sampled of a larger output: first, last and random ones.
  std::int64_t max_rows = 4;
  /// Run a second time and compare bits; outputs where NaN may be right are run twice in any case.
  bool repeat = true;
  /// Which roundings the oracle allows.
  Rounds rounds = Rounds::kFused;
};

struct VerifyReport {
  Case test_case{};
  std::string variant;
  std::string config;
  ChoiceSource source = ChoiceSource::kHeuristic;
  int threads = 1;
  std::size_t workspace_bytes = 0;
  std::vector<Comparison> outputs;
  std::string stray_write;  ///< what check_canaries() found; empty where nothing
  std::string unrepeated;   ///< the output whose bits changed on the second run, which starts from
                            ///< another poison; empty where none

  [[nodiscard]] bool passed() const noexcept;
  /// As passed(), but an output may be mistrusted: for random cases, some of which are all zeros.
  [[nodiscard]] bool right() const noexcept;
  /// Several lines: verdict, variant, one line for each output, the repro line where it failed.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string repro() const { return repro_line(test_case, variant, config); }
};

/// An element that is compared, and what it should be.
struct ExpectedElement {
  std::int64_t row = 0;
  std::int64_t col = 0;
  OracleValue value{};
};

/// The compared elements of one output.
struct ExpectedOutput {
  Operand operand = Operand::kY;
  std::vector<ExpectedElement> elements;
};

/// What one output of a problem should be, on the elements that are sampled: whole lines and, of
/// large outputs, scattered ones. `budget` is what the oracle may multiply for it.
[[nodiscard]] ExpectedOutput expected_output(const Problem& problem, const OperandSpec& spec,
                                             std::uint64_t seed, Oracle& oracle,
                                             const VerifyOptions& options, double budget);

/// What the outputs of `set` should be, by the oracle, on the elements that `verify` samples.
/// Empty where m = 0: run() then launches nothing.
[[nodiscard]] Expected<std::vector<ExpectedOutput>> expected_outputs(
    OperandSet& set, const VerifyOptions& verify = {});

/// The comparison alone: every output of `set`, as it is now.
[[nodiscard]] Expected<std::vector<Comparison>> compare_outputs(
    OperandSet& set, const std::vector<ExpectedOutput>& expected);

/// As above, against an oracle of its own.
[[nodiscard]] Expected<std::vector<Comparison>> compare_outputs(OperandSet& set,
                                                                const VerifyOptions& verify = {});

/// The bytes of each output, gaps of rows included.
using OutputBits = std::vector<std::vector<char>>;
[[nodiscard]] Expected<OutputBits> output_bits(OperandSet& set);

/// The first output with an element of other bits than `before`; empty where there is none.
[[nodiscard]] Expected<std::string> changed_output(OperandSet& set, const OutputBits& before);

/// One case on a rig, verified by any number of variants and configs: its operands are filled and
/// the oracle is asked once, when the first plan has been made.
class Verification {
 public:
  Verification(const Case& c, Rig& rig, const VerifyOptions& verify = {})
      : case_(c), rig_(rig), verify_(verify) {}

  /// Errors are those of plan(), run() and the rig; a wrong result is no error but a report that
  /// did not pass. A case with m = 0 passes with no output compared.
  [[nodiscard]] Expected<VerifyReport> run(const Options& options = {});

 private:
  Case case_;
  Rig& rig_;
  VerifyOptions verify_;
  std::unique_ptr<OperandSet> set_;  // null before the first run, and after one that spoilt it
  std::vector<ExpectedOutput> expected_;
};

/// One run of a Verification.
[[nodiscard]] inline Expected<VerifyReport> verify_case(const Case& c, Rig& rig,
                                                        const Options& options = {},
                                                        const VerifyOptions& verify = {}) {
  return Verification(c, rig, verify).run(options);
}

/// A workspace for a plan on a rig: header zeroed by workspace_init(), payload poisoned.
struct RigWorkspace {
  RigBuffer buffer;
  Workspace workspace{};
};
[[nodiscard]] Expected<RigWorkspace> make_workspace(const Plan& plan, Rig& rig);

/// Did a run write behind the workspace's end? kInternal if so.
Status check_workspace(const RigWorkspace& memory, Rig& rig);

}  // namespace sluice::harness
