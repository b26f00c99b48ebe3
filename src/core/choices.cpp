// SPDX-License-Identifier: Apache-2.0
// Which kernels and configs the steps of a recipe may have, and how a config is named and read. The
// recipes themselves: recipes.cpp.
#include "core/choices.hpp"

#include <algorithm>
#include <cstdio>

namespace sluice::detail {
namespace {

constexpr std::size_t kMostAlternatives = 2 * kMaxConfigs;

// A recipe for a problem, with the norm as a step of its own or in a kernel.
struct Form {
  const Recipe& recipe;
  const Problem& problem;
  const Device& device;
  bool norm_step;

  // The step's own problem.
  [[nodiscard]] Problem step(Role role) const { return step_problem(problem, role, norm_step); }
};

// What a step may be computed by, the preferred first.
using Alternatives = Few<PlannedStep, kMostAlternatives>;

bool may_have_norm(const Problem& p) { return p.op == Op::kGateUp || p.op == Op::kMlp; }

// Calls `visit` with the forms that the problem may have, in the order in which they should be
// tried, until it says that this is enough.
template <class Visit>
void for_each_form(const Recipe& recipe, const Problem& p, const Device& device, Visit visit) {
  const bool may = p.norm.enabled && may_have_norm(p) && !recipe.is_whole();
  const bool both = may && recipe.norm_yields != nullptr;
  const bool first = may && (!both || !recipe.norm_yields(p, device).empty());
  if (visit(Form{recipe, p, device, first}) || !both) return;
  visit(Form{recipe, p, device, !first});
}

Few<Role, kMaxSteps> roles_of(const Form& form) {
  const Problem& p = form.problem;
  Few<Role, kMaxSteps> roles;
  if (form.recipe.is_whole()) {
    roles.add(Role::kWhole);
    return roles;
  }
  if (form.norm_step) roles.add(Role::kNorm);
  if (p.op == Op::kMlp) {
    roles.add(Role::kGateUp);
    roles.add(Role::kDown);
  } else if (p.op == Op::kMlpGrad) {
    if (p.recompute) roles.add(Role::kGateUp);
    for (const Role role :
         {Role::kGateUpGrad, Role::kInputGrad, Role::kWeightGrad, Role::kWeightGradDown}) {
      roles.add(role);
    }
    if (p.bias_gate_up) roles.add(Role::kColumnSumGate);
    if (p.bias_gate_up) roles.add(Role::kColumnSumUp);
    if (p.bias_down) roles.add(Role::kColumnSumDown);
  } else {
    roles.add(role_of(p.op));
  }
  if (reduces(p)) roles.add(Role::kAllReduce);
  return roles;
}

// The first refusal of a step, or nothing where a kernel takes it. The last kernel takes most, so
// that its reason is what stands in the way.
Reason step_refusal(const Form& form, Role role) {
  const Problem q = form.step(role);
  Reason reason = refuse("has no %s", name_of(role, form.problem.op));
  for (const Kernel* const kernel : form.recipe.kernels) {
    if (!kernel->ops.contains(q.op)) continue;
    reason = kernel->supports(q, form.device);
    if (reason.empty()) return {};
  }
  return reason;
}

Reason form_refusal(const Form& form) {
  for (const Role role : roles_of(form)) {
    if (Reason reason = step_refusal(form, role); !reason.empty()) return reason;
  }
  return {};
}

void append(const Kernel& kernel, const Problem& q, const Device& device, Role role,
            std::size_t most, Alternatives& out) {
  std::array<KernelConfig, kMaxConfigs> configs{};
  const std::size_t offered =
      kernel.configs == nullptr ? 1 : kernel.configs(q, device, std::span(configs).first(most));
  const std::size_t count = std::min(offered, most);
  for (std::size_t i = 0; i < count && out.count < out.at.size(); ++i) {
    out.add({&kernel, configs[i], role});
  }
}

// At most `most` configs of each kernel. Of a norm the first kernel alone: the second is for what
// it refuses.
Alternatives alternatives(const Form& form, Role role, std::size_t most) {
  const Problem q = form.step(role);
  const auto yields = form.recipe.yields;
  Alternatives out;
  const auto take = [&](bool yielding) {
    for (const Kernel* const kernel : form.recipe.kernels) {
      if (!kernel->ops.contains(q.op) || !kernel->supports(q, form.device).empty()) continue;
      if (q.op == Op::kNorm && out.count > 0) continue;
      const bool is_yielding =
          yields != nullptr && !yields(form.problem, q, form.device, *kernel).empty();
      if (is_yielding == yielding) append(*kernel, q, form.device, role, most, out);
    }
  };
  take(false);
  if (out.count == 0 || most > 1) take(true);
  return out;
}

// dw_down has the kernel and config of dw_gate and dw_up, where it can.
void align_followers(const Form& form, Steps& steps) {
  for (std::size_t i = 1; i < steps.count; ++i) {
    const PlannedStep& leader = steps.at[i - 1];
    PlannedStep& step = steps.at[i];
    if (step.role != Role::kWeightGradDown || leader.role != Role::kWeightGrad) continue;
    if (leader.kernel->supports(form.step(step.role), form.device).empty()) {
      step.kernel = leader.kernel;
      step.config = leader.config;
    } else {
      step = alternatives(form, step.role, 1).at[0];
    }
  }
}

// The first of every step of a form that is supported.
Steps first_choice(const Form& form) {
  Steps steps;
  for (const Role role : roles_of(form)) steps.add(alternatives(form, role, 1).at[0]);
  align_followers(form, steps);
  return steps;
}

// Pairs of gate_up and down that a recipe wants tried together, behind the norm's launch if any.
std::size_t paired_choices(const Form& form, std::span<Steps> out) {
  std::array<std::array<KernelConfig, 2>, kMaxConfigs> pairs;
  const std::size_t most = std::min(pairs.size(), std::max<std::size_t>(out.size(), 1));
  const std::size_t count =
      std::min(form.recipe.pairs(form.step(Role::kGateUp), form.step(Role::kDown), form.device,
                                 std::span(pairs).first(most)),
               most);
  const Kernel* const kernel = form.recipe.kernels.front();
  for (std::size_t i = 0; i < std::min(count, out.size()); ++i) {
    out[i] = {};
    if (form.norm_step) out[i].add(alternatives(form, Role::kNorm, 1).at[0]);
    out[i].add({kernel, pairs[i][0], Role::kGateUp});
    out[i].add({kernel, pairs[i][1], Role::kDown});
    if (reduces(form.problem)) out[i].add(alternatives(form, Role::kAllReduce, 1).at[0]);
  }
  return count;
}

std::size_t form_choices(const Form& form, std::span<Steps> out) {
  if (form.problem.op == Op::kMlp && form.recipe.pairs != nullptr) return paired_choices(form, out);
  const Steps first = first_choice(form);
  std::size_t count = 0;
  const auto put = [&](const Steps& steps) {
    if (count < out.size()) out[count] = steps;
    ++count;
  };
  put(first);
  if (out.size() <= 1) return count;
  for (std::size_t i = 0; i < first.count; ++i) {
    const Role role = first.at[i].role;
    if (role == Role::kWeightGradDown) continue;
    const Alternatives other = alternatives(form, role, kMaxConfigs);
    for (std::size_t j = 1; j < other.count; ++j) {
      Steps steps = first;
      steps.at[i] = other.at[j];
      align_followers(form, steps);
      put(steps);
    }
  }
  return count;
}

// Sets the steps that `text` names; false where it names none, or what is not there.
bool apply(const Form& form, std::string_view text, Steps& steps) {
  bool down_named = false;
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) text.remove_prefix(comma + 1);
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string_view name = item.substr(0, equals);
    auto* const found = std::find_if(steps.begin(), steps.end(), [&](const PlannedStep& step) {
      return name == name_of(step.role, form.problem.op);
    });
    if (found == steps.end()) return false;
    const Alternatives all = alternatives(form, found->role, kMaxConfigs);
    char word[kMaxName];
    const auto* const match = std::find_if(all.begin(), all.end(), [&](const PlannedStep& step) {
      return word_of(step, word) == item.substr(equals + 1);
    });
    if (match == all.end()) return false;
    *found = *match;
    down_named = down_named || found->role == Role::kWeightGradDown;
    if (!down_named) align_followers(form, steps);
  }
  return true;
}

}  // namespace

