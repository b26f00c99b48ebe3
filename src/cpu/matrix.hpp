// SPDX-License-Identifier: Apache-2.0
// A matrix in memory as the engine sees it, and rows of it to and from fp32.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/kernels.hpp"
#include "sluice/operands.hpp"

namespace sluice::cpu {

/// Columns that elementwise code handles at a time: a few such fp32 rows fit in L1.
inline constexpr std::int64_t kChunk = 256;

/// Base pointer, type and resolved layout. A null base is an operand that is not there.
struct Matrix {
  char* base = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  Layout layout{};

  [[nodiscard]] bool present() const noexcept { return base != nullptr; }
  [[nodiscard]] char* at(std::int64_t row, std::int64_t col) const noexcept {
    return base + offset_bytes(layout, dtype, row, col);
  }
  /// out[i] = at(first + i, 0) for i < count.
  void rows_at(std::int64_t first, std::int64_t count, const void** out) const noexcept {
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t row = first + done;
      const std::int64_t left = count - done;
      const std::int64_t some = layout.block_rows == 0
                                    ? left
                                    : std::min(left, layout.block_rows - row % layout.block_rows);
      const char* const begin = at(row, 0);
      for (std::int64_t i = 0; i < some; ++i) out[done + i] = begin + i * layout.row_stride_bytes;
      done += some;
    }
  }
};

/// The operand of a spec that the operator uses; not there where the pointer is null.
[[nodiscard]] inline Matrix matrix_of(const OperandSpec& spec, const Operands& operands) noexcept {
  auto* base = const_cast<char*>(static_cast<const char*>(address(operands, spec.id)));
  return {base, spec.dtype, spec.rows, spec.cols, spec.layout};
}

/// Rows without gaps, in the workspace.
[[nodiscard]] inline Matrix dense(void* base, DType dtype, std::int64_t rows,
                                  std::int64_t cols) noexcept {
  return {static_cast<char*>(base), dtype, rows, cols,
          Layout{.row_stride_bytes = bytes_of(dtype, cols)}};
}

/// Rows and elements of a matrix as fp32, through one target's conversions.
class RowIo {
 public:
  explicit RowIo(const RowKernels& kernels) noexcept : kernels_(kernels) {}

  /// out[i] = m[row, col + i] for i < n.
  void load(const Matrix& m, std::int64_t row, std::int64_t col, std::int64_t n,
            float* out) const noexcept {
    const auto widen = kernels_.widen[static_cast<std::size_t>(m.dtype)];
    if (m.layout.block_cols == 0) return widen(m.at(row, col), n, out);
    alignas(64) char packed[kChunk * 4];
    const std::int64_t elem = size_bytes(m.dtype);
    for (std::int64_t done = 0; done < n;) {
      const std::int64_t part = std::min(n - done, kChunk);
      each_block(m, row, col + done, part, [&](char* at, std::int64_t from, std::int64_t count) {
        copy(packed + from * elem, at, count, elem);
      });
      widen(packed, part, out + done);
      done += part;
    }
  }

  /// m[row, col + i] = in[i] for i < n, rounded to nearest even.
  void store(const Matrix& m, std::int64_t row, std::int64_t col, std::int64_t n,
             const float* in) const noexcept {
    const auto narrow = kernels_.narrow[static_cast<std::size_t>(m.dtype)];
    if (m.layout.block_cols == 0) return narrow(in, n, m.at(row, col));
    alignas(64) char packed[kChunk * 4];
    const std::int64_t elem = size_bytes(m.dtype);
    for (std::int64_t done = 0; done < n;) {
      const std::int64_t part = std::min(n - done, kChunk);
      narrow(in + done, part, packed);
      each_block(m, row, col + done, part, [&](char* at, std::int64_t from, std::int64_t count) {
        copy(at, packed + from * elem, count, elem);
      });
      done += part;
    }
  }

  /// inout[i] as it would come back from memory of this type.
  void round(DType dtype, std::int64_t n, float* inout) const noexcept {
    if (dtype == DType::kF32) return;
    alignas(64) char packed[kChunk * 2];
    for (std::int64_t done = 0; done < n; done += kChunk) {
      const std::int64_t part = std::min(n - done, kChunk);
      kernels_.narrow[static_cast<std::size_t>(dtype)](inout + done, part, packed);
      kernels_.widen[static_cast<std::size_t>(dtype)](packed, part, inout + done);
    }
  }

 private:
  // Calls f(address, index of the first element, count) for each contiguous run of columns.
  template <class F>
  static void each_block(const Matrix& m, std::int64_t row, std::int64_t col, std::int64_t n,
                         const F& f) noexcept {
    const std::int64_t block = m.layout.block_cols;
    for (std::int64_t done = 0; done < n;) {
      const std::int64_t count = std::min(n - done, block - (col + done) % block);
      f(m.at(row, col + done), done, count);
      done += count;
    }
  }

  static void copy(char* to, const char* from, std::int64_t count, std::int64_t elem) noexcept {
    if (count == 1 && elem == 2) {  // columns interleaved one by one
      std::memcpy(to, from, 2);
    } else {
      std::memcpy(to, from, static_cast<std::size_t>(count * elem));
    }
  }

  const RowKernels& kernels_;
};

}  // namespace sluice::cpu
