// SPDX-License-Identifier: Apache-2.0
// A recipe, and the choices that it offers for a problem: which kernel and config each step has.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/lower.hpp"

namespace sluice::detail {

/// A way to compute operators: kernels for the steps, in order of preference.
struct Recipe {
  const char* name;
  /// What it is there for, in a sentence: explain() prints it.
  const char* reason;
  Backend backend;
  /// Of those that compute a step's operator the preferred first. A single one makes one step of
  /// each of its operators.
  std::span<const Kernel* const> kernels;
  /// The operators that several kernels make steps of.
  OpSet ops{};
  /// Why the recipe leaves a problem to others; nothing where it does not. Null: none.
  Reason (*leaves)(const Problem&) noexcept = nullptr;
  /// Of a step (its own problem) that `kernel` supports: why the next one of kernels is expected
  /// to be faster in this problem (the whole operator's), or nothing. Null: never.
  Reason (*yields)(const Problem&, const Problem& step, const Device&,
                   const Kernel& kernel) noexcept = nullptr;
  /// Of gate_up that can take the norm into itself: why a launch of the norm before it is faster,
  /// or nothing. Null: no kernel takes the norm.
  Reason (*norm_yields)(const Problem&, const Device&) noexcept = nullptr;
  /// Of a problem that it takes: why a recipe behind it is expected to be faster, or nothing. Null:
  /// none is.
  Reason (*outrun)(const Problem&, const Device&) noexcept = nullptr;
  /// The configs of gate_up and down that should be tried together, best first, where the two are
  /// not chosen apart; both by the first kernel. Writes at most out.size(), returns how many there
  /// are. Null: apart.
  std::size_t (*pairs)(const Problem& gate_up, const Problem& down, const Device&,
                       std::span<std::array<KernelConfig, 2>> out) noexcept = nullptr;
  /// Obviously right and slow: the scheduler does not time it beside others.
  bool for_checking = false;
  /// Nobody has run it: only for those who ask by Options::experimental.
  bool experimental = false;

  [[nodiscard]] bool is_whole() const noexcept { return kernels.size() == 1; }
};

/// All recipes, in the order in which plan() tries them: the first that takes a problem and is not
/// outrun has it.
[[nodiscard]] std::span<const Recipe> recipes() noexcept;

/// A list of at most kMost values, in place.
template <class T, std::size_t kMost>
struct Few {
  std::array<T, kMost> at{};
  std::size_t count = 0;
  void add(const T& value) noexcept { at[count++] = value; }
  [[nodiscard]] T* begin() noexcept { return at.data(); }
  [[nodiscard]] T* end() noexcept { return at.data() + count; }
  [[nodiscard]] const T* begin() const noexcept { return at.data(); }
  [[nodiscard]] const T* end() const noexcept { return at.data() + count; }
};

/// The steps of a plan, chosen.
using Steps = Few<PlannedStep, kMaxSteps>;

/// The most choices that one recipe offers for one problem.
inline constexpr std::size_t kMaxChoices = 64;

/// Why the recipe does not take a valid problem of somebody who asks for experimental ones or does
/// not; nothing where it does.
[[nodiscard]] Reason refusal(const Recipe& recipe, const Problem& problem, const Device& device,
                             bool experimental) noexcept;

/// The choices of a supported problem, the one expected to be the fastest first: the first of every
/// step, then each other config of one step with the first of the others, or what pairs() says.
/// Writes at most out.size(), returns how many there are.
std::size_t choices(const Recipe& recipe, const Problem& problem, const Device& device,
                    std::span<Steps> out) noexcept;

/// The choice that a text like "gate_up=pp128x192c2g8,down=lt0" names, the first one in what it
/// leaves out; nothing where no step has such a config.
[[nodiscard]] std::optional<Steps> find_choice(const Recipe& recipe, const Problem& problem,
                                               const Device& device, const char* text) noexcept;

/// The config of a step in one word, which `buffer` holds; empty where it has no name.
std::string_view word_of(const PlannedStep& step, std::span<char> buffer) noexcept;

/// That text, of all steps whose kernel has more than a single config.
void config_text(Op op, std::span<const PlannedStep> steps, std::span<char> out) noexcept;

/// Why the kernel of a planned step was preferred to those before it in the recipe, one line each.
[[nodiscard]] std::string passed_over(const Recipe& recipe, const Problem& problem,
                                      const Device& device, const PlannedStep& step,
                                      bool norm_step);

}  // namespace sluice::detail
