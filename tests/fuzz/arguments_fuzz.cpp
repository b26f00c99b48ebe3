// SPDX-License-Identifier: Apache-2.0
// The arguments of bench and tune, as far as to the problems that they name: lines are words, and a
// slash, which would name a file, ends the text.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "cli/work.hpp"
#include "sluice/operands.hpp"

namespace {

using namespace sluice;

void require(bool holds) {
  if (!holds) std::abort();
}

std::vector<std::string> words_of(std::string text) {
  text.erase(std::min(text.find('/'), text.size()));
  std::istringstream lines(text);
  std::vector<std::string> words;
  for (std::string word; std::getline(lines, word);) words.push_back(word);
  return {words.rbegin(), words.rend()};  // as CLI11 takes them
}

void check_jobs(const cli::WorkArguments& work) {
  const std::vector<std::int64_t> tokens = work.tokens();
  for (const std::int64_t m : tokens) require(m >= 1);
  const auto jobs = cli::jobs_of(work);
  if (!jobs) return require(!jobs.error().text().empty());
  for (const cli::Job& job : *jobs) require(validate(job.test_case.problem).has_value());
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  CLI::App app("fuzz", "fuzz");
  cli::Context context;
  cli::WorkArguments work;
  double seconds = 1;
  std::uint64_t seed = 1;
  cli::add_work_options(app, work);
  cli::add_device_option(app, context);
  cli::add_kernel_options(app, context);
  app.add_option("--seconds", seconds)->check(cli::positive());
  app.add_option("--seed", seed)->check(cli::integer(1, ~std::uint64_t{0}));
  try {
    app.parse(words_of({reinterpret_cast<const char*>(data), size}));
  } catch (const CLI::ParseError& e) {
    require(e.get_exit_code() == 0 || e.what()[0] != '\0');
    return 0;
  }
  require(context.threads >= 0 && seconds > 0 && seed >= 1);
  for (const int tp : work.tp) require(tp >= 1);
  check_jobs(work);
  return 0;
}
