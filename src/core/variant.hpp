// SPDX-License-Identifier: Apache-2.0
// A row of the variant table: everything that core knows of a kernel. To add a kernel, write these
// five functions and one row in variants.cpp.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include "sluice/plan.hpp"

namespace sluice::detail {

/// Why a variant refuses a problem; empty where it takes it.
struct Reason {
  char text[200]{};
  [[nodiscard]] bool empty() const noexcept { return text[0] == '\0'; }
};

/// Builds a Reason from a printf-style format.
[[nodiscard]] __attribute__((format(printf, 1, 2))) Reason refuse(const char* format, ...) noexcept;

struct Variant {
  const char* name;  ///< "<backend>.<family>", unique
  Backend backend;
  /// Nothing, or why not. Pure.
  Reason (*supports)(const Problem&, const Device&) noexcept;
  /// All configs that may be forced for a supported problem, the heuristic's choice first. Writes
  /// at most `out.size()` of them and returns how many there are. Pure.
  std::size_t (*configs)(const Problem&, const Device&, std::span<Config> out) noexcept;
  /// Payload bytes behind the header; 0 for a variant that needs no workspace. Pure.
  std::size_t (*payload_bytes)(const Plan&) noexcept;
  /// Checked operands, m > 0. `payload` points behind the workspace header.
  Status (*launch)(const Plan&, const Operands&, void* payload, void* header,
                   Stream stream) noexcept;
  /// Obviously right and slow: the scheduler does not time it beside others.
  bool for_checking = false;
  /// How the plan cuts its problem and why, in lines, for explain(); null for nothing to say.
  std::string (*describe)(const Plan&) = nullptr;
  /// Of a supported problem: why a later variant is expected to be faster, or nothing. plan() then
  /// chooses this one only where no other takes the problem or it is forced. Null: never. Pure.
  Reason (*yields)(const Problem&, const Device&) noexcept = nullptr;
};

/// The most configs one variant offers for one problem.
inline constexpr std::size_t kMaxConfigs = 32;

/// The table, best first, each backend's reference last.
[[nodiscard]] std::span<const Variant> variants() noexcept;

/// Reads a variant's own payload type out of a Config.
template <class T>
[[nodiscard]] T payload_as(const Config& config) noexcept {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(Config::payload));
  T value;
  std::memcpy(&value, config.payload, sizeof(T));
  return value;
}

/// Makes a Config of a name and a variant's own payload type.
template <class T>
[[nodiscard]] Config make_config(const char* name, const T& payload) noexcept {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(Config::payload));
  Config config;
  std::snprintf(config.name, sizeof(config.name), "%s", name);
  std::memcpy(config.payload, &payload, sizeof(T));
  return config;
}

}  // namespace sluice::detail
