// SPDX-License-Identifier: Apache-2.0
// A row of the table of kernels: everything that core knows of a kernel. ARCHITECTURE.md says how
// one is added.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "sluice/plan.hpp"

namespace sluice::detail {

/// Why a kernel refuses a problem; empty where it takes it.
struct Reason {
  char text[200]{};
  [[nodiscard]] bool empty() const noexcept { return text[0] == '\0'; }
};

/// Builds a Reason from a printf-style format.
[[nodiscard]] __attribute__((format(printf, 1, 2))) Reason refuse(const char* format, ...) noexcept;

/// A set of operators.
class OpSet {
 public:
  constexpr OpSet(std::initializer_list<Op> ops) noexcept {
    for (const Op op : ops) bits_ |= 1U << static_cast<unsigned>(op);
  }
  [[nodiscard]] constexpr bool contains(Op op) const noexcept {
    return (bits_ >> static_cast<unsigned>(op) & 1U) != 0;
  }
  [[nodiscard]] static constexpr OpSet all() noexcept {
    OpSet set{};
    set.bits_ = (1U << static_cast<unsigned>(kOpCount)) - 1;
    return set;
  }

 private:
  std::uint32_t bits_ = 0;
};

/// One step as its kernel sees it: an operator on a problem of its own, with the pointers of it.
struct Step {
  const Kernel* kernel = nullptr;
  const Problem& problem;
  const Operands& operands;
  const Device& device;
  const KernelConfig& config;
  int threads = 1;          ///< CPU
  Executor executor{};      ///< CPU
  void* scratch = nullptr;  ///< what scratch_bytes() asked for
  void* header = nullptr;   ///< of the workspace; null where no step has scratch
  Stream stream = nullptr;
  const Peers* peers = nullptr;  ///< checked; of kAllReduce

  [[nodiscard]] OperandSpec spec(Operand id) const noexcept { return operand_spec(problem, id); }
  /// The operand's pointer; null where the problem does not use it or the caller gave none.
  [[nodiscard]] void* pointer(Operand id) const noexcept {
    return is_used(problem, id) ? const_cast<void*>(address(operands, id)) : nullptr;
  }
};

/// What a kernel is asked about a step before it runs.
struct StepView {
  const Problem& problem;
  const Device& device;
  const KernelConfig& config;
  int threads = 1;
};

/// A kernel, or a family of them in one folder. All functions but launch are pure, so that they are
/// tested on any CPU.
struct Kernel {
  const char* name;  ///< "<backend>.<folder>", unique
  OpSet ops;         ///< the operators that it computes, each as one step
  /// Nothing, or why it does not take a problem of these operators.
  Reason (*supports)(const Problem&, const Device&) noexcept;
  /// The configs for a supported problem, the one expected to be the fastest first. Writes at most
  /// out.size() of them and returns how many there are. Null for a single one, all zeros.
  std::size_t (*configs)(const Problem&, const Device&,
                         std::span<KernelConfig> out) noexcept = nullptr;
  /// A config in one word: "pp128x192c2g8". Unique among the kernels of a recipe's step. Null where
  /// it has no name.
  void (*name_config)(const KernelConfig&, std::span<char> out) noexcept = nullptr;
  /// Enqueues the step, or on a CPU does it. Operands are checked and m > 0. `next` is the step
  /// behind it, or null: its weights may be fetched early.
  Status (*launch)(const Step& step, const Step* next) noexcept;
  /// How the step cuts its problem, in lines, for explain().
  std::string (*describe)(const StepView&);
  /// Bytes of scratch, which is the step's own while it runs; null for none.
  std::size_t (*scratch_bytes)(const StepView&) noexcept = nullptr;
  /// Bytes of Plan::peer_bytes; null for none.
  std::size_t (*peer_bytes)(const StepView&) noexcept = nullptr;
};

/// The most configs that one kernel offers for one problem.
inline constexpr std::size_t kMaxConfigs = 32;

/// Reads a kernel's own type out of a config.
template <class T>
[[nodiscard]] T config_as(const KernelConfig& config) noexcept {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(KernelConfig::bytes));
  T value;
  std::memcpy(&value, config.bytes, sizeof(T));
  return value;
}

/// Makes a config of a kernel's own type.
template <class T>
[[nodiscard]] KernelConfig to_config(const T& value) noexcept {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(KernelConfig::bytes));
  KernelConfig config;
  std::memcpy(config.bytes, &value, sizeof(T));
  return config;
}

/// A `name_config` by what names a kernel's own type.
template <class T, void (*kName)(const T&, std::span<char>) noexcept>
void name_as(const KernelConfig& config, std::span<char> out) noexcept {
  kName(config_as<T>(config), out);
}

/// The body of a `configs`: `values`, best first, as configs.
template <class T>
std::size_t offer(std::span<const T> values, std::span<KernelConfig> out) noexcept {
  for (std::size_t i = 0; i < std::min(values.size(), out.size()); ++i) {
    out[i] = to_config(values[i]);
  }
  return values.size();
}

}  // namespace sluice::detail
