// SPDX-License-Identifier: Apache-2.0
// How a row is cut into chunks of 16 bytes, and chunks into launches: pure arithmetic for host and
// device, tested on any CPU (tests/host_cuda). docs/kernels/gate_mul.md draws it.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <span>

#include "math/gate.hpp"
#include "sluice/device.hpp"

namespace sluice::cuda::elementwise {

inline constexpr int kChunkBytes = 16;  // the widest load and store of a thread

/// How the rows of all operands lie to 16-byte boundaries.
struct RowCut {
  bool alike;  ///< the same for every operand: a chunk inside the row is one access in each
  int shift;   ///< elements by which chunk 0 begins before column 0, at a boundary; 0 unless alike
};

/// `address` of the row in one operand; `difference`: its exclusive or with the others, or-ed.
template <int kElems>
SLUICE_HOST_DEVICE RowCut cut_row(std::uintptr_t address, std::uintptr_t difference) {
  const bool alike = difference % kChunkBytes == 0;
  const auto behind = static_cast<int>(address % kChunkBytes);
  return {alike, alike ? behind / (kChunkBytes / kElems) : 0};
}

/// The chunks that a CTA takes at once. Elements [begin, end), counted from the first chunk's
/// start, lie in the row; chunk j holds [j · kElems, (j + 1) · kElems).
struct Round {
  std::int64_t col;  ///< of the first chunk's start; below 0 by the row's shift at most
  int begin;
  int end;
};

/// The round of `count` chunks from chunk `first` of the row.
template <int kElems>
SLUICE_HOST_DEVICE Round round_at(const RowCut& cut, std::int64_t first, int count,
                                  std::int64_t cols) {
  const std::int64_t col = first * kElems - cut.shift;
  const std::int64_t left = cols - col;
  const int most = count * kElems;
  return {col, col < 0 ? static_cast<int>(-col) : 0, left < most ? static_cast<int>(left) : most};
}

/// Chunks that hold a row, the shifted first one included.
template <int kElems>
SLUICE_HOST_DEVICE std::int64_t chunks_of(const RowCut& cut, std::int64_t cols) {
  return (cols + cut.shift + kElems - 1) / kElems;
}

/// Who takes which chunks, a thread one at a time. The kernel is the same: chunk i of a row goes to
/// CTA column i / threads mod grid_x, rows to CTA rows mod grid_y.
enum class Walk : std::uint8_t {
  kRow = 0,    ///< a CTA a row
  kTiled = 1,  ///< a CTA a column tile; rows that follow each other without a gap are one long row
};

/// A config: the walk, and of a tiled one the chunks of a row that a CTA takes.
struct Tiling {
  Walk walk = Walk::kTiled;
  int chunks = 0;  ///< 0: tile_threads()
};

struct Grid {
  int threads = 0;
  std::int64_t x = 0;  ///< CTAs along a row
  std::int64_t y = 0;  ///< CTAs along the rows
  bool whole = false;  ///< one row of whole chunks, each with a thread of its own
};

inline constexpr int kMaxThreads = 256;
[[nodiscard]] constexpr int tile_threads(bool grad) noexcept { return grad ? 128 : 256; }

/// What a launch covers: rows and columns as the kernel sees them (one row of all elements where
/// rows were joined), and the elements of a chunk.
struct Extent {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  int elems = 8;
  bool grad = false;
};
/// `addresses`: of every operand's first row, or-ed.
[[nodiscard]] Grid grid_of(const Tiling& tiling, const Extent& extent,
                           std::uintptr_t addresses) noexcept;

/// The walk of an architecture and width where nothing was measured for the shape.
[[nodiscard]] Walk preferred_walk(Arch arch, std::int64_t cols) noexcept;

/// The tilings of a pass, the preferred one first, then the other walk, then tiles of other widths.
inline constexpr int kTileChunks[] = {64, 128, 256, 512, 1024};
using Tilings = std::array<Tiling, 1 + std::size(kTileChunks)>;
[[nodiscard]] Tilings tilings(Arch arch, std::int64_t cols, bool grad) noexcept;

/// "row", "tiled"; "tiled512": so many chunks a CTA.
void name_tiling(const Tiling& tiling, std::span<char> out) noexcept;

}  // namespace sluice::cuda::elementwise