Reason refusal(const Recipe& recipe, const Problem& problem, const Device& device,
               bool experimental) noexcept {
  if (recipe.backend != device.backend) {
    return refuse("runs on %s, the device is a %s", to_string(recipe.backend),
                  to_string(device.backend));
  }
  const OpSet& ops = recipe.is_whole() ? recipe.kernels.front()->ops : recipe.ops;
  if (!ops.contains(problem.op)) return refuse("has no %s", to_string(problem.op));
  if (reduces(problem) && recipe.is_whole()) return refuse("has no all_reduce");
  Reason reason;
  if (recipe.leaves != nullptr) reason = recipe.leaves(problem);
  if (!reason.empty()) return reason;
  for_each_form(recipe, problem, device, [&](const Form& form) {
    reason = form_refusal(form);
    return reason.empty();
  });
  if (reason.empty() && recipe.experimental && !experimental) {
    return refuse("takes it, but nobody has run it: Options::experimental, --experimental");
  }
  return reason;
}

std::size_t choices(const Recipe& recipe, const Problem& problem, const Device& device,
                    std::span<Steps> out) noexcept {
  std::size_t count = 0;
  for_each_form(recipe, problem, device, [&](const Form& form) {
    if (!form_refusal(form).empty()) return false;
    const auto room = out.subspan(std::min(out.size(), count));
    if (count > 0 && room.empty()) return true;
    count += form_choices(form, room);
    return false;
  });
  return count;
}

