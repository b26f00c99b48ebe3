// SPDX-License-Identifier: Apache-2.0
// What one invocation of bench found: its rows as a table and a file.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/cli.hpp"
#include "harness/case.hpp"
#include "harness/ceilings.hpp"
#include "harness/results.hpp"

namespace sluice::cli {

/// "16x4096x14336:bf16:silu:concat", of a case and of a row of a file.
[[nodiscard]] std::string case_name(const harness::Case& test_case);
[[nodiscard]] std::string case_name(const nlohmann::ordered_json& row);

struct Findings {
  std::vector<harness::Row> rows;
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  bool passed = true;
  bool ended = false;  ///< nothing is left to be measured
  int unsettled = 0;
  std::string json;  ///< the file; empty or - for none
  harness::Meta meta;
  std::string summed_baseline;         ///< whose ratios are summed up; empty for none
  std::vector<std::string> skipped{};  ///< cases that were not measured
  nlohmann::ordered_json kept = nlohmann::ordered_json::array();  ///< rows of other parts,
  std::vector<std::string> kept_skipped{};                        ///< and what these skipped
  std::function<Status(Findings&)> reread{};  ///< sets these from the file; before it is written
  bool is_part = false;                       ///< the file is of several runs
  std::map<std::string, std::size_t>
      places{};  ///< by case_name(): where rows stand among kept ones
  std::chrono::steady_clock::time_point written{};

  /// Writes the file, or standard output.
  Status write();
  /// After every shape; writes once a second, so that who stops a long bench keeps what was
  /// measured.
  Status add(const std::vector<harness::Row>& more, bool right, bool converged);
  /// What there is, in the file. Without a row an old file is worth more, but where a part has come
  /// to its end and skipped all.
  Status keep();
  /// The tables, on standard output.
  void print(const Device& device, const harness::Ceilings& ceilings);

 private:
  [[nodiscard]] nlohmann::ordered_json all_rows() const;
  void summarise(const nlohmann::ordered_json& all);
};

}  // namespace sluice::cli
