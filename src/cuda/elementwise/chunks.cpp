// SPDX-License-Identifier: Apache-2.0
#include "cuda/elementwise/chunks.hpp"

#include <algorithm>
#include <bit>
#include <cstdio>

namespace sluice::cuda::elementwise {
namespace {

constexpr std::int64_t kMaxGridX = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t kMaxGridY = 65535;
constexpr std::int64_t kWarp = 32;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// As few rounds as kMaxThreads allow, and no more warps than fill them.
int row_threads(std::int64_t chunks) {
  const std::int64_t rounds = ceil_div(chunks, kMaxThreads);
  const std::int64_t threads = ceil_div(chunks, rounds);
  return static_cast<int>(ceil_div(threads, kWarp) * kWarp);
}

}  // namespace

Grid grid_of(const Tiling& tiling, const Extent& extent, std::uintptr_t addresses) noexcept {
  // A row that begins inside a chunk may need one more than this; the kernel's loops take it.
  const std::int64_t chunks = ceil_div(extent.cols, extent.elems);
  Grid grid;
  grid.y = std::min(extent.rows, kMaxGridY);
  if (tiling.walk == Walk::kRow) {
    grid.threads = row_threads(chunks);
    grid.x = 1;
    return grid;
  }
  const int taken = tiling.chunks == 0 ? tile_threads(extent.grad) : tiling.chunks;
  grid.threads = std::min(taken, kMaxThreads);
  grid.x = std::min(ceil_div(chunks, taken), kMaxGridX);
  grid.whole = extent.rows == 1 && extent.cols % extent.elems == 0 &&
               addresses % kChunkBytes == 0 && grid.x * grid.threads >= chunks;
  return grid;
}

Walk preferred_walk(Arch arch, std::int64_t cols) noexcept {
  if (arch == Arch::kBlackwell) {
    // Liger-Kernel's measurement on a B200 (pull request 1271), not ours: rows of which the next
    // power of two is at least 16384 are tiled.
    constexpr std::uint64_t kTiledFrom = 16384;
    return std::bit_ceil(static_cast<std::uint64_t>(cols)) >= kTiledFrom ? Walk::kTiled
                                                                         : Walk::kRow;
  }
  // A tile a CTA leaves a shorter last wave than a row a CTA, and joined rows need no tails.
  return Walk::kTiled;
}

Tilings tilings(Arch arch, std::int64_t cols, bool grad) noexcept {
  Tilings out;
  std::size_t count = 0;
  out[count++].walk = preferred_walk(arch, cols);
  out[count++].walk = out[0].walk == Walk::kRow ? Walk::kTiled : Walk::kRow;
  for (const int chunks : kTileChunks) {
    if (chunks != tile_threads(grad)) out[count++].chunks = chunks;
  }
  return out;
}

void name_tiling(const Tiling& tiling, std::span<char> out) noexcept {
  if (tiling.walk == Walk::kTiled && tiling.chunks != 0) {
    std::snprintf(out.data(), out.size(), "tiled%d", tiling.chunks);
  } else {
    std::snprintf(out.data(), out.size(), "%s", tiling.walk == Walk::kRow ? "row" : "tiled");
  }
}

}  // namespace sluice::cuda::elementwise
