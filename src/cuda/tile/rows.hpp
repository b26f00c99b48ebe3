// SPDX-License-Identifier: Apache-2.0
// Rows of a matrix: where they lie, and which of them an mma of a decode kernel multiplies. The
// same on host and device.
#pragma once

namespace sluice::cuda::tile {

/// A matrix of 16-bit elements wherever its layout puts the rows. Bytes.
struct Rows {
  const char* base;  ///< null for no matrix
  long long row_bytes;
  long long block_bytes;
  int block_rows;  ///< 0: all rows are one block

  /// Where row `i` begins.
  [[nodiscard]] constexpr const char* at(int i) const noexcept {
    const char* const first = base;  // NOTE: read here, or decode on sm_80 takes more instructions
    if (block_rows == 0) return first + i * row_bytes;
    return first + i / block_rows * block_bytes + i % block_rows * row_bytes;
  }
};

/// A matrix without blocks; null where the step has none.
struct RowMajor {
  char* base = nullptr;
  long long row_bytes = 0;  ///< 0: one row, repeated
};

inline constexpr int kMmaRows = 16;     ///< of one mma: eight gate and eight up rows, or sixteen
inline constexpr int kSliceTokens = 8;  ///< columns of one mma

/// Where row slot `slot` of a stage finds its weights.
struct SlotRow {
  int unit = 0;     ///< of the block
  bool up = false;  ///< gate_up: the up row of the pair
};

/// Of sixteen slots of gate_up the first eight are gate rows, the others the up rows of the same
/// pairs: rows r and r + 8 of an mma, which one thread holds.
[[nodiscard]] constexpr SlotRow slot_row(int slot, bool gated) noexcept {
  if (!gated) return {slot, false};
  constexpr int kHalf = kMmaRows / 2;
  return {slot / kMmaRows * kHalf + slot % kHalf, slot % kMmaRows >= kHalf};
}

}  // namespace sluice::cuda::tile
