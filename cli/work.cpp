// SPDX-License-Identifier: Apache-2.0
#include "cli/work.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "harness/models.hpp"

namespace sluice::cli {
namespace {

CLI::Validator token_range() {
  return CLI::Validator(
      [](std::string& word) -> std::string {
        if (parse_span(word)) return "";
        return fmt::format("got {}, wanted an integer of at least 1, or a range such as 1-64",
                           word);
      },
      "N or N-N");
}

Status add_text_jobs(const WorkArguments& args, std::vector<Job>& jobs) {
  std::vector<std::string> texts = args.cases;
  if (!args.file.empty()) {
    const auto lines = read_problem_file(args.file);
    if (!lines) return lines.error();
    texts.insert(texts.end(), lines->begin(), lines->end());
  }
  for (const std::string& text : texts) {
    const auto parsed = harness::parse_case(text + (args.dtype.empty() ? "" : ":" + args.dtype));
    if (!parsed) {
      return make_error(ErrorCode::kInvalidArgument, "%s: %s", text.c_str(),
                        parsed.error().message);
    }
    jobs.push_back({*parsed, std::nullopt, 1});
  }
  return {};
}

// The jobs of one model on `tp` GPUs.
Status add_jobs_of(const harness::Model& model, int tp, const WorkArguments& args,
                   std::vector<Job>& jobs) {
  const std::string dtype = args.dtype.empty() ? "bf16" : args.dtype;
  for (const std::int64_t m : args.tokens()) {
    // With tensor parallelism the down bias is added once, by the engine, after the sum.
    const auto parsed = harness::parse_case(fmt::format(
        "{}x{}x{}:{}:{}:{}{}{}", m, model.d, model.h / tp, dtype, model.gate, model.layout,
        model.bias ? ":bias" : "", model.bias && tp == 1 ? ":bias_down" : ""));
    if (!parsed) return parsed.error();
    jobs.push_back({*parsed, model.name, tp});
  }
  return {};
}

bool fits(const harness::Model& model, int tp) {
  return std::find(model.tp.begin(), model.tp.end(), tp) != model.tp.end();
}

Status add_all_models(const WorkArguments& args, std::vector<Job>& jobs) {
  std::vector<Job> all;
  for (const harness::Model& model : harness::models()) {
    for (const int tp : args.tp) {
      if (fits(model, tp)) SLUICE_TRY(add_jobs_of(model, tp, args, all));
    }
  }
  std::set<std::string> known;
  for (const Job& job : all) {
    if (known.insert(harness::format_case(job.test_case)).second) jobs.push_back(job);
  }
  if (!all.empty()) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "tp: got %d, wanted one that fits a model (see `sluice list models`)",
                    args.tp.front());
}

Status add_model_jobs(const WorkArguments& args, std::vector<Job>& jobs) {
  if (is_all_models(args)) return add_all_models(args, jobs);
  for (const std::string& name : args.models) {
    const auto model = harness::find_model(name);
    if (!model) return model.error();
    for (const int tp : args.tp) {
      if (!fits(*model, tp)) {
        return make_error(ErrorCode::kInvalidArgument,
                          "tp: got %d, wanted one that fits %s (see `sluice list models`)", tp,
                          model->name.c_str());
      }
      SLUICE_TRY(add_jobs_of(*model, tp, args, jobs));
    }
  }
  return {};
}

Status check_read(const WorkArguments& args) {
  const bool models = !args.models.empty();
  const auto unread = [](const char* option, const char* wanted) {
    return make_error(ErrorCode::kInvalidArgument, "%s: is read only with %s", option, wanted);
  };
  if (args.tokens_given && !models && args.checkpoint.empty()) {
    return unread("tokens", "--model or --checkpoint; a case names its own");
  }
  for (const std::string& word : args.token_words) {
    const auto span = parse_span(word);
    if (!span) continue;  // the option's own check has told it
    if (const auto numbers = span->numbers(); !numbers) {
      return make_error(ErrorCode::kInvalidArgument, "tokens: %s", numbers.error().message);
    }
  }
  if (args.tp_given && !models) return unread("tp", "--model");
  if (!args.dtype.empty() && !models && args.cases.empty() && args.file.empty()) {
    return unread("dtype", "cases, --file or --model");
  }
  return {};
}

}  // namespace

std::vector<std::int64_t> WorkArguments::tokens() const {
  std::vector<std::int64_t> out;
  for (const std::string& word : token_words) {
    const auto span = parse_span(word);
    if (!span) continue;
    if (const auto numbers = span->numbers()) {
      out.insert(out.end(), numbers->begin(), numbers->end());
    }
  }
  return out;
}

void add_work_options(CLI::App& verb, WorkArguments& args) {
  verb.add_option("case", args.cases, "Problems, such as 128x4096x14336:bf16:silu");
  verb.add_option("--file", args.file, "Problems from a file, one a line, # for comments")
      ->check(named());
  verb.add_option("--model", args.models,
                  "Model presets (see `sluice list models`); all: each of their shapes once")
      ->delimiter(',');
  verb.add_option("--checkpoint", args.checkpoint,
                  "All MLPs of a safetensors file, an index.json or a folder that holds one")
      ->check(named());
  verb.add_option("--tokens", args.token_words,
                  "M, for --model and --checkpoint; also ranges: 1-64,128")
      ->delimiter(',')
      ->check(token_range())
      ->each([&args](const std::string&) { args.tokens_given = true; })
      ->capture_default_str();
  verb.add_option("--dtype", args.dtype, "bf16, fp16, fp32 or x/w/y, added to every problem")
      ->check(named("a type"));
  verb.add_option("--tp", args.tp, "Tensor-parallel sizes of --model: H is divided by each")
      ->delimiter(',')
      ->check(at_least(1))
      ->each([&args](const std::string&) { args.tp_given = true; })
      ->capture_default_str();
}

bool is_all_models(const WorkArguments& args) {
  return args.models == std::vector<std::string>{"all"};
}

Expected<std::vector<Job>> jobs_of(const WorkArguments& args) {
  SLUICE_TRY(check_read(args));
  std::vector<Job> jobs;
  SLUICE_TRY(add_text_jobs(args, jobs));
  SLUICE_TRY(add_model_jobs(args, jobs));
  return jobs;
}

}  // namespace sluice::cli