std::optional<Steps> find_choice(const Recipe& recipe, const Problem& problem, const Device& device,
                                 const char* text) noexcept {
  std::optional<Steps> found;
  for_each_form(recipe, problem, device, [&](const Form& form) {
    std::array<Steps, 1> first;
    if (!form_refusal(form).empty() || form_choices(form, first) == 0) return false;
    if (apply(form, text, first[0])) found = first[0];
    return found.has_value();
  });
  return found;
}

std::string_view word_of(const PlannedStep& step, std::span<char> buffer) noexcept {
  buffer[0] = '\0';
  if (step.kernel->name_config != nullptr) step.kernel->name_config(step.config, buffer);
  return buffer.data();
}

void config_text(Op op, std::span<const PlannedStep> steps, std::span<char> out) noexcept {
  std::size_t size = 0;
  out[0] = '\0';
  for (const PlannedStep& step : steps) {
    char word[kMaxName];
    if (word_of(step, word).empty()) continue;
    const std::size_t room = out.size() - std::min(out.size(), size);
    const int more = std::snprintf(room == 0 ? nullptr : out.data() + size, room, "%s%s=%s",
                                   size == 0 ? "" : ",", name_of(step.role, op), word);
    size += static_cast<std::size_t>(std::max(more, 0));
  }
}

std::string passed_over(const Recipe& recipe, const Problem& problem, const Device& device,
                        const PlannedStep& step, bool norm_step) {
  std::string text;
  const auto line = [&](const char* name, const Reason& reason) {
    if (reason.empty()) return;
    text += std::string(text.empty() ? "" : "\n") + name + ": " + reason.text;
  };
  if (step.role == Role::kNorm && recipe.norm_yields != nullptr && may_have_norm(problem)) {
    line("norm in gate_up", form_refusal({recipe, problem, device, false}));
    if (text.empty()) line("norm in gate_up", recipe.norm_yields(problem, device));
  }
  const Problem q = Form{recipe, problem, device, norm_step}.step(step.role);
  for (const Kernel* const kernel : recipe.kernels) {
    if (kernel == step.kernel || !kernel->ops.contains(q.op)) continue;
    const Reason refused = kernel->supports(q, device);
    line(kernel->name, refused);
    if (refused.empty() && recipe.yields != nullptr) {
      line(kernel->name, recipe.yields(problem, q, device, *kernel));
    }
  }
  return text;
}

}  // namespace sluice::detail
