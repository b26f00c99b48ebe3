// SPDX-License-Identifier: Apache-2.0
// verify --foreign: somebody else's kernels against the oracle (sluice/foreign.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/cli.hpp"
#include "harness/case.hpp"

namespace sluice::cli {

struct ForeignArguments {
  std::string library;  ///< a path; empty where context.foreign holds the kernels
  bool unfused = false;
  std::string json;
};

/// --foreign, unless context.foreign is set, and what it reads. Returns --foreign or null.
CLI::Option* add_foreign_options(CLI::App& verb, ForeignArguments& args, const Context& context);

/// Checks the cases, or without any the tests' own of every operator that there is a kernel for,
/// with this seed where it is not 0; `file` is where the cases are from, or "". Prints a report for
/// each case (in a list of the tests' own for those that failed or were skipped), and the counts by
/// operator. Returns the exit code.
int verify_foreign(const ForeignArguments& args, std::vector<harness::Case> cases,
                   const std::string& file, std::uint64_t seed, const Context& context);

}  // namespace sluice::cli
