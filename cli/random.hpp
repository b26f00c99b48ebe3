// SPDX-License-Identifier: Apache-2.0
// bench --random: shapes that nobody chose, in parts that end in one file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/findings.hpp"
#include "cli/work.hpp"

namespace sluice::cli {

struct RandomArguments {
  std::int64_t count = 0;  ///< 0 for no random shapes
  std::uint64_t seed = 1;
  std::string part = "1/1";
  std::string op = "mlp";  ///< or "gate_up"
  bool regret = false;
  bool samples = false;
  std::int64_t memory_mib = 0;              ///< 0 for what is free
  std::vector<const CLI::Option*> options;  ///< those above but the first
};

/// --random and what it reads.
void add_random_options(CLI::App& verb, RandomArguments& args);

/// Refuses options that make no sense together. Errors: kInvalidArgument naming both.
Status check_random(const RandomArguments& args, const WorkArguments& work, const std::string& pass,
                    const std::vector<std::string>& baselines, const Context& context);

/// The whole draw, in order; Job::regret is set as asked. Errors: kInvalidArgument for --tokens or
/// --dtype that fit no shape.
Expected<std::vector<Job>> draw_jobs(const RandomArguments& args, const WorkArguments& work);

/// Makes `found` keep what other parts of `draw` left in its file, where there is one. Errors:
/// kInvalidArgument for a file of another draw, operator, pass, device, SIMD target or commit.
Status keep_other_parts(const RandomArguments& args, const std::string& pass,
                        const std::vector<Job>& draw, Findings& found);

/// The jobs of --part whose operands fit in `free_bytes` or --memory; the others are listed as
/// skipped.
std::vector<Job> take_part(const RandomArguments& args, const std::vector<Job>& draw,
                           std::int64_t free_bytes, Findings& found);

}  // namespace sluice::cli
