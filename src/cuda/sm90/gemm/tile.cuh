// SPDX-License-Identifier: Apache-2.0
// Tiles of the output, and the order in which persistent CTAs walk them.
#pragma once

#include "cuda/sm90/gemm/params.hpp"

namespace sluice::cuda::sm90::gemm {

// One tile of the output: m-th row tile of the cluster, n-th column tile; a tail one is the n-th
// box of kColumnBox columns.
struct Tile {
  int m;
  int n;
  bool tail = false;
};

template <class Cfg>
__device__ __forceinline__ int first_col(Tile tile) {
  if constexpr (Cfg::kTailTiles) {
    if (tile.tail) return tile.n * kColumnBox;
  }
  return tile.n * Cfg::kOutCols;
}

// Tiles in column order within groups of `group` row tiles, so that a wave shares weights in L2.
__device__ __forceinline__ Tile tile_at(const TileOrder& order, int index, int columns) {
  const int per_group = order.group * columns;
  const int first = index / per_group * order.group;
  const int rows = min(order.group, order.m_tiles - first);
  const int rest = index % per_group;
  return {first + rest % rows, rest / rows};
}

// The t-th tile of all: whole ones, then tail ones.
template <class Cfg>
__device__ __forceinline__ Tile tile_at(const TileOrder& order, int t) {
  if constexpr (Cfg::kTailTiles) {
    if (t >= order.whole) {
      const Tile tile = tile_at(order, t - order.whole, order.cut.tail);
      return {tile.m, tile.n + order.cut.whole * (Cfg::kTileN / kColumnBox), true};
    }
  }
  if constexpr (Cfg::kHalfTiles) {
    if (order.halves.among > 0) {
      const HalfTiles::Place place = order.halves.at(t);
      return {place.row, place.column};
    }
  }
  return tile_at(order, t, order.cut.whole);
}

}  // namespace sluice::cuda::sm90::gemm
