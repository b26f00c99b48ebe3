// SPDX-License-Identifier: Apache-2.0
// What a measurement holds for: the device and build that made it, and the problem, reduced to what
// decides a kernel's time. Keys have one spelling each: what is printed is what is read.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/device.hpp"
#include "sluice/problem.hpp"

namespace sluice::tune {

/// A problem as tables know it: types, widths and layouts of the operands that the operator uses,
/// what is added, and the threads of a CPU plan. A gate's parameters and eps are left out: they
/// cost the same whatever they are.
///
/// Members are in the order of their weight: keys that differ in m alone are neighbours.
struct ProblemKey {
  // A table never answers for another value of these.
  std::uint8_t op = 0;
  std::uint8_t x_dtype = 0;
  std::uint8_t w_dtype = 0;
  std::uint8_t y_dtype = 0;
  std::uint8_t dw_dtype = 0;
  std::uint8_t norm = 0;   ///< 0 none, 1 norm, 2 add and norm
  std::uint8_t flags = 0;  ///< 1 save_g_u, 2 recompute, 4 accumulate_dw, 8 weights_static,
                           ///< 16 save_dg_du
  std::int32_t threads = 0;
  std::int64_t block_rows = 0;  ///< of weights
  std::int64_t block_cols = 0;  ///< of g, u, dg and du

  std::int64_t d = 0;
  std::int64_t h = 0;

  std::uint8_t activation = 0;
  std::uint8_t adds = 0;  ///< 1 bias_gate_up, 2 bias_down; 4 times Residual
  std::int32_t alignment_bytes = 0;
  std::uint64_t layout = 0;  ///< a hash of all strides

  std::int64_t m = 0;

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the defaulted body's 0 for a pointer
  friend auto operator<=>(const ProblemKey&, const ProblemKey&) = default;
  /// Do the members before d agree?
  [[nodiscard]] bool same_kind(const ProblemKey& other) const noexcept;
  /// Do all members but m agree?
  [[nodiscard]] bool same_shape(const ProblemKey& other) const noexcept;
};

/// The key of a valid problem on a device; `device.threads` are those of the plan. No allocation.
[[nodiscard]] ProblemKey key_of(const Problem& problem, const Device& device) noexcept;

/// "mlp 16x4096x14336 bf16/bf16/bf16/bf16 silu threads=0 norm=0 flags=8 adds=0 blocks=0/0 align=16
/// layout=0123456789abcdef", in one line.
[[nodiscard]] std::string to_text(const ProblemKey& key);

/// Reads to_text()'s spelling and no other.
[[nodiscard]] std::optional<ProblemKey> parse_key(std::string_view text);

/// "cuda NVIDIA H200, 9.0, 132 SMs": the device as far as it decides a kernel's time. Printable
/// ASCII without tabs.
[[nodiscard]] std::string device_text(const Device& device);
/// "driver 13000, runtime 13000", with ", cuBLASLt 130100" where the device has one; "-" for a CPU.
[[nodiscard]] std::string driver_text(const Device& device);
/// The version of cuBLASLt that a driver_text() names; 0 for none.
[[nodiscard]] int cublaslt_version_of(std::string_view driver_text) noexcept;
/// A driver_text() up to cuBLASLt's version, on which few measurements depend.
[[nodiscard]] std::string_view without_cublaslt(std::string_view driver_text) noexcept;
/// "0.1.0 0123456789abcdef GNU 12.2.0 Release": version, a hash of the library's sources, compiler
/// and flags.
[[nodiscard]] std::string build_text();

/// Are these one device, as far as device_text() and driver_text() tell? No allocation.
[[nodiscard]] bool same_device(const Device& a, const Device& b) noexcept;

/// FNV-1a, 64 bits: every step is a bijection of the state, so that a change of a single byte
/// always changes the sum. Source: Fowler, Noll, Vo.
[[nodiscard]] std::uint64_t checksum(std::string_view bytes) noexcept;

}  // namespace sluice::tune
