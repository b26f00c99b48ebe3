// SPDX-License-Identifier: Apache-2.0
// The stream-K schedule as arithmetic: who multiplies which unit, and where the sums of a cut tile
// meet.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "cuda/sm90/gemm/stream_k/schedule.hpp"

namespace sluice::cuda::sm90::gemm {
namespace {

// Whole waves, one tile, fewer units than workers, tiles cut into two and into many pieces.
std::vector<StreamK> schedules() {
  std::vector<StreamK> all;
  for (const int tiles : {1, 2, 16, 32, 132, 224, 300}) {
    for (const int k_units : {1, 3, 9, 64, 224}) {
      for (const int most : {1, 2, 66, 132}) all.push_back(make_stream_k(tiles, k_units, most));
    }
  }
  return all;
}

int units_of(const StreamK& s) { return s.workers * s.each + s.rest; }

TEST(StreamK, SharesCoverTheUnitsAndDifferByOneAtMost) {
  for (const StreamK& s : schedules()) {
    EXPECT_EQ(s.begin(0), 0);
    EXPECT_EQ(s.begin(s.workers), units_of(s));
    const int least = s.each;
    for (int w = 0; w < s.workers; ++w) {
      const int size = s.begin(w + 1) - s.begin(w);
      EXPECT_GE(size, std::max(least, 1));
      EXPECT_LE(size, least + 1);
    }
  }
}

TEST(StreamK, TheHolderOfAUnitHasIt) {
  for (const StreamK& s : schedules()) {
    for (int w = 0; w < s.workers; ++w) {
      EXPECT_EQ(s.holder(s.begin(w)), w);
      EXPECT_EQ(s.holder(s.begin(w + 1) - 1), w);
    }
  }
}

TEST(StreamK, AWorkerHasEnoughUnitsToBeWorthAPiece) {
  for (const StreamK& s : schedules()) {
    EXPECT_TRUE(s.workers == 1 || s.each >= kMinUnits);
  }
}

// No two pieces may lie in the same place, and no two cut tiles may count on the same ticket.
TEST(StreamK, CutTilesShareNeitherSlotsNorTickets) {
  for (const StreamK& s : schedules()) {
    std::set<int> slots;
    std::set<int> tickets;
    const int tiles = units_of(s) / s.k_units;
    for (int tile = 0; tile < tiles; ++tile) {
      const int first = s.first_holder(tile);
      const int last = s.last_holder(tile);
      if (first == last) continue;
      EXPECT_LE(last - first, 254) << "a ticket is a byte";
      EXPECT_TRUE(tickets.insert(first).second);
      for (int w = first; w <= last; ++w) {
        const int slot = s.slot(w, tile);
        EXPECT_EQ(slot / 2, w);
        EXPECT_TRUE(slots.insert(slot).second) << "worker " << w << " tile " << tile;
      }
    }
  }
}

// Qwen2.5-7B: gate_up has 170 tiles of 56 units, in shares of 72 and 73.
TEST(StreamK, Qwen7B) {
  const StreamK gate_up = make_stream_k(170, 56, 132);
  EXPECT_EQ(gate_up.workers, 132);
  EXPECT_EQ(gate_up.each, 72);
  EXPECT_EQ(gate_up.first_holder(1), 0);
  EXPECT_EQ(gate_up.last_holder(1), 1);
}

// 8B: gate_up has 128 tiles, one a worker, or on clusters of two two a worker; down 32 tiles of 224
// units, each cut into four alike. 128 of 132 workers do.
TEST(StreamK, Llama8B) {
  const StreamK gate_up = make_stream_k(128, 64, 132);
  EXPECT_EQ(gate_up.workers, 128);
  EXPECT_EQ(gate_up.each, 64);
  EXPECT_EQ(gate_up.rest, 0);
  const StreamK pairs = make_stream_k(128, 64, 66);
  EXPECT_EQ(pairs.workers, 64);
  EXPECT_EQ(pairs.each, 128);
  EXPECT_EQ(pairs.rest, 0);
  const StreamK down = make_stream_k(32, 224, 132);
  EXPECT_EQ(down.workers, 128);
  EXPECT_EQ(down.each, 56);
  EXPECT_EQ(down.rest, 0);
  EXPECT_EQ(down.first_holder(1), 4);
  EXPECT_EQ(down.last_holder(1), 7);
}

// Qwen3-8B by 224 weight rows: 110 tiles of 64 units. One a worker takes less than 53 units with
// the fix-up of two pieces; 28 tiles of them do not.
TEST(StreamK, FewerWorkersHaveWholeTilesWhereThatTakesLess) {
  const StreamK whole = make_stream_k(110, 64, 132);
  EXPECT_EQ(whole.workers, 110);
  EXPECT_EQ(whole.each, 64);
  EXPECT_EQ(whole.rest, 0);
  const StreamK two = make_stream_k(112, 128, 66);
  EXPECT_EQ(two.workers, 56);
  EXPECT_EQ(two.each, 256);
  EXPECT_EQ(make_stream_k(0, 64, 132).workers, 1);
  const StreamK cut = make_stream_k(28, 64, 132);
  EXPECT_EQ(cut.workers, 132);
  EXPECT_EQ(make_stream_k(111, 128, 66).workers, 66) << "111 tiles are no two a worker";
}

}  // namespace
}  // namespace sluice::cuda::sm90::gemm
