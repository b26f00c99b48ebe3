// SPDX-License-Identifier: Apache-2.0
#include "cli/random.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "harness/bench.hpp"
#include "harness/random_cases.hpp"
#include "harness/results_read.hpp"

namespace sluice::cli {
namespace {

using nlohmann::ordered_json;

// Of --random: a thousand take hours.
constexpr std::uint64_t kMostShapes = 100'000;
// --regret is measured on every so many shapes.
constexpr std::size_t kRegretStep = 5;

// Shapes whose index leaves `index` over `count`.
struct Part {
  std::size_t index = 0;
  std::size_t count = 1;
  [[nodiscard]] bool has(std::size_t shape) const { return shape % count == index; }
};

// "2/3"; nothing where it is none.
std::optional<Part> parse_part(const std::string& text) {
  std::size_t number = 0;
  Part part;
  const char* const stop = text.data() + text.size();
  auto read = std::from_chars(text.data(), stop, number);
  if (read.ec != std::errc{} || read.ptr == stop || *read.ptr != '/') return std::nullopt;
  read = std::from_chars(read.ptr + 1, stop, part.count);
  if (read.ec != std::errc{} || read.ptr != stop || number < 1 || number > part.count) {
    return std::nullopt;
  }
  part.index = number - 1;
  return part;
}

Part part_of(const RandomArguments& args) { return parse_part(args.part).value_or(Part{}); }

CLI::Validator part_text() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (parse_part(text)) return "";
        return fmt::format("got {}, wanted I/N with I from 1 to N", text);
      },
      "I/N");
}

Error apart(const std::string& option, const std::string& other) {
  return make_error(ErrorCode::kInvalidArgument, "bench: %s and %s do not go together",
                    option.c_str(), other.c_str());
}

Expected<harness::TokenRange> token_range(const WorkArguments& work) {
  if (!work.tokens_given) return harness::TokenRange{};
  const auto range = parse_span(work.token_words.front());
  if (work.token_words.size() != 1 || !range || range->last > harness::kMostRandomTokens) {
    return make_error(ErrorCode::kInvalidArgument,
                      "bench: --random takes one range of --tokens, to %lld at the most",
                      static_cast<long long>(harness::kMostRandomTokens));
  }
  return harness::TokenRange{range->first, range->last};
}

// A file that this draw, on this device and from these sources, may be added to.
Status check_same_run(const ordered_json& meta, const Findings& found) {
  const ordered_json mine = harness::to_json(found.meta);
  for (const char* field : {"device", "commit", "max_simd", "fingerprints"}) {
    if (meta.contains(field) && meta[field] == mine[field]) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "%s: holds parts of another %s; name another --json for this --part",
                      found.json.c_str(), field);
  }
  return {};
}

// A command's options with their values, in order of the alphabet, without those that each part has
// its own of.
std::vector<std::string> options_of_any_part(const std::string& command) {
  constexpr std::string_view kOwn[] = {"--part",         "--json",  "--memory",
                                       "--milliseconds", "--quiet", "--device"};
  std::vector<std::string> options;
  std::istringstream stream(command);
  for (std::string word; stream >> word;) {
    if (word.starts_with("SLUICE_DEVICE=")) continue;
    if (word == "-q") word = "--quiet";
    std::replace(word.begin(), word.end(), '=', ' ');
    if (word.starts_with("-") || options.empty()) {
      options.push_back(word);
    } else {
      options.back() += " " + word;
    }
  }
  std::erase_if(options, [&](const std::string& option) {
    return std::ranges::find(kOwn, option.substr(0, option.find(' '))) != std::end(kOwn);
  });
  std::ranges::sort(options);
  return options;
}

// Threads, baselines, a forced variant: what rows alone do not tell.
Status check_same_options(const ordered_json& meta, const Findings& found) {
  const std::string theirs = meta.at("command");
  if (options_of_any_part(theirs) == options_of_any_part(found.meta.command)) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "%s: holds parts by \"%s\"; name another --json for other options",
                    found.json.c_str(), theirs.c_str());
}

}  // namespace

void add_random_options(CLI::App& verb, RandomArguments& args) {
  verb.add_option("--random", args.count,
                  "So many random mlp shapes, and what their ratios come to together; "
                  "--tokens gives the range of M, 1-16384 without")
      ->check(integer(1, kMostShapes));
  args.options = {
      verb.add_option("--seed", args.seed, "Of --random: another seed, other shapes")
          ->check(integer(0, std::numeric_limits<std::uint64_t>::max()))
          ->capture_default_str(),
      verb.add_option("--part", args.part,
                      "Of --random: shapes I, I + N, ... alone; --json keeps those of other parts")
          ->check(part_text()),
      verb.add_flag("--regret", args.regret,
                    "Of --random: on every fifth shape also the choice against the best config"),
      verb.add_flag("--samples", args.samples,
                    "Of --regret: also the sample of every config, for fits of the choice"),
      verb.add_option("--op", args.op, "Of --random: mlp, or gate_up alone")
          ->check(CLI::IsMember({"mlp", "gate_up"}))
          ->capture_default_str(),
      verb.add_option("--memory", args.memory_mib,
                      "Of --random: MiB that a shape's operands may take, larger ones are skipped; "
                      "0 for what is free")
          ->check(integer(0, std::numeric_limits<std::int64_t>::max() >> 20))};
}

