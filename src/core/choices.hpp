// SPDX-License-Identifier: Apache-2.0
// A recipe, and the choices that it offers for a problem: which kernel and config each step has.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "core/lower.hpp"

namespace sluice::detail {

/// A way to compute operators: kernels for the steps, in order of preference.
struct Recipe {
  const char* name;
  Backend backend;
  OpSet ops;
  /// The kernels that may compute a step, the preferred first; empty where a step of this recipe
  /// has none. A recipe that has some for kWhole makes one step of every operator.
  std::span<const Kernel* const> (*kernels)(Role) noexcept;
  /// Of a step (its own problem) that `kernel` supports: why the next one of kernels() is expected
  /// to be faster in this problem (the whole operator's), or nothing. Null: never.
  Reason (*yields)(const Problem&, const Problem& step, const Device&,
                   const Kernel& kernel) noexcept = nullptr;
  /// Of gate_up that can take the norm into itself: why a launch of the norm before it is faster,
  /// or nothing. Null: no kernel takes the norm.
  Reason (*norm_yields)(const Problem&, const Device&) noexcept = nullptr;
  /// The configs of gate_up and down that should be tried together, best first, where the two are
  /// not chosen apart. Writes at most out.size(), returns how many there are. Null: apart.
  std::size_t (*pairs)(const Problem& gate_up, const Problem& down, const Device&,
                       std::span<std::array<KernelConfig, 2>> out) noexcept = nullptr;
  /// Obviously right and slow: the scheduler does not time it beside others.
  bool for_checking = false;
};

/// All recipes, in the order in which plan() tries them: the first that takes a problem has it.
[[nodiscard]] std::span<const Recipe> recipes() noexcept;

/// The steps of a plan, chosen.
struct Steps {
  std::array<PlannedStep, kMaxSteps> at{};
  int count = 0;
  void add(const PlannedStep& step) noexcept { at[static_cast<std::size_t>(count++)] = step; }
  [[nodiscard]] std::span<const PlannedStep> span() const& noexcept {
    return std::span(at).first(static_cast<std::size_t>(count));
  }
  std::span<const PlannedStep> span() const&& = delete;  // it would outlive its steps
};

/// The most choices that one recipe offers for one problem.
inline constexpr std::size_t kMaxChoices = 64;

/// Why the recipe does not take a valid problem; nothing where it does.
[[nodiscard]] Reason refusal(const Recipe& recipe, const Problem& problem,
                             const Device& device) noexcept;

/// The choices of a supported problem, the one expected to be the fastest first: the first of every
/// step, then each other config of one step with the first of the others, or what pairs() says.
/// Writes at most out.size(), returns how many there are.
std::size_t choices(const Recipe& recipe, const Problem& problem, const Device& device,
                    std::span<Steps> out) noexcept;

/// The choice that a text like "gate_up=pp128x192c2g8,down=lt0" names, the first one in what it
/// leaves out; nothing where no step has such a config.
[[nodiscard]] std::optional<Steps> find_choice(const Recipe& recipe, const Problem& problem,
                                               const Device& device, const char* text) noexcept;

/// That text, of all steps whose kernel has more than a single config. Returns its length.
std::size_t config_text(Op op, std::span<const PlannedStep> steps, std::span<char> out) noexcept;

/// Why the kernel of a planned step was preferred to those before it in the recipe, one line each.
[[nodiscard]] std::string passed_over(const Recipe& recipe, const Problem& problem,
                                      const Device& device, const PlannedStep& step,
                                      bool norm_step);

}  // namespace sluice::detail
