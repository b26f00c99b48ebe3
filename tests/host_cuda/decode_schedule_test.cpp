// SPDX-License-Identifier: Apache-2.0
// The decode kernel's schedule as arithmetic: who reads which weight rows, into which slots of a
// stage, and what a launch brings into L2 for the next. On any CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "cuda/sm90/decode/schedule.hpp"
#include "cuda/sm90/decode/table.hpp"
#include "fake_devices.hpp"

namespace sluice {
namespace {

using cuda::sm90::decode::Phase;
using cuda::sm90::decode::Tiling;
using cuda::sm90::decode::UnitRange;

constexpr int kSmCount = gpu::kH200SmCount;

struct Widths {
  int d;
  int h;
};
constexpr Widths kWidths[] = {{8, 8},        {64, 8},       {8, 4096},      {576, 1536},
                              {1032, 264},   {2048, 2048},  {3584, 18944},  {4096, 14336},
                              {8192, 7168},  {8192, 28672}, {16384, 53248}, {(1 << 24) - 8, 264},
                              {264, 1 << 23}};

TEST(DecodeSchedule, EvenSharesTileTheRange) {
  for (const int total : {0, 1, 7, 131, 132, 133, 4096, (1 << 24) - 8}) {
    for (const int parts : {1, 2, 132, 144}) {
      int next = 0;
      for (int part = 0; part < parts; ++part) {
        const UnitRange share = cuda::sm90::decode::even_shares(total, parts).part(part);
        EXPECT_EQ(share.begin, next);
        EXPECT_GE(share.size(), total / parts);
        EXPECT_LE(share.size(), total / parts + 1);
        next = share.end;
      }
      EXPECT_EQ(next, total) << total << " in " << parts;
    }
  }
}

// What the host divides is what each CTA would: its units, in blocks that fit, as many as the
// largest share needs.
TEST(DecodeSchedule, TheHostDividesShares) {
  for (const int units : {1, 7, 131, 132, 133, 561, 896, 1792, 2369}) {
    for (const int groups : {1, 33, 66, 132}) {
      if (groups > units) continue;
      for (const int units_a_block : {2, 4, 8, 16}) {
        for (const int split : {1, 2, 4}) {
          const auto shares =
              cuda::sm90::decode::make_shares(units, groups, units_a_block, 1000, 128, split);
          for (int group = 0; group < groups; ++group) {
            const UnitRange own = cuda::sm90::decode::even_shares(units, groups).part(group);
            int next_chunk = 0;
            for (int rank = 0; rank < split; ++rank) {
              const Phase phase = shares.phase(group, rank, 1000);
              EXPECT_EQ(phase.columns, 1000);
              EXPECT_EQ(phase.chunks.begin, next_chunk);
              next_chunk = phase.chunks.end;
              EXPECT_EQ(phase.blocks, shares.blocks);
              int next = own.begin;
              for (int b = 0; b < phase.blocks; ++b) {
                EXPECT_EQ(phase.block(b).begin, next);
                EXPECT_LE(phase.block(b).size(), units_a_block);
                EXPECT_GE(phase.block(b).size(), own.size() / phase.blocks);  // even
                EXPECT_LE(phase.block(b).size(), own.size() / phase.blocks + 1);
                next = phase.block(b).end;
              }
              EXPECT_EQ(next, own.end);
            }
            EXPECT_EQ(next_chunk, 8);
          }
          const int largest = (units + groups - 1) / groups;
          EXPECT_EQ(shares.blocks, (largest + units_a_block - 1) / units_a_block);
        }
      }
    }
  }
}

// The chunks that the producers bring, as the kernel walks them: each chunk of each weight row
// comes once, into a slot that exists and that no other row of the block has.
TEST(DecodeSchedule, EveryChunkOfEveryRowFillsOneSlotOfOneBlock) {
  constexpr int kRows = 1112;  // half a box at the end
  constexpr int kColumns = 1032;
  const std::span<const Tiling> tilings = cuda::sm90::decode::kTilings;
  for (std::size_t i = 0; i < 2 * tilings.size(); ++i) {
    // On few SMs several blocks, on more of them groups of two boxes.
    const int sm_count = i < tilings.size() ? 15 : 120;
    for (int split = 1; split <= cuda::sm90::decode::kMaxSplit; split *= 2) {
      Tiling t = tilings[i % tilings.size()];
      t.split = split;
      for (const bool gated : {false, true}) {
        const int ctas = cuda::sm90::decode::ctas_of(t, {.d = gated ? kColumns : kRows,
                                                         .h = gated ? kRows : kColumns,
                                                         .down = !gated,
                                                         .sm_count = sm_count});
        const int size = cuda::sm90::decode::unit_size(t.boxes, gated);
        // Of clusters of four, some SMs take none; 139 boxes of pairs, 70 of rows.
        const int most = split == 4 ? (sm_count == 15 ? 8 : 108) : sm_count / split * split;
        const bool paired = t.boxes && sm_count == 120 && (split == 1 || (split == 2 && !gated));
        ASSERT_EQ(ctas, paired ? 70 : most);
        const int chunks = (kColumns + t.depth - 1) / t.depth;
        std::vector<int> seen(std::size_t{2} * kRows * static_cast<std::size_t>(chunks));
        for (int cta = 0; cta < ctas; ++cta) {
          const int group = cta / split;
          const Phase phase = cuda::sm90::decode::launch_shares(t, !gated, gated ? kColumns : kRows,
                                                                gated ? kRows : kColumns, ctas)
                                  .phase(group, cta % split, kColumns);
          for (int b = 0; b < phase.blocks; ++b) {
            const UnitRange block = phase.block(b);
            EXPECT_GT(block.size(), 0);
            EXPECT_LE(block.size() * size, gated ? t.rows / 2 : t.rows);
            const auto see = [&](int row) {
              for (int c = phase.chunks.begin; c < phase.chunks.end; ++c) {
                ++seen[static_cast<std::size_t>(row * chunks + c)];
              }
            };
            if (t.boxes) {
              for (int row = block.begin * size; row < std::min(block.end * size, kRows); ++row) {
                see(row);
                if (gated) see(kRows + row);
              }
              continue;
            }
            for (int slot = 0; slot < t.rows; ++slot) {
              const auto where = cuda::sm90::decode::slot_row(slot, gated);
              EXPECT_EQ(cuda::sm90::decode::slot_of_unit(where.unit, gated),
                        slot - (where.up ? cuda::sm90::decode::kMmaRows / 2 : 0));
              if (where.unit >= block.size()) continue;
              see((where.up ? kRows : 0) + block.begin + where.unit);
            }
          }
        }
        const auto wanted = static_cast<std::ptrdiff_t>((gated ? 2 : 1) * kRows * chunks);
        EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), wanted) << split << gated;
        EXPECT_EQ(std::count(seen.begin(), seen.end(), 0),
                  static_cast<std::ptrdiff_t>(seen.size()) - wanted);
      }
    }
  }
}