Status check_random(const RandomArguments& args, const WorkArguments& work, const std::string& pass,
                    const std::vector<std::string>& baselines, const Context& context) {
  if (args.count == 0) {
    for (const CLI::Option* option : args.options) {
      if (option->count() == 0) continue;
      return make_error(ErrorCode::kInvalidArgument, "bench: %s is read only with --random",
                        option->get_name().c_str());
    }
    return {};
  }
  if (!work.cases.empty()) return apart("--random", "a case");
  if (!work.file.empty()) return apart("--random", "--file");
  if (!work.models.empty()) return apart("--random", "--model");
  if (!work.checkpoint.empty()) return apart("--random", "--checkpoint");
  if (work.tp_given) return apart("--random", "--tp");
  if (part_of(args).index >= static_cast<std::size_t>(args.count)) {
    return apart(fmt::format("--random {}", args.count), "--part " + args.part);
  }
  if (pass != "fwd" && pass != "decode") return apart("--random", "--pass " + pass);
  if (baselines.size() > 1) return apart("--random", "more than one --baseline");
  if (args.samples && !args.regret) {
    return make_error(ErrorCode::kInvalidArgument, "bench: --samples is read only with --regret");
  }
  if (args.regret && !context.variant.empty()) return apart("--regret", "--variant");
  if (args.regret && !context.config.empty()) return apart("--regret", "--config");
  return token_range(work) ? Status{} : token_range(work).error();
}

Expected<std::vector<Job>> draw_jobs(const RandomArguments& args, const WorkArguments& work) {
  const auto tokens = token_range(work);
  if (!tokens) return tokens.error();
  std::vector<Job> draw;
  std::set<std::string> drawn;  // a shape that comes again would be two rows of one name
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.count); ++i) {
    const std::string text = harness::random_case(args.seed, i, *tokens);
    const auto parsed = harness::parse_case(text + (args.op == "mlp" ? "" : ":" + args.op) +
                                            (work.dtype.empty() ? "" : ":" + work.dtype));
    if (!parsed) return parsed.error();
    if (!drawn.insert(case_name(*parsed)).second) continue;
    draw.push_back({*parsed, std::nullopt, 1, args.regret && i % kRegretStep == 0});
  }
  return draw;
}

Status keep_other_parts(const RandomArguments& args, const std::string& pass,
                        const std::vector<Job>& draw, Findings& found) try {
  const Part part = part_of(args);
  found.kept = ordered_json::array();
  found.kept_skipped.clear();
  found.is_part = part.count > 1;
  std::error_code error;
  if (part.count == 1 || !std::filesystem::is_regular_file(found.json, error)) return {};
  const auto file = harness::read_results_file(found.json);
  if (!file) return file.error();
  SLUICE_TRY(check_same_run(file->meta, found));
  for (std::size_t i = 0; i < draw.size(); ++i) {
    found.places.emplace(case_name(draw[i].test_case), i);
  }
  for (const ordered_json& row : file->rows) {
    const auto place = found.places.find(case_name(row));
    if (place == found.places.end() || row.at("op") != args.op || row.at("pass") != pass) {
      return make_error(ErrorCode::kInvalidArgument,
                        "%s: holds %s:%s (%s), which is none of this --random; name another --json",
                        found.json.c_str(), case_name(row).c_str(),
                        row.at("op").get<std::string>().c_str(),
                        row.at("pass").get<std::string>().c_str());
    }
    if (!part.has(place->second)) found.kept.push_back(row);
  }
  SLUICE_TRY(check_same_options(file->meta, found));
  if (!file->meta.contains("skipped")) return {};
  std::istringstream skipped(file->meta["skipped"].get<std::string>());
  for (std::string name; skipped >> name;) {
    const auto place = found.places.find(name);
    if (place != found.places.end() && !part.has(place->second)) {
      found.kept_skipped.push_back(name);
    }
  }
  return {};
} catch (const nlohmann::json::exception& e) {  // a field of another type
  return make_error(ErrorCode::kInvalidArgument, "%s: no results file: %s", found.json.c_str(),
                    e.what());
}

std::vector<Job> take_part(const RandomArguments& args, const std::vector<Job>& draw,
                           std::int64_t free_bytes, Findings& found) {
  const std::int64_t most = args.memory_mib > 0 ? args.memory_mib << 20 : free_bytes;
  const Part part = part_of(args);
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < draw.size(); ++i) {
    if (!part.has(i)) continue;
    if (harness::operand_bytes(draw[i].test_case.problem) > most) {
      found.skipped.push_back(case_name(draw[i].test_case));
    } else {
      jobs.push_back(draw[i]);
    }
  }
  return jobs;
}

}  // namespace sluice::cli
