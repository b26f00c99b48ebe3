// SPDX-License-Identifier: Apache-2.0
// Packing: gate and up weights in alternating blocks of rows of one tensor, and back.
#pragma once

#include <cstdint>

#include "sluice/export.hpp"
#include "sluice/problem.hpp"
#include "sluice/status.hpp"

namespace sluice {

/// Which of the two is first in every pair of blocks.
enum class PackOrder : std::int32_t { kGateUp = 0, kUpGate = 1 };

/// How gate and up [H, D] lie in packed [2H, D], row r of each:
///
///   packed row of the first:   2 · b · (r / b) + r % b         (b: block_rows)
///   packed row of the second:  2 · b · (r / b) + r % b + b
///
/// b = 1 alternates single rows; b = H is two halves. The first is gate with kGateUp, up with
/// kUpGate. Elements are moved as they are. A vector (a bias) has d = 1. Of types with blocks of
/// columns, d is a row in bytes and element_bytes 1.
/// Kernels read packed weights in place (without gaps): layout.w_gate_up =
/// interleaved_rows(block_rows, d, dtype), the first at the base pointer, the second block_rows
/// rows behind it.
struct Packing {
  std::int64_t h = 0;              ///< H, rows of gate and of up; at least 1
  std::int64_t d = 0;              ///< D, elements of a row; at least 1
  std::int64_t element_bytes = 2;  ///< 1, 2, 4 or 8
  std::int64_t block_rows = 0;     ///< b, a divisor of H
  PackOrder order = PackOrder::kGateUp;
  /// Distances of rows, multiples of element_bytes and at least a row.
  std::int64_t gate_stride_bytes = kContiguous;
  std::int64_t up_stride_bytes = kContiguous;
  std::int64_t packed_stride_bytes = kContiguous;
};

/// packed[2H, D] = gate[H, D] and up[H, D] in alternating blocks of rows; what lies between rows is
/// left as it is.
///
/// All memory is the host's. Pointers are multiples of element_bytes. The extent of packed (from
/// its first byte to its last row's end) may not overlap those of gate and up; gate and up are only
/// read and may. Runs on the calling thread, at the speed of memcpy; allocates nothing.
/// Thread-safe.
/// Errors, before a byte is written: kInvalidArgument for a null or misaligned pointer, counts that
/// are no positive numbers, H that is no multiple of block_rows, another element size, a
/// stride below a row, an extent of 2^60 bytes or more, and overlap.
[[nodiscard]] SLUICE_EXPORT Status pack_gate_up(const Packing& packing, const void* gate,
                                                const void* up, void* packed) noexcept;

/// The inverse: gate[H, D] and up[H, D] from packed[2H, D]. Rules and errors as of pack_gate_up();
/// no two of the three extents may overlap.
[[nodiscard]] SLUICE_EXPORT Status unpack_gate_up(const Packing& packing, const void* packed,
                                                  void* gate, void* up) noexcept;

}  // namespace sluice
