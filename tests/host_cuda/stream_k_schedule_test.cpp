// SPDX-License-Identifier: Apache-2.0
// The stream-K schedule as arithmetic: who multiplies which unit, where the sums of a cut tile
// meet, and what its tilings make of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "../device/stream_k_shapes.hpp"
#include "cuda/host/workspace.hpp"
#include "cuda/sm90/gemm/launch.hpp"
#include "cuda/sm90/gemm/table.hpp"

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

constexpr int kSms = 132;

GemmShape gate_up(std::int64_t m, std::int64_t d, std::int64_t h) {
  return {.m = m, .n = 2 * h, .k = d, .kind = GemmKind::kGateUp, .sm_count = kSms};
}

std::string name_of(const Tiling& tiling) {
  std::array<char, 64> name{};
  name_tiling(tiling, name);
  return name.data();
}

std::vector<Tiling> stream_k_tilings() {
  std::vector<Tiling> all(std::begin(kGateUpTilings), std::end(kGateUpTilings));
  std::erase_if(all, [](const Tiling& t) { return !t.is_stream_k(); });
  return all;
}

TEST(StreamKTilings, PairsOfSwapABShareXAndHaveAWeightTileEach) {
  const Tiling pairs{256, 2, Schedule::kStreamKSwapAB, 16, 144};
  EXPECT_EQ(tiles_of(gate_up(144, 4096, 256 + 128), pairs), 2);  // three tiles
  EXPECT_EQ(tiles_of(gate_up(144, 4096, 512), pairs), 2);
  EXPECT_EQ(clusters(gate_up(144, 4096, 14336), pairs), 66);
  for (const Tiling& t : stream_k_tilings()) {
    for (int rows = 1; rows <= t.rows; ++rows) {
      const int part = input_part(rows, t.input_parts());
      EXPECT_GE(part * t.input_parts(), rows);
      EXPECT_LE(part * t.input_parts(), t.rows) << name_of(t) << " " << rows;
      EXPECT_TRUE(t.input_parts() == 1 || part % 8 == 0) << rows;
    }
  }
}

TEST(StreamKTilings, StreamKWorkersFitTheDeviceItsTicketsAndItsScratch) {
  for (const Tiling& t : stream_k_tilings()) {
    const int consumers = t.swaps_ab() ? 2 : t.rows / 64;
    for (const std::int64_t h : {8, 1544, 5120, 11008, 14336, 27648}) {
      for (const int sms : {1, 78, 131, 132, 400}) {
        GemmShape shape = gate_up(144, 5120, h);
        shape.sm_count = sms;
        const auto s = stream_k_schedule(shape, t);
        EXPECT_LE(s.workers * t.cluster, std::max(sms, t.cluster)) << name_of(t);
        EXPECT_LE(s.workers * t.cluster * consumers, WorkspaceHeader::kTickets);
        const std::int64_t bytes = stream_k_partial_bytes(shape, t);
        const bool cut = tiles_of(shape, t) % s.workers != 0;
        EXPECT_EQ(bytes, cut ? std::int64_t{2} * s.workers * t.cluster * tile_sums(t) * 4 : 0);
      }
    }
    EXPECT_EQ(stream_k_partial_bytes(gate_up(0, 5120, 14336), t), 0);
  }
}

// What the tests on a GPU have to meet, for every tiling: tests/device/stream_k_shapes.hpp.
TEST(StreamKTilings, ShapesOfTheGpuTestsCutTilesInEveryWay) {
  const auto parsed = [](const char* text) {
    long long m = 0;
    long long d = 0;
    long long h = 0;
    EXPECT_EQ(std::sscanf(text, "%lldx%lldx%lld", &m, &d, &h), 3) << text;
    return gate_up(m, d, h);
  };
  for (const Tiling& t : stream_k_tilings()) {
    const auto met = [&](const auto& texts) {
      std::set<std::string> ways;
      for (const char* text : texts) {
        const GemmShape shape = parsed(text);
        if (t.swaps_ab() && shape.m > t.rows) continue;
        const auto s = stream_k_schedule(shape, t);
        const int tiles = static_cast<int>(tiles_of(shape, t));
        std::map<int, int> cut_of;  // tiles that a worker shares
        bool whole = false;
        for (int tile = 0; tile < tiles; ++tile) {
          const int pieces = s.last_holder(tile) - s.first_holder(tile) + 1;
          whole = whole || pieces == 1;
          if (pieces == 1) continue;
          ways.insert(pieces == 2 ? "two pieces" : "more");
          for (int w = s.first_holder(tile); w <= s.last_holder(tile); ++w) ++cut_of[w];
        }
        if (cut_of.empty()) ways.insert("none cut");
        if (whole && !cut_of.empty()) ways.insert("whole tiles beside pieces");
        for (const auto& [worker, cut] : cut_of) {
          if (cut == 2) ways.insert("both slots");
        }
      }
      return ways;
    };
    EXPECT_EQ(met(gpu::kStreamKTails),
              (std::set<std::string>{"both slots", "more", "none cut", "two pieces",
                                     "whole tiles beside pieces"}))
        << name_of(t);
    EXPECT_TRUE(met(gpu::kStreamKRepeated).contains("both slots")) << name_of(t);
    EXPECT_TRUE(met(gpu::kStreamKRepeated).contains("two pieces")) << name_of(t);
    bool early = false;
    for (const char* text : gpu::kStreamKChained) {
      const GemmShape shape = parsed(text);
      const auto s = stream_k_schedule(shape, t);
      early = early || starts_early(t, s.workers * t.cluster, kSms);
    }
    EXPECT_TRUE(early) << name_of(t);
  }
}

}  // namespace
}  // namespace sluice::cuda::sm90::gemm
