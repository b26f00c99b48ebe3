// SPDX-License-Identifier: Apache-2.0
// The memory that a thread reads next, as one long stream: kernels that read rows side by side
// prefetch their successors one row after the other, so that the hardware follows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/kernels.hpp"

namespace sluice::cpu {

/// An address that may lie outside of any row: nothing is read there, so it is a number.
inline const void* behind(const void* line, std::int64_t bytes) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): see above
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(line) +
                                       static_cast<std::uintptr_t>(bytes));
}

/// Brings a row near until over(). It is read, a byte a line: of as many prefetches as that at once
/// most would be dropped.
template <class Over>
void read_lines(const void* row, std::int64_t bytes, const Over& over) noexcept {
  constexpr std::int64_t kLine = 64;
  constexpr std::int64_t kLook = 16 * kLine;  // between two looks at over()
  const auto* const at = static_cast<const volatile char*>(row);
  for (std::int64_t begin = 0; begin < bytes && !over(); begin += kLook) {
    for (std::int64_t i = begin; i < std::min(begin + kLook, bytes); i += kLine) {
      static_cast<void>(at[i]);
    }
  }
}

/// Rows longer than this are looked at a part of a row ahead: a whole one would push the token out
/// of L1 (Zen 5: 48 KiB), which is as long.
inline constexpr std::int64_t kLongRowBytes = 16384;

/// A stream of rows: ahead[i] is what is prefetched beside lines[i], at the same offsets, while the
/// bytes [begin, end) of `rows` rows are read one row after the other. Whole rows look about
/// `ahead_bytes` ahead: whole rows on, or, where rows are long and follow each other without a gap,
/// so many bytes. Rows that take turns, a piece each, look at the next row's piece, the last one at
/// the first row's next piece or, at the rows' end, at what follows them.
inline void stream_ahead(const void* const* lines, int rows, std::int64_t begin, std::int64_t end,
                         std::int64_t row_bytes, std::int64_t ahead_bytes,
                         const void** ahead) noexcept {
  const bool whole = end - begin == row_bytes;
  const auto distance = static_cast<int>(
      whole ? std::clamp<std::int64_t>(ahead_bytes / row_bytes, 1, DotKernels::kAheadLines) : 1);
  for (int i = 0; i < rows; ++i) {
    const bool part =
        whole && row_bytes > kLongRowBytes && lines[i + 1] == behind(lines[i], row_bytes);
    ahead[i] = part ? behind(lines[i], ahead_bytes) : lines[i + distance];
  }
  if (whole) return;
  ahead[rows - 1] = end < row_bytes ? behind(lines[0], end - begin) : behind(lines[rows], -begin);
}

/// Pieces of `row_bytes` bytes that begin at lines[0], lines[1], ..., one after the other.
class NextRows {
 public:
  NextRows(const void* const* lines, int rows, std::int64_t row_bytes) noexcept
      : lines_(lines), rows_(rows), row_bytes_(row_bytes) {}
  /// Where the next `bytes` begin. They may end behind the row: rows mostly lie one after the
  /// other.
  const void* take(std::int64_t bytes) noexcept {
    const void* const at = behind(lines_[row_], at_);
    for (at_ += bytes; at_ >= row_bytes_ && row_ + 1 < rows_; at_ -= row_bytes_) ++row_;
    return at;
  }
  /// to[i] is what is prefetched beside row i, at the same offsets, while the bytes [begin, end) of
  /// `rows` rows are read one after the other.
  void beside(int rows, std::int64_t begin, std::int64_t end, const void** to) noexcept {
    for (int i = 0; i < rows; ++i) to[i] = behind(take(end - begin), -begin);
  }

 private:
  const void* const* lines_;
  int rows_;
  std::int64_t row_bytes_;
  int row_ = 0;
  std::int64_t at_ = 0;
};

}  // namespace sluice::cpu
