// SPDX-License-Identifier: Apache-2.0
// Operands: the pointers of one call; OperandSpec: what a Problem says of each of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "sluice/export.hpp"
#include "sluice/problem.hpp"
#include "sluice/status.hpp"
#include "sluice/types.hpp"

namespace sluice {

/// Pointers into the plan's device. Null where an operator does not use or need one.
struct Operands {
  const void* x = nullptr;            ///< [M, D]
  const void* x_residual = nullptr;   ///< [M, D], norm prologue with add
  const void* norm_weight = nullptr;  ///< [D]
  const void* w_gate = nullptr;       ///< [H, D]
  const void* w_up = nullptr;         ///< [H, D]
  const void* w_down = nullptr;       ///< [D, H]
  const void* b_gate = nullptr;       ///< [H]
  const void* b_up = nullptr;         ///< [H]
  const void* b_down = nullptr;       ///< [D]
  const void* residual = nullptr;     ///< [M, D]
  const void* dy = nullptr;           ///< [M, D]
  const void* dh = nullptr;           ///< [M, H]
  void* g = nullptr;                  ///< [M, H]; read by gradients and kGateMul, else written
  void* u = nullptr;                  ///< [M, H]; as g
  void* h = nullptr;                  ///< [M, H]; read by kDown, else written
  void* y = nullptr;                  ///< [M, D]
  void* x_sum = nullptr;              ///< [M, D]
  void* dg = nullptr;                 ///< [M, H]
  void* du = nullptr;                 ///< [M, H]
  void* dx = nullptr;                 ///< [M, D]
  void* dw_gate = nullptr;            ///< [H, D]
  void* dw_up = nullptr;              ///< [H, D]
  void* dw_down = nullptr;            ///< [D, H]
  void* db_gate = nullptr;            ///< [H]
  void* db_up = nullptr;              ///< [H]
  void* db_down = nullptr;            ///< [D]

  const void* next_norm_weight = nullptr;  ///< [D], Reduce::norm
  void* y_norm = nullptr;                  ///< [M, D], Reduce::norm
};

/// Names the members of Operands, in their order.
enum class Operand : std::uint8_t {
  kX,
  kXResidual,
  kNormWeight,
  kWGate,
  kWUp,
  kWDown,
  kBGate,
  kBUp,
  kBDown,
  kResidual,
  kDy,
  kDh,
  kG,
  kU,
  kH,
  kY,
  kXSum,
  kDg,
  kDu,
  kDx,
  kDwGate,
  kDwUp,
  kDwDown,
  kDbGate,
  kDbUp,
  kDbDown,
  kNextNormWeight,
  kYNorm,
};
inline constexpr int kOperandCount = 28;

enum class Access : std::uint8_t { kUnused, kRead, kWrite, kReadWrite };

/// What one operand must be for a given problem. The layout is resolved: strides are in bytes and
/// never kContiguous. Vectors have rows = 1.
struct OperandSpec {
  Operand id = Operand::kX;
  const char* name = "";
  Access access = Access::kUnused;
  bool required = false;  ///< a null pointer is an error (outputs that may be null are skipped)
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  Layout layout{};
};

/// The specs of all operands, indexed by Operand; unused ones have Access::kUnused.
/// The one place that says which operator takes what: validation, run() and the test harness all
/// read it. The problem must be valid (see validate()).
[[nodiscard]] SLUICE_EXPORT std::array<OperandSpec, kOperandCount> operand_specs(
    const Problem& problem) noexcept;

/// The same for one operand, and whether the operator has it at all: what run() asks, which counts
/// the host's time.
[[nodiscard]] SLUICE_EXPORT OperandSpec operand_spec(const Problem& problem, Operand id) noexcept;
[[nodiscard]] SLUICE_EXPORT bool is_used(const Problem& problem, Operand id) noexcept;

/// Bytes from the base pointer to one past the last element of the operand; 0 if it has no element.
[[nodiscard]] SLUICE_EXPORT std::int64_t extent_bytes(const OperandSpec& spec) noexcept;

/// The pointer that `id` names.
[[nodiscard]] SLUICE_EXPORT const void* address(const Operands& operands, Operand id) noexcept;

/// Sets the pointer that `id` names.
SLUICE_EXPORT void set_address(Operands& operands, Operand id, void* pointer) noexcept;

/// Byte offset of element (row, col), or of the block that holds it, from the base pointer.
[[nodiscard]] constexpr std::int64_t offset_bytes(const Layout& layout, DType dtype,
                                                  std::int64_t row, std::int64_t col) noexcept {
  const std::int64_t row_part = layout.block_rows == 0
                                    ? row * layout.row_stride_bytes
                                    : (row / layout.block_rows) * layout.block_stride_bytes +
                                          (row % layout.block_rows) * layout.row_stride_bytes;
  const std::int64_t col_part = layout.block_cols == 0
                                    ? bytes_of(dtype, col)
                                    : (col / layout.block_cols) * layout.col_block_stride_bytes +
                                          (col % layout.block_cols) * size_bytes(dtype);
  return row_part + col_part;
}

/// Checks a problem by itself: dims, types, gate parameters, layouts, flags that fit the operator.
/// Errors: kInvalidArgument; the message names the field, what was given and what was wanted.
SLUICE_EXPORT Status validate(const Problem& problem) noexcept;

}  // namespace sluice
