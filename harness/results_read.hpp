// SPDX-License-Identifier: Apache-2.0
// Reads a results file back, so that a bench in parts ends in one file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "sluice/status.hpp"

namespace sluice::harness {

struct ReadResults {
  nlohmann::ordered_json meta = nlohmann::ordered_json::object();  ///< what describes the run
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();   ///< an object each, in full
};

/// Reads what results_text() wrote; `name` begins every message. Errors: kInvalidArgument where it
/// has not the form.
[[nodiscard]] Expected<ReadResults> read_results(std::string_view text, const std::string& name);

/// The same from a file. Errors: also kInvalidArgument where it cannot be read; the message names
/// it.
[[nodiscard]] Expected<ReadResults> read_results_file(const std::string& path);

}  // namespace sluice::harness
