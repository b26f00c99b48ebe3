// SPDX-License-Identifier: Apache-2.0
// The tilings of the mma.sync decode kernel, how its CTAs share the weights, and which tiling
// serves which shape: pure arithmetic, tested on any CPU. Drawing: docs/kernels/sm80.md.
//
// A unit is what a CTA owns at least: a pair (one gate row and the up row of the same number) in
// gate_up, a row in linear. Shares are of rows, not of tiles, since 31 rows a CTA (8B's down on 132
// SMs) are no multiple of what an mma multiplies, and a share of whole rows needs no fix-up. Only
// where activations would outweigh the rows do 2 or 4 CTAs share rows and divide K.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cuda/tile/even_shares.hpp"
#include "cuda/tile/rows.hpp"

namespace sluice::cuda::sm80::decode {

using tile::even_shares;
using tile::EvenShares;
using tile::kMmaRows;
using tile::kSliceTokens;
using tile::slot_row;
using tile::SlotRow;
using tile::UnitRange;

inline constexpr int kMaxTokens = 64;
inline constexpr int kWarps = 8;         ///< that multiply
inline constexpr int kUnitColumns = 64;  ///< of K: 128 bytes of a row, what a stage holds of it
inline constexpr int kMostStages = 12;
inline constexpr int kMaxSplit = 4;     ///< CTAs that share rows: 1, 2 or 4
inline constexpr int kMaxGroups = 368;  ///< of CTAs that share rows; each has two tickets

/// An instantiation of the kernel, and how its launch divides the work.
struct Tiling {
  int tokens = 8;  ///< columns of the mma tiles: M at most
  int rows = 64;   ///< weight rows of a stage
  int groups = 2;  ///< of warps, 2 or 4, each with a ring and every `groups`-th unit of K
  int stages = 0;  ///< of each ring, as many as the device's shared memory holds
  int split = 1;   ///< CTAs that share rows, each a part of K

  friend constexpr bool operator==(const Tiling&, const Tiling&) = default;
};

/// All kernels, by tokens. A new one is a line here. Few rows are for CTAs that own no more; many
/// for tokens that would outweigh fewer. From 32 tokens on a warp has 32 rows, else 16: each reads
/// all tokens from shared memory.
inline constexpr Tiling kTilings[] = {
    {.tokens = 8, .rows = 64, .groups = 2},  {.tokens = 8, .rows = 32, .groups = 4},
    {.tokens = 16, .rows = 64, .groups = 2}, {.tokens = 16, .rows = 32, .groups = 4},
    {.tokens = 32, .rows = 64, .groups = 4}, {.tokens = 32, .rows = 128, .groups = 2},
    {.tokens = 64, .rows = 64, .groups = 4}, {.tokens = 64, .rows = 128, .groups = 2},
};

/// Warps that copy. Eight spilled at 64 tokens and gained nothing at 32.
[[nodiscard]] constexpr int copy_warps(const Tiling& t) noexcept { return t.tokens > 16 ? 4 : 8; }

/// Tokens, in slices of eight, whose sums groups of warps exchange at once.
[[nodiscard]] constexpr int pass_slices(const Tiling& t) noexcept {
  return t.tokens <= kSliceTokens ? 1 : 2;
}

/// Accumulator tiles of 16 rows by 8 tokens that a warp has in one pass.
[[nodiscard]] constexpr int pass_tiles(const Tiling& t) noexcept {
  return t.rows / kMmaRows / (kWarps / t.groups) * pass_slices(t);
}

/// A stage of all groups: weight rows and tokens, 128 bytes each.
[[nodiscard]] constexpr int stage_bytes(const Tiling& t) noexcept {
  return t.groups * (t.rows + t.tokens) * kUnitColumns * 2;
}

/// What the groups exchange sums through.
[[nodiscard]] constexpr int exchange_bytes(const Tiling& t) noexcept {
  return kWarps * pass_tiles(t) * 32 * 16;
}

/// Of two mbarriers a stage, in whole lines.
[[nodiscard]] constexpr int barrier_bytes(const Tiling& t) noexcept {
  return (t.groups * t.stages * 16 + 127) / 128 * 128;
}

[[nodiscard]] constexpr int smem_bytes(const Tiling& t) noexcept {
  return exchange_bytes(t) + t.stages * stage_bytes(t) + barrier_bytes(t);
}

/// Bytes of a CTA's sums where K is divided.
[[nodiscard]] constexpr std::int64_t partial_bytes(const Tiling& t) noexcept {
  return std::int64_t{t.rows} * t.tokens * 4;
}

/// What the choice depends on. `n` counts units: H for gate_up, D for linear.
struct Shape {
  std::int64_t m = 1;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool gated = false;
  int sm_count = 108;
  int smem_per_block_bytes = 163 * 1024;  ///< what a CTA may have at most
  double intake = 1;                      ///< what memory gives an SM, over what an H200's gives
};

/// How the CTAs of a launch divide a matrix: group g owns units.part(g) in `blocks` blocks, and its
/// CTA r of each block the columns columns.part(r), in units of 64.
struct Shares {
  int groups = 0;
  int blocks = 0;
  EvenShares units;
  EvenShares columns;

  /// Block `b` of group `g`.
  [[nodiscard]] constexpr UnitRange block(int g, int b) const noexcept {
    const UnitRange all = units.part(g);
    const UnitRange share = even_shares(all.size(), blocks).part(b);
    return {all.begin + share.begin, all.begin + share.end};
  }
};

/// Units that a block holds.
[[nodiscard]] constexpr int block_units(const Tiling& t, bool gated) noexcept {
  return gated ? t.rows / 2 : t.rows;
}

[[nodiscard]] constexpr Shares make_shares(const Tiling& t, const Shape& shape) noexcept {
  const int n = static_cast<int>(shape.n);
  const int sms = shape.sm_count < t.split ? t.split : shape.sm_count;
  int groups = sms / t.split;
  if (groups > kMaxGroups && t.split > 1) groups = kMaxGroups;
  if (groups > n) groups = n < 1 ? 1 : n;
  Shares shares;
  shares.groups = groups;
  shares.units = even_shares(n, groups);
  const int most = block_units(t, shape.gated);
  const int largest = shares.units.part(0).size();
  shares.blocks = largest < 1 ? 1 : (largest + most - 1) / most;
  const int columns = static_cast<int>((shape.k + kUnitColumns - 1) / kUnitColumns);
  shares.columns = even_shares(columns, t.split);
  return shares;
}

/// Where 16 bytes of a row lie in a stage, so that eight rows of one chunk column touch all banks
/// once.
[[nodiscard]] constexpr int chunk_at(int row, int chunk) noexcept {
  return row * kUnitColumns * 2 + (chunk ^ row % 8) * 16;
}

/// Time of the longest share in arbitrary units. Lower is better; it ranks and predicts nothing.
[[nodiscard]] double cost(const Shape& shape, const Tiling& tiling) noexcept;

/// The narrowest tilings that hold the shape's tokens and fit shared memory, cheapest first, K
/// undivided or, where a group's rows are one block, divided. Writes at most out.size(), returns
/// how many there are.
std::size_t ranked(const Shape& shape, std::span<Tiling> out) noexcept;

/// "t8r64s11", with "x2" or "x4" behind it where so many CTAs share rows.
void name_tiling(const Tiling& tiling, std::span<char> out) noexcept;

}  // namespace sluice::cuda::sm80::decode
