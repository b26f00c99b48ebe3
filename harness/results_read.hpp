// SPDX-License-Identifier: Apache-2.0
// Reads a results file back, so that a bench in parts ends in one file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "sluice/status.hpp"

namespace sluice::harness {

struct ReadResults {
  nlohmann::ordered_json meta = nlohmann::ordered_json::object();  ///< what describes the run
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();   ///< an object each, in full
};

/// Reads what results_text() wrote. Errors: kInvalidArgument where the file cannot be read or has
/// not the form; the message names it.
[[nodiscard]] Expected<ReadResults> read_results_file(const std::string& path);

}  // namespace sluice::harness
