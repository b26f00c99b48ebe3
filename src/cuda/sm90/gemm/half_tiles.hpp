// SPDX-License-Identifier: Apache-2.0
// Which cluster multiplies which tile where those of the last row tile take half the time: pure
// arithmetic, the same on host and device, tested on any CPU.
//
// Columns stay in order, so that a turn (one tile of every cluster) shares weights in L2. Within a
// turn half tiles lie side by side and move on from turn to turn: every cluster gets its share, and
// those with a tile in the last turn get them first.
//
//   3 row tiles of 7 columns on 8 clusters    cluster 0  1  2  3  4  5  6  7
//   column, h where its tile is half          turn 0  0h 1h 0  0  1  1  2  2
//                                             turn 1  3  3  2h 3h 4h 4  4  5
//                                             turn 2  5h 6h 5  6  6
#pragma once

#include <algorithm>

namespace sluice::cuda::sm90::gemm {

struct HalfTiles {
  int columns = 0;    ///< of tiles
  int row_tiles = 0;  ///< of a column, at least two; the last one is half
  int clusters = 0;   ///< that run at once
  int among = 0;      ///< the first so many get half tiles; 0: tiles go by order alone

  struct Place {
    int row;
    int column;
  };

  /// The tile of cluster t % clusters in turn t / clusters.
  [[nodiscard]] constexpr Place at(int t) const noexcept {
    const int turn = t / clusters;
    const int cluster = t - turn * clusters;
    const int before = turn * clusters / row_tiles;  // half tiles of earlier turns
    const int end = (turn + 1) * clusters / row_tiles;
    const int here = (end < columns ? end : columns) - before;
    int first = before % among;
    const int left = columns * row_tiles - turn * clusters;  // the last turn may be short
    if (among > left && first + here > left) first = 0;
    const int wrapped = first + here > among ? first + here - among : 0;
    if (cluster < wrapped) return {row_tiles - 1, before + among - first + cluster};
    if (cluster >= first && cluster < first + here - wrapped) {
      return {row_tiles - 1, before + cluster - first};
    }
    const int passed = cluster < first ? wrapped : here;
    const int whole = turn * clusters - before + cluster - passed;
    return {whole % (row_tiles - 1), whole / (row_tiles - 1)};
  }
};

/// What the cluster with most to do multiplies, in whole tiles. Needs among > 0.
[[nodiscard]] constexpr double longest_share(const HalfTiles& h) noexcept {
  const int tiles = h.columns * h.row_tiles;
  const int turns = (tiles + h.clusters - 1) / h.clusters;
  const int last = tiles - (turns - 1) * h.clusters;  // clusters with a tile in the last turn
  const int before = (turns - 1) * h.clusters / h.row_tiles;  // half tiles ahead of it
  const int of_last = (h.among == last ? h.columns : before) / h.among;
  const int of_others = h.among == last ? 0 : before / h.among;
  return std::max(turns - of_last / 2.0, last == h.clusters ? 0 : turns - 1 - of_others / 2.0);
}

/// The order of so many tiles that brings the most.
[[nodiscard]] constexpr HalfTiles spread_half_tiles(int columns, int row_tiles,
                                                    int clusters) noexcept {
  const int tiles = columns * row_tiles;
  if (tiles <= clusters || row_tiles < 2) return {};
  const int rest = tiles % clusters;
  const int a_turn = (clusters + row_tiles - 1) / row_tiles;
  const HalfTiles h{columns, row_tiles, clusters, rest < a_turn ? clusters : rest};
  const int turns = (tiles + clusters - 1) / clusters;
  return longest_share(h) < turns ? h : HalfTiles{};
}

}  // namespace sluice::cuda::sm90::gemm
