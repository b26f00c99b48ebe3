// SPDX-License-Identifier: Apache-2.0
// The memory that a thread reads next, as one long stream: kernels that read rows side by side
// prefetch their successors one row after the other, so that the hardware follows.
#pragma once

#include <cstdint>

namespace sluice::cpu {

/// An address that may lie outside of any row: nothing is read there, so it is a number.
inline const void* behind(const void* line, std::int64_t bytes) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): see above
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(line) +
                                       static_cast<std::uintptr_t>(bytes));
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

 private:
  const void* const* lines_;
  int rows_;
  std::int64_t row_bytes_;
  int row_ = 0;
  std::int64_t at_ = 0;
};

}  // namespace sluice::cpu