// What gate_up's launch brings into L2 for down's: what each CTA of down reads first, whole units
// of the copy engine; 64 KiB of rows at most, of boxes 32, in small models 16, and 16 more where
// there are more than 16 tokens.
TEST(DecodeSchedule, APrefetchIsTheFirstBlockOfDown) {
  int prefetches = 0;
  std::vector<Widths> widths(std::begin(kWidths), std::end(kWidths));
  widths.push_back({32 * kSmCount + 8, 4096});  // the larger shares are two blocks, smaller ones
  for (const auto& [d, h] : widths) {
    for (const Tiling& gate_up : cuda::sm90::decode::kTilings) {
      for (const Tiling& tiling : cuda::sm90::decode::kTilings) {
        for (const int split : {1, 2, 4}) {
          Tiling down = tiling;
          down.split = split;
          if (split > 1 && !down.boxes) continue;
          const auto next = cuda::sm90::decode::prefetch_of(gate_up, down, d, h, kSmCount);
          const bool small = 6.0 * d * h <= 800e3 * kSmCount;
          const int widest = std::max(gate_up.tokens, down.tokens);
          const bool each_has_a_chunk = (h + down.depth - 1) / down.depth >= split;
          EXPECT_EQ(next.columns > 0,
                    each_has_a_chunk && !gate_up.half && (small || widest <= 32 || split == 4));
          const int most = !down.boxes ? 64 : small && widest <= 16 ? 16 : 32;
          if (next.columns == 0) continue;
          ++prefetches;
          const int own = next.shares.chunks.part(split - 1).size() * down.depth;
          EXPECT_TRUE(next.columns == std::min(own, h) ||
                      (next.columns + 64) * next.rows(0).size() * 2 > most << 10)
              << d << " " << h;
          EXPECT_EQ(next.columns % 8, 0);  // as h is
          EXPECT_LE(next.columns, h);
          const int size = cuda::sm90::decode::unit_size(down.boxes, false);
          const int units = cuda::sm90::decode::units_of(d, down.boxes, false);
          const int groups = cuda::sm90::decode::ctas_of(
                                 down, {.d = d, .h = h, .down = true, .sm_count = kSmCount}) /
                             split;
          for (int cta = 0; cta < kSmCount; ++cta) {
            const int group = cta / split;
            const UnitRange rows = next.rows(cta);
            if (group >= groups) {
              EXPECT_EQ(rows.size(), 0);
              continue;
            }
            const Phase phase = cuda::sm90::decode::make_shares(units, groups, down.rows / size, h,
                                                                down.depth, split)
                                    .phase(group, cta % split, h);
            EXPECT_EQ(rows.begin, phase.block(0).begin * size) << d << " " << cta;
            EXPECT_EQ(rows.end, phase.block(0).end * size) << d << " " << cta;
            EXPECT_EQ(next.first_column(cta), phase.chunks.begin * down.depth);
            EXPECT_LE(next.first_column(cta) + next.columns, phase.chunks.end * down.depth);
            EXPECT_LE(rows.size() * next.columns * 2, most << 10) << d;
          }
        }
      }
    }
  }
  EXPECT_GT(prefetches, 0);
}

TEST(DecodeSchedule, ChunksCoverTheColumns) {
  for (const int columns : {8, 504, 512, 520, 14336, 1032}) {
    for (const int depth : {256, 512, 1024}) {
      const Phase phase =
          cuda::sm90::decode::make_shares(5, 1, 16, columns, depth, 1).phase(0, 0, columns);
      int sum = 0;
      EXPECT_EQ(phase.chunks.begin, 0);
      for (int c = 0; c < phase.chunks.end; ++c) {
        EXPECT_GT(phase.chunk_columns(c, depth), 0);
        EXPECT_LE(phase.chunk_columns(c, depth), depth);
        sum += phase.chunk_columns(c, depth);
      }
      EXPECT_EQ(sum, columns);
    }
  }
}

}  // namespace
}  // namespace sluice
