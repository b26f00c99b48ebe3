// SPDX-License-Identifier: Apache-2.0
// plan() and explain(): walk the variant table, forced name or tuning table first.
#include "sluice/plan.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "core/variant.hpp"

namespace sluice {
namespace {

using detail::Reason;
using detail::Variant;

bool same(const char* a, const char* b) { return std::strcmp(a, b) == 0; }

const Variant* find_variant(const char* name, Backend backend) {
  for (const Variant& v : detail::variants()) {
    if (v.backend == backend && same(v.name, name)) return &v;
  }
  return nullptr;
}

Reason refusal(const Variant& v, const Problem& problem, const Device& device) {
  if (v.backend != device.backend) {
    return detail::refuse("runs on %s, the device is a %s", to_string(v.backend),
                          to_string(device.backend));
  }
  return v.supports(problem, device);
}

Expected<Config> choose_config(const Variant& v, const Problem& problem, const Device& device,
                               const char* name) {
  std::array<Config, detail::kMaxConfigs> configs;
  const std::size_t count = std::min(configs.size(), v.configs(problem, device, configs));
  for (std::size_t i = 0; i < count; ++i) {
    if (name == nullptr || same(configs[i].name, name)) return configs[i];
  }
  if (count == 0) {
    return make_error(ErrorCode::kInternal, "variant %s: supports the problem but has no config",
                      v.name);
  }
  return make_error(
      ErrorCode::kInvalidArgument,
      "config: got \"%s\", wanted one that %s offers for this problem, such as \"%s\"", name,
      v.name, configs[0].name);
}

// One line for the caller's log, cut at its buffer's end; formats nothing where there is no log.
template <class... Args>
void log(const Options& options, const char* format, Args... args) {
  if (options.log == nullptr) return;
  char line[768];
  std::snprintf(line, sizeof(line), format, args...);
  options.log->write(line);
}

struct Choice {
  const Variant* variant = nullptr;
  Config config{};
  ChoiceSource source = ChoiceSource::kHeuristic;
  TuneChoice entry{};  // of a tuned choice
};

int threads_of(const Device& device, const Options& options) {
  return options.threads == 0 ? std::max(1, device.threads) : options.threads;
}

Expected<Choice> forced(const Problem& problem, const Device& device, const Options& options) {
  const Variant* v = find_variant(options.variant, device.backend);
  if (v == nullptr) {
    return make_error(ErrorCode::kInvalidArgument,
                      "variant: got \"%s\", wanted a variant of the %s backend; explain lists them",
                      options.variant, to_string(device.backend));
  }
  if (const Reason reason = refusal(*v, problem, device); !reason.empty()) {
    return make_error(ErrorCode::kUnsupported, "variant %s: %s", v->name, reason.text);
  }
  auto config = choose_config(*v, problem, device, options.config);
  if (!config) return config.error();
  return Choice{v, *config, ChoiceSource::kForced, {}};
}

// A table's entry that names something unknown or unsupported here is passed over, never trusted.
std::optional<Choice> tuned(const Problem& problem, const Device& device, const Options& options) {
  if (options.tune == nullptr) return std::nullopt;
  Device planned = device;
  planned.threads = threads_of(device, options);
  std::optional<TuneChoice> entry = options.tune->find(problem, planned);
  if (!entry) return std::nullopt;
  entry->variant[kMaxName - 1] = '\0';
  entry->config[kMaxName - 1] = '\0';
  const Variant* v = find_variant(entry->variant, device.backend);
  const auto passed_over = [&](const char* why) {
    log(options, "tuning table: variant \"%s\", config \"%s\" passed over: %s", entry->variant,
        entry->config, why);
    return std::nullopt;
  };
  if (v == nullptr) return passed_over("no such variant");
  if (const Reason reason = refusal(*v, problem, device); !reason.empty()) {
    return passed_over(reason.text);
  }
  const char* const name = entry->config[0] == '\0' ? nullptr : entry->config;
  const auto config = choose_config(*v, problem, device, name);
  if (!config) return passed_over(config.error().message);
  const bool known =
      entry->source == ChoiceSource::kNearestEntry || entry->source == ChoiceSource::kShippedTable;
  return Choice{v, *config, known ? entry->source : ChoiceSource::kTuneTable, *entry};
}

Reason yielding(const Variant& v, const Problem& problem, const Device& device) {
  return v.yields == nullptr ? Reason{} : v.yields(problem, device);
}

// The first variant that takes the problem and yields to no other, else the first that takes it;
// with a forced config, the first that also offers it.
Expected<Choice> choose(const Problem& problem, const Device& device, const Options& options) {
  if (options.variant != nullptr) return forced(problem, device, options);
  const bool any_config = options.config == nullptr;
  if (any_config) {
    if (const auto choice = tuned(problem, device, options)) return *choice;
  }
  // The last of a backend takes most, so that its reason is what stands in the way.
  const Variant* last = nullptr;
  Reason last_reason;
  std::optional<Choice> slower;
  std::optional<Error> config_error;
  for (const Variant& v : detail::variants()) {
    if (v.backend != device.backend) continue;
    const Reason reason = refusal(v, problem, device);
    if (!reason.empty()) {
      log(options, "%s: %s", v.name, reason.text);
      last = &v, last_reason = reason;
      continue;
    }
    const auto config = choose_config(v, problem, device, options.config);
    if (config) {
      const Choice choice{
          &v, *config, any_config ? ChoiceSource::kHeuristic : ChoiceSource::kForced, {}};
      if (!any_config) return choice;
      const Reason later = yielding(v, problem, device);
      if (later.empty()) return choice;
      log(options, "%s: %s", v.name, later.text);
      if (!slower) slower = choice;
      continue;
    }
    if (!config_error) config_error = config.error();
  }
  if (slower) return *slower;
  if (config_error) return *config_error;
  if (last == nullptr) {
    return make_error(ErrorCode::kUnsupported, "%s: this Sluice was built without the %s backend",
                      to_string(problem.op), to_string(device.backend));
  }
  return make_error(ErrorCode::kUnsupported, "%s: no variant of the %s backend takes it; %s: %s",
                    to_string(problem.op), to_string(device.backend), last->name, last_reason.text);
}

// plan(), and the table's entry where the choice is a tuned one.
Expected<Plan> make_plan(const Problem& problem, const Device& device, const Options& options,
                         TuneChoice& entry) noexcept {
  SLUICE_TRY(validate(problem));
  if (options.threads < 0) {
    return make_error(ErrorCode::kInvalidArgument, "threads: got %d, wanted 0 or more",
                      options.threads);
  }
  const auto choice = choose(problem, device, options);
  if (!choice) return choice.error();
  entry = choice->entry;
  Plan plan;
  plan.problem = problem;
  plan.device = device;
  plan.variant = choice->variant;
  plan.config = choice->config;
  plan.source = choice->source;
  plan.threads = threads_of(device, options);
  plan.executor = options.executor;
  const std::size_t payload = problem.m == 0 ? 0 : choice->variant->payload_bytes(plan);
  // A whole number of alignment units, as aligned_alloc wants it.
  const std::size_t units = (payload + kWorkspaceAlignment - 1) / kWorkspaceAlignment;
  plan.workspace_bytes = payload == 0 ? 0 : kWorkspaceHeaderBytes + units * kWorkspaceAlignment;
  log(options, "%s %lldx%lldx%lld: %s, config %s, %s", to_string(problem.op),
      static_cast<long long>(problem.m), static_cast<long long>(problem.d),
      static_cast<long long>(problem.h), plan.variant->name, plan.config.name,
      to_string(plan.source));
  return plan;
}

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

}  // namespace

TuneTable::~TuneTable() = default;
Log::~Log() = default;

const char* Plan::variant_name() const noexcept { return variant == nullptr ? "" : variant->name; }

Expected<Plan> plan(const Problem& problem, const Device& device, const Options& options) noexcept {
  TuneChoice entry;
  return make_plan(problem, device, options, entry);
}

Explanation explain(const Problem& problem, const Device& device, const Options& options) {
  Explanation out;
  TuneChoice entry;
  const auto made = make_plan(problem, device, options, entry);
  if (made) {
    out.config = made->config.name;
    out.source = made->source;
    out.entry = entry_text(entry);
    if (made->variant->describe != nullptr) out.blocks = made->variant->describe(*made);
  } else {
    out.error = made.error();
    if (!validate(problem)) return out;
  }
  for (const Variant& v : detail::variants()) {
    if (v.backend != device.backend) continue;
    const Reason reason = refusal(v, problem, device);
    const Reason yields = reason.empty() ? yielding(v, problem, device) : Reason{};
    out.variants.push_back(
        {v.name, reason.text, made.has_value() && made->variant == &v, yields.text});
  }
  return out;
}

std::vector<std::string> variant_names(Backend backend) {
  std::vector<std::string> names;
  for (const Variant& v : detail::variants()) {
    if (v.backend == backend) names.emplace_back(v.name);
  }
  return names;
}

std::vector<std::string> config_names(const char* variant, const Problem& problem,
                                      const Device& device) {
  std::vector<std::string> names;
  const Variant* v = find_variant(variant, device.backend);
  if (v == nullptr || !validate(problem) || !refusal(*v, problem, device).empty()) return names;
  std::array<Config, detail::kMaxConfigs> configs;
  const std::size_t count = std::min(configs.size(), v->configs(problem, device, configs));
  for (std::size_t i = 0; i < count; ++i) names.emplace_back(configs[i].name);
  return names;
}

}  // namespace sluice
