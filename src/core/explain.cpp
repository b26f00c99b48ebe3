// SPDX-License-Identifier: Apache-2.0
// explain(), and the names of what can be forced: plan()'s choice in words.
#include <array>
#include <cstdio>
#include <memory>
#include <span>

#include "core/planner.hpp"

namespace sluice {
namespace {

using detail::Recipe;

// "measured for 16x4096x14336: 82.3 us, untuned 90.1 us", as far as the table says.
std::string entry_text(const TuneChoice& entry) {
  if (entry.m == 0 || entry.us <= 0) return {};
  char text[160];
  const int size = std::snprintf(text, sizeof(text), "measured for %lldx%lldx%lld: %.4g us",
                                 static_cast<long long>(entry.m), static_cast<long long>(entry.d),
                                 static_cast<long long>(entry.h), entry.us);
  if (entry.untuned_us > 0 && size > 0) {
    std::snprintf(text + size, sizeof(text) - static_cast<std::size_t>(size), ", untuned %.4g us",
                  entry.untuned_us);
  }
  return text;
}

std::vector<ExplainedStep> explained_steps(const Plan& plan) {
  std::vector<ExplainedStep> out;
  const auto steps = detail::steps_of(plan);
  const bool norm_step = detail::has_norm_step(steps);
  for (const PlannedStep& step : steps) {
    const Problem q = detail::step_problem(plan.problem, step.role, norm_step);
    char config[kMaxName];
    // With no tokens there is nothing to cut.
    out.push_back(
        {detail::name_of(step.role, plan.problem.op), step.kernel->name,
         std::string(detail::word_of(step, config)),
         detail::passed_over(*plan.recipe, plan.problem, plan.device, step, norm_step),
         q.m == 0 ? "" : step.kernel->describe({q, plan.device, step.config, plan.threads})});
  }
  return out;
}

}  // namespace

Explanation explain(const Problem& problem, const Device& device, const Options& options) {
  Explanation out;
  TuneChoice entry;
  const auto made = detail::make_plan(problem, device, options, entry);
  if (made) {
    out.config = made->config_name();
    out.reason = made->recipe->reason;
    out.source = made->source;
    out.entry = entry_text(entry);
    out.steps = explained_steps(*made);
  } else {
    out.error = made.error();
    if (!validate(problem) || !validate(device)) return out;
  }
  bool before = made.has_value() && made->source == ChoiceSource::kHeuristic;
  for (const Recipe& recipe : detail::recipes()) {
    if (recipe.backend != device.backend) continue;
    const detail::Reason reason = detail::refusal(recipe, problem, device, options.experimental);
    const bool chosen = made.has_value() && made->recipe == &recipe;
    out.variants.push_back({recipe.name, reason.text, chosen});
    before = before && !chosen;
    if (before && reason.empty() && recipe.outrun != nullptr) {
      out.reason +=
          std::string("; not by ") + recipe.name + ": " + recipe.outrun(problem, device).text;
    }
  }
  return out;
}

std::vector<std::string> variant_names(Backend backend) {
  std::vector<std::string> names;
  for (const Recipe& recipe : detail::recipes()) {
    if (recipe.backend == backend) names.emplace_back(recipe.name);
  }
  return names;
}

std::vector<std::string> config_names(const char* variant, const Problem& problem,
                                      const Device& device) {
  std::vector<std::string> names;
  const Recipe* const recipe = detail::find_recipe(variant, device.backend);
  if (recipe == nullptr || !validate(problem) || !validate(device) ||
      !detail::refusal(*recipe, problem, device, true).empty()) {
    return names;
  }
  const auto all = std::make_unique<std::array<detail::Steps, detail::kMaxChoices>>();
  const std::size_t count = std::min(all->size(), detail::choices(*recipe, problem, device, *all));
  for (std::size_t i = 0; i < count; ++i) {
    char text[kMaxConfig];
    detail::config_text(problem.op, (*all)[i], text);
    names.emplace_back(text);
  }
  return names;
}

Expected<std::vector<Plan>> candidates(const Problem& problem, const Device& device,
                                       const Options& options) {
  const auto own = plan(problem, device, options);
  if (!own) return own.error();
  std::vector<Plan> out = {*own};
  for (const Recipe& recipe : detail::recipes()) {
    if (recipe.backend != device.backend || recipe.for_checking) continue;
    if (recipe.experimental && !options.experimental) continue;
    for (const std::string& config : config_names(recipe.name, problem, device)) {
      if (own->recipe == &recipe && own->config_name() == config) continue;
      Options forced = options;
      forced.variant = recipe.name;
      forced.config = config.c_str();
      const auto made = plan(problem, device, forced);
      if (!made) return made.error();
      out.push_back(*made);
    }
  }
  return out;
}

}  // namespace sluice
