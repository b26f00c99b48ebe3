// SPDX-License-Identifier: Apache-2.0
// The work that bench and tune are given: problems, a file of them, or model presets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/cli.hpp"
#include "harness/case.hpp"

namespace sluice::cli {

struct WorkArguments {
  std::vector<std::string> cases;
  std::string file;
  std::vector<std::string> models;
  std::string checkpoint;
  std::vector<std::string> token_words = {"1", "16", "128", "512"};
  bool tokens_given = false;
  std::string dtype;
  std::vector<int> tp = {1};
  bool tp_given = false;

  /// M of models and checkpoints, in the order given.
  [[nodiscard]] std::vector<std::int64_t> tokens() const;
};

/// The options of WorkArguments.
void add_work_options(CLI::App& verb, WorkArguments& args);

/// One case, and what rows say of its model.
struct Job {
  harness::Case test_case;
  std::optional<std::string> model;
  int tp = 1;
  bool regret = false;  ///< of bench: the choice is compared with the best config too
};

/// --model all: what no model of the list fits is left out, and each shape comes once.
[[nodiscard]] bool is_all_models(const WorkArguments& args);

/// Of everything but the checkpoint. Errors: kInvalidArgument for a case, model or tp that is none,
/// and for an option that nothing of the work would read.
[[nodiscard]] Expected<std::vector<Job>> jobs_of(const WorkArguments& args);

}  // namespace sluice::cli
