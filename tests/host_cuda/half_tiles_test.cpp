// SPDX-License-Identifier: Apache-2.0
// The order of tiles where the last row tile is half, as arithmetic.
#include "cuda/sm90/gemm/half_tiles.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "cuda/sm90/gemm/table.hpp"

namespace sluice::cuda::sm90::gemm {
namespace {

std::vector<HalfTiles> orders() {
  std::vector<HalfTiles> all;
  for (const int clusters : {1, 2, 3, 8, 66, 74, 78, 132}) {
    for (int row_tiles = 2; row_tiles <= 16; ++row_tiles) {
      for (int columns = 1; columns < 400; columns += columns < 60 ? 1 : 7) {
        const HalfTiles h = spread_half_tiles(columns, row_tiles, clusters);
        if (h.among > 0) all.push_back(h);
      }
    }
  }
  return all;
}

TEST(HalfTiles, EveryTileHasItsTurnOnce) {
  for (const HalfTiles& h : orders()) {
    std::set<std::pair<int, int>> seen;
    for (int t = 0; t < h.columns * h.row_tiles; ++t) {
      const HalfTiles::Place place = h.at(t);
      EXPECT_TRUE(place.row >= 0 && place.row < h.row_tiles);
      EXPECT_TRUE(place.column >= 0 && place.column < h.columns);
      EXPECT_TRUE(seen.emplace(place.row, place.column).second)
          << h.columns << " columns, " << h.row_tiles << " rows, " << h.clusters
          << " clusters: " << t;
    }
  }
}

// A turn's tiles are of neighbouring columns, so that they share weights in L2.
TEST(HalfTiles, ATurnReadsFewColumns) {
  for (const HalfTiles& h : orders()) {
    const int tiles = h.columns * h.row_tiles;
    for (int t = 0; t < tiles; t += h.clusters) {
      int least = h.columns;
      int most = 0;
      for (int i = t; i < std::min(t + h.clusters, tiles); ++i) {
        least = std::min(least, h.at(i).column);
        most = std::max(most, h.at(i).column);
      }
      EXPECT_LE(most - least, h.clusters / h.row_tiles + 2);
    }
  }
}

TEST(HalfTiles, NoClusterHasMoreThanTheLongestShare) {
  for (const HalfTiles& h : orders()) {
    std::vector<double> share(static_cast<std::size_t>(h.clusters));
    for (int t = 0; t < h.columns * h.row_tiles; ++t) {
      share[static_cast<std::size_t>(t % h.clusters)] += h.at(t).row == h.row_tiles - 1 ? 0.5 : 1;
    }
    EXPECT_LE(*std::max_element(share.begin(), share.end()), longest_share(h));
  }
}

// 530 x 9472 x 9472: 99 columns of five row tiles, 3.75 waves on 132 SMs.
TEST(HalfTiles, ThoseWithAFourthTileHaveTheHalfOnes) {
  const Tiling tiling{192, 1, Schedule::kPingpong, 16};
  const HalfTiles h = half_tiles({530, 18944, 9472, GemmKind::kGateUp}, tiling);
  EXPECT_EQ(h.among, 99);
  EXPECT_EQ(longest_share(h), 3.5);
}

TEST(HalfTiles, WholeTilesKeepTheirOrder) {
  const Tiling tiling{192, 1, Schedule::kPingpong, 16};
  for (const std::int64_t m : {65, 128, 193, 256, 577, 4096}) {
    EXPECT_EQ(half_tiles({m, 28672, 4096, GemmKind::kGateUp}, tiling).among, 0) << m;
  }
  EXPECT_EQ(half_tiles({530, 28672, 4096, GemmKind::kGateUpGrad}, tiling).among, 0);
}

}  // namespace
}  // namespace sluice::cuda::sm90::gemm
