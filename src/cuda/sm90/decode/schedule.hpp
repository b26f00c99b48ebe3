// SPDX-License-Identifier: Apache-2.0
// Who reads which weight rows in which order: the schedule of the decode kernel as pure arithmetic,
// the same on host and device, tested on any CPU. Drawings: docs/kernels/mlp_decode.md.
//
// A unit is what a CTA owns at least: a pair (one gate row and the up row of the same number) in
// gate_up, a row in down; where weights come by boxes a box of 8 pairs or 16 rows. A CTA owns a
// range of units, cuts it into blocks that fit the row slots of a stage, and walks the columns of
// each block in chunks; a stage of the ring is one chunk. By boxes a group of CTAs may own the same
// units and divide the chunks among them.
#pragma once

#include "cuda/tile/even_shares.hpp"
#include "cuda/tile/rows.hpp"

namespace sluice::cuda::sm90::decode {

inline constexpr int kSpanColumns = 64;  ///< 128 bytes: all banks, the span of a swizzle, a box

using tile::even_shares;
using tile::EvenShares;
using tile::kMmaRows;
using tile::kSliceTokens;
using tile::slot_row;
using tile::SlotRow;
using tile::UnitRange;

/// Pairs of gate_up (`gated`) or rows of w_down in a unit.
[[nodiscard]] constexpr int unit_size(bool boxes, bool gated) noexcept {
  if (!boxes) return 1;
  return gated ? kMmaRows / 2 : kMmaRows;
}

/// Units of `total` pairs or rows; the last box of rows may be half filled.
[[nodiscard]] constexpr int units_of(int total, bool boxes, bool gated) noexcept {
  const int size = unit_size(boxes, gated);
  return (total + size - 1) / size;
}

/// One matrix product as a CTA sees it.
struct Phase {
  UnitRange units;
  int blocks = 0;
  EvenShares block_sizes;  ///< of units
  int columns = 0;         ///< K
  UnitRange chunks;        ///< of each block

  [[nodiscard]] constexpr UnitRange block(int i) const noexcept {
    const UnitRange share = block_sizes.part(i);
    return {units.begin + share.begin, units.begin + share.end};
  }
  /// Columns of chunk `i` where a chunk has `depth`.
  [[nodiscard]] constexpr int chunk_columns(int i, int depth) const noexcept {
    const int left = columns - i * depth;
    return left < depth ? left : depth;
  }
  /// Spans of 64 columns of chunk `i`, the last one perhaps in part.
  [[nodiscard]] constexpr int chunk_spans(int i, int depth) const noexcept {
    return (chunk_columns(i, depth) + kSpanColumns - 1) / kSpanColumns;
  }
};

/// How the groups of a launch divide one matrix product, all that takes a division: the host's
/// work, for a launch's first copy waits for what its producers compute.
struct Shares {
  EvenShares units;        ///< to each group
  int blocks = 0;          ///< of each group, as many as the largest shares need
  EvenShares block_sizes;  ///< of the smaller shares; the larger ones have a unit more to deal out
  EvenShares chunks;       ///< of a block's columns to each CTA of a group

  /// The phase of CTA `rank` of group `group`.
  [[nodiscard]] constexpr Phase phase(int group, int rank, int columns) const noexcept {
    const int more = group < units.rest ? 1 : 0;
    return {units.part(group),
            blocks,
            {block_sizes.each, block_sizes.rest + more},
            columns,
            chunks.part(rank)};
  }
};

/// The shares of `groups` groups of `split` CTAs, where a block has up to units_a_block of `units`.
[[nodiscard]] constexpr Shares make_shares(int units, int groups, int units_a_block, int columns,
                                           int depth, int split) noexcept {
  Shares shares;
  shares.units = even_shares(units, groups);
  const int largest = shares.units.part(0).size();
  shares.blocks = (largest + units_a_block - 1) / units_a_block;
  shares.block_sizes = even_shares(shares.units.each, shares.blocks);
  shares.chunks = even_shares((columns + depth - 1) / depth, split);
  return shares;
}

/// What a launch of gate_up brings into L2 for the launch of down behind it: of each CTA's first
/// block of w_down, which it reads first, so many columns.
struct WeightPrefetch {
  Shares shares;  ///< of w_down, to groups of `split` CTAs
  int unit_rows = 1;
  int ctas = 0;
  int split = 1;
  int depth = 0;
  int columns = 0;  ///< 0: none are brought

  /// The rows of the first block of a CTA of down, the last one perhaps beyond the matrix; of one
  /// that is not there none.
  [[nodiscard]] constexpr UnitRange rows(int cta) const noexcept {
    if (cta >= ctas) return {};
    const UnitRange block = shares.phase(cta / split, 0, 0).block(0);
    return {block.begin * unit_rows, block.end * unit_rows};
  }
  /// The first column that the CTA reads of them.
  [[nodiscard]] constexpr int first_column(int cta) const noexcept {
    return shares.chunks.part(cta % split).begin * depth;
  }
};

/// The slot of a unit's row (of its gate row; the up row lies kMmaRows / 2 behind).
[[nodiscard]] constexpr int slot_of_unit(int unit, bool gated) noexcept {
  constexpr int kHalf = kMmaRows / 2;
  return gated ? unit / kHalf * kMmaRows + unit % kHalf : unit;
}

}  // namespace sluice::cuda::sm90::decode
