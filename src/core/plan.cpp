// SPDX-License-Identifier: Apache-2.0
// plan(): walks the recipes, a forced name or a tuning table first.
#include "sluice/plan.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "core/planner.hpp"

namespace sluice {
namespace detail {
namespace {

bool same(const char* a, const char* b) { return std::strcmp(a, b) == 0; }

Expected<Steps> choose_steps(const Recipe& recipe, const Problem& problem, const Device& device,
                             const char* config) {
  if (config != nullptr) {
    if (const auto found = find_choice(recipe, problem, device, config)) return *found;
  }
  std::array<Steps, 1> first;
  const std::size_t count = choices(recipe, problem, device, first);
  if (count == 0) {
    return make_error(ErrorCode::kInternal, "variant %s: takes the problem but has no config",
                      recipe.name);
  }
  if (config == nullptr) return first[0];
  char text[kMaxConfig];
  config_text(problem.op, first[0], text);
  return make_error(
      ErrorCode::kInvalidArgument,
      "config: got \"%s\", wanted one that %s offers for this problem, such as \"%s\"", config,
      recipe.name, text);
}

// One line for the caller's log, cut at its buffer's end; formats nothing where there is no log.
template <class... Args>
void log(const Options& options, const char* format, Args... args) {
  if (options.log == nullptr) return;
  char line[1280];
  std::snprintf(line, sizeof(line), format, args...);
  options.log->write(line);
}

struct Choice {
  const Recipe* recipe = nullptr;
  Steps steps{};
  ChoiceSource source = ChoiceSource::kHeuristic;
  TuneChoice entry{};  // of a tuned choice
};

int threads_of(const Device& device, const Options& options) {
  return options.threads == 0 ? std::max(1, device.threads) : options.threads;
}

Expected<Choice> forced(const Problem& problem, const Device& device, const Options& options) {
  const Recipe* const recipe = find_recipe(options.variant, device.backend);
  if (recipe == nullptr) {
    return make_error(ErrorCode::kInvalidArgument,
                      "variant: got \"%s\", wanted a variant of the %s backend; explain lists them",
                      options.variant, to_string(device.backend));
  }
  if (const Reason reason = refusal(*recipe, problem, device, options.experimental);
      !reason.empty()) {
    return make_error(ErrorCode::kUnsupported, "variant %s: %s", recipe->name, reason.text);
  }
  auto steps = choose_steps(*recipe, problem, device, options.config);
  if (!steps) return steps.error();
  return Choice{recipe, *steps, ChoiceSource::kForced, {}};
}

// A table's entry that names something unknown or unsupported here is passed over, never trusted.
std::optional<Choice> tuned(const Problem& problem, const Device& device, const Options& options) {
  if (options.tune == nullptr) return std::nullopt;
  Device planned = device;
  planned.threads = threads_of(device, options);
  std::optional<TuneChoice> entry = options.tune->find(problem, planned);
  if (!entry) return std::nullopt;
  entry->variant[sizeof(entry->variant) - 1] = '\0';
  entry->config[sizeof(entry->config) - 1] = '\0';
  const auto passed_over = [&](const char* why) {
    log(options, "tuning table: variant \"%s\", config \"%s\" passed over: %s", entry->variant,
        entry->config, why);
    return std::nullopt;
  };
  const Recipe* const recipe = find_recipe(entry->variant, device.backend);
  if (recipe == nullptr) return passed_over("no such variant");
  if (const Reason reason = refusal(*recipe, problem, device, options.experimental);
      !reason.empty()) {
    return passed_over(reason.text);
  }
  const char* const config = entry->config[0] == '\0' ? nullptr : entry->config;
  const auto steps = choose_steps(*recipe, problem, device, config);
  if (!steps) return passed_over(steps.error().message);
  const bool known =
      entry->source == ChoiceSource::kNearestEntry || entry->source == ChoiceSource::kShippedTable;
  return Choice{recipe, *steps, known ? entry->source : ChoiceSource::kTuneTable, *entry};
}

// The first recipe that takes the problem and is not outrun; with a forced config, the first that
// also offers it.
Expected<Choice> choose(const Problem& problem, const Device& device, const Options& options) {
  if (options.variant != nullptr) return forced(problem, device, options);
  const bool any_config = options.config == nullptr;
  if (any_config) {
    if (const auto choice = tuned(problem, device, options)) return *choice;
  }
  // The last of a backend takes most, so that its reason is what stands in the way.
  const Recipe* outrun = nullptr;
  const Recipe* last = nullptr;
  Reason last_reason;
  std::optional<Error> config_error;
  for (const Recipe& recipe : recipes()) {
    if (recipe.backend != device.backend) continue;
    const Reason reason = refusal(recipe, problem, device, options.experimental);
    if (!reason.empty()) {
      log(options, "%s: %s", recipe.name, reason.text);
      last = &recipe, last_reason = reason;
      continue;
    }
    if (any_config && recipe.outrun != nullptr) {
      if (const Reason slower = recipe.outrun(problem, device); !slower.empty()) {
        log(options, "%s: %s", recipe.name, slower.text);
        outrun = &recipe;
        continue;
      }
    }
    const auto steps = choose_steps(recipe, problem, device, options.config);
    if (steps) {
      return Choice{
          &recipe, *steps, any_config ? ChoiceSource::kHeuristic : ChoiceSource::kForced, {}};
    }
    if (!config_error) config_error = steps.error();
  }
  if (outrun != nullptr) {
    if (const auto steps = choose_steps(*outrun, problem, device, nullptr)) {
      return Choice{outrun, *steps, ChoiceSource::kHeuristic, {}};
    }
  }
  if (config_error) return *config_error;
  if (last == nullptr) {
    return make_error(ErrorCode::kUnsupported, "%s: this Sluice was built without the %s backend",
                      to_string(problem.op), to_string(device.backend));
  }
  return make_error(ErrorCode::kUnsupported, "%s: no variant of the %s backend takes it; %s: %s",
                    to_string(problem.op), to_string(device.backend), last->name, last_reason.text);
}

// Offsets of the parts of scratch, and the workspace's size.
void lay_out(Plan& plan) {
  if (plan.problem.m == 0) return;
  const auto steps = steps_of(plan);
  const auto bytes = scratch_bytes(plan.problem, plan.device, plan.threads, steps);
  std::size_t used = 0;
  const auto place = [&](std::size_t part, std::size_t& offset) {
    offset = used;
    used += (part + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  };
  place(bytes.n, plan.scratch.n);
  place(bytes.r, plan.scratch.r);
  place(bytes.h, plan.scratch.h);
  place(bytes.dg_du, plan.scratch.dg_du);
  place(bytes.kernel, plan.scratch.kernel);
  plan.workspace_bytes = used == 0 ? 0 : kWorkspaceHeaderBytes + used;
  for (const PlannedStep& step : steps) {
    if (step.kernel->peer_bytes == nullptr) continue;
    const Problem q = step_problem(plan.problem, step.role, has_norm_step(steps));
    plan.peer_bytes = step.kernel->peer_bytes({q, plan.device, step.config, plan.threads});
  }
}

}  // namespace

const Recipe* find_recipe(const char* name, Backend backend) noexcept {
  for (const Recipe& recipe : recipes()) {
    if (recipe.backend == backend && same(recipe.name, name)) return &recipe;
  }
  return nullptr;
}

Expected<Plan> make_plan(const Problem& problem, const Device& device, const Options& options,
                         TuneChoice& entry) noexcept {
  SLUICE_TRY(validate(problem));
  SLUICE_TRY(validate(device));
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return make_error(ErrorCode::kInvalidArgument, "threads: got %d, wanted 0 to %d",
                      options.threads, kMaxThreads);
  }
  const auto choice = choose(problem, device, options);
  if (!choice) return choice.error();
  entry = choice->entry;
  Plan plan;
  plan.problem = problem;
  plan.device = device;
  plan.recipe = choice->recipe;
  plan.steps = choice->steps.at;
  plan.step_count = static_cast<int>(choice->steps.count);
  plan.source = choice->source;
  plan.threads = threads_of(device, options);
  plan.executor = options.executor;
  lay_out(plan);
  if (options.log != nullptr) {
    char text[kMaxConfig];
    config_text(problem.op, choice->steps, text);
    log(options, "%s %lldx%lldx%lld: %s, config %s, %s", to_string(problem.op),
        static_cast<long long>(problem.m), static_cast<long long>(problem.d),
        static_cast<long long>(problem.h), plan.recipe->name, text, to_string(plan.source));
  }
  return plan;
}

}  // namespace detail

TuneTable::~TuneTable() = default;
Log::~Log() = default;

const char* Plan::variant_name() const noexcept { return recipe == nullptr ? "" : recipe->name; }

std::string Plan::config_name() const {
  char text[kMaxConfig];
  detail::config_text(problem.op, detail::steps_of(*this), text);
  return text;
}

Expected<Plan> plan(const Problem& problem, const Device& device, const Options& options) noexcept {
  TuneChoice entry;
  return detail::make_plan(problem, device, options, entry);
}

}  // namespace sluice
