// SPDX-License-Identifier: Apache-2.0
// The decode kernel's schedule as arithmetic (who reads which weight rows, into which slots of a
// stage), its tilings, and what the decode variants take and refuse: on any CPU.
#include "cuda/sm90/decode_config.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cuda/sm90/decode_schedule.hpp"
#include "fake_devices.hpp"
#include "harness/case.hpp"
#include "sluice/plan.hpp"

namespace sluice {
namespace {

using cuda::sm90::DecodePhase;
using cuda::sm90::DecodeTiling;
using cuda::sm90::UnitRange;

using gpu::h200;

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
        const UnitRange share = cuda::sm90::even_share(total, part, parts);
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
              cuda::sm90::decode_shares(units, groups, units_a_block, 1000, 128, split);
          for (int group = 0; group < groups; ++group) {
            const UnitRange own = cuda::sm90::even_share(units, group, groups);
            int next_chunk = 0;
            for (int rank = 0; rank < split; ++rank) {
              const DecodePhase phase = shares.phase(group, rank, 1000);
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

// Every CTA of mlp reads the same bytes, to the nearest pair.
TEST(DecodeSchedule, PairsBalanceTheBytesOfBothMatrices) {
  for (const auto& [d, h] : kWidths) {
    for (const int sm_count : {1, 7, 114, kSmCount}) {
      const int ctas = cuda::sm90::decode_ctas({}, true, d, sm_count);
      int next = 0;
      for (int cta = 0; cta < ctas; ++cta) {
        const UnitRange pairs = cuda::sm90::balanced_pairs(d, h, cta, ctas);
        ASSERT_EQ(pairs.begin, next) << d << "x" << h << " cta " << cta;
        ASSERT_GE(pairs.size(), 0) << d << "x" << h << " cta " << cta;
        next = pairs.end;
        const auto down = static_cast<double>(cuda::sm90::even_share(d, cta, ctas).size());
        const double elements = 2.0 * d * pairs.size() + down * h;
        EXPECT_NEAR(elements, 3.0 * d * h / ctas, 2.0 * d) << d << "x" << h << " cta " << cta;
      }
      ASSERT_EQ(next, h) << d << "x" << h;
    }
  }
}

// The chunks that the producers bring, as the kernel walks them: each chunk of each weight row
// comes once, into a slot that exists and that no other row of the block has.
TEST(DecodeSchedule, EveryChunkOfEveryRowFillsOneSlotOfOneBlock) {
  constexpr int kRows = 1112;  // half a box at the end
  constexpr int kColumns = 1032;
  for (const DecodeTiling& tiling : cuda::sm90::decode_tilings()) {
    for (int split = 1; split <= cuda::sm90::kDecodeMaxSplit; split *= 2) {
      DecodeTiling t = tiling;
      t.split = split;
      for (const bool gated : {false, true}) {
        const int ctas = cuda::sm90::decode_ctas(t, !gated, kRows, 15);
        ASSERT_EQ(ctas, split == 4 ? 8 : 15 / split * split);  // of four, some SMs take none
        const int size = cuda::sm90::unit_size(t.boxes, gated);
        const int chunks = (kColumns + t.depth - 1) / t.depth;
        std::vector<int> seen(std::size_t{2} * kRows * static_cast<std::size_t>(chunks));
        for (int cta = 0; cta < ctas; ++cta) {
          const int group = cta / split;
          const DecodePhase phase =
              cuda::sm90::decode_launch_shares(t, !gated, gated ? kColumns : kRows,
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
              const auto where = cuda::sm90::slot_row(slot, gated);
              EXPECT_EQ(cuda::sm90::slot_of_unit(where.unit, gated),
                        slot - (where.up ? cuda::sm90::kMmaRows / 2 : 0));
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

// Who has a box more of w_down has none more of gate_up.
TEST(DecodeSchedule, BoxesOfBothMatricesAreShared) {
  for (const auto& [d, h] : kWidths) {
    const int groups = 66;
    int next = 0;
    for (int group = groups - 1; group >= 0; --group) {  // mirrored
      const UnitRange share = cuda::sm90::gate_up_beside_down(d, h, true, group, groups);
      EXPECT_EQ(share.begin, next);
      next = share.end;
    }
    EXPECT_EQ(next, cuda::sm90::units_of(h, true, true));
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
    for (const DecodeTiling& gate_up : cuda::sm90::decode_tilings()) {
      for (const DecodeTiling& tiling : cuda::sm90::decode_tilings()) {
        for (const int split : {1, 2, 4}) {
          DecodeTiling down = tiling;
          down.split = split;
          if (split > 1 && !down.boxes) continue;
          const auto next = cuda::sm90::decode_prefetch(gate_up, down, d, h, kSmCount);
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
          const int size = cuda::sm90::unit_size(down.boxes, false);
          const int units = cuda::sm90::units_of(d, down.boxes, false);
          const int groups = cuda::sm90::decode_ctas(down, true, d, kSmCount) / split;
          for (int cta = 0; cta < kSmCount; ++cta) {
            const int group = cta / split;
            const UnitRange rows = next.rows(cta);
            if (group >= groups) {
              EXPECT_EQ(rows.size(), 0);
              continue;
            }
            const DecodePhase phase =
                cuda::sm90::decode_shares(units, groups, down.rows / size, h, down.depth, split)
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
      const DecodePhase phase = cuda::sm90::make_phase({0, 5}, 16, columns, depth);
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

TEST(DecodeSchedule, ACtaWithoutRowsHasNoStage) {
  EXPECT_EQ(cuda::sm90::make_phase({3, 3}, 16, 4096, 512).blocks, 0);
}

std::string name_of(const DecodeTiling& tiling) {
  char text[24];
  cuda::sm90::name_decode_tiling(tiling, text);
  return text;
}

bool is_boxes(const DecodeTiling& tiling) { return tiling.boxes; }

// The tilings made for m tokens and no wider ones, each once, from 9 on also boxes where weights
// come so, of fewer for one operator boxes of 16; of down alone those also divided.
TEST(DecodeConfig, RanksTheNarrowestTilings) {
  std::array<DecodeTiling, 32> out;
  for (int m = 1; m <= cuda::sm90::kDecodeMaxTokens; ++m) {
    const std::size_t count =
        cuda::sm90::decode_ranked({m, 4096, 14336, true, true, kSmCount}, out);
    ASSERT_GE(count, 1U) << m;
    ASSERT_LE(count, out.size());
    std::set<std::string> names;
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(names.insert(name_of(out[i])).second) << name_of(out[i]);
      EXPECT_GE(out[i].tokens, m);
      EXPECT_LE(out[i].tokens, m <= 8 ? 8 : m <= 32 ? 32 : 64) << m;
      if (out[i].boxes) {
        EXPECT_GE(out[i].tokens, cuda::sm90::kDecodeSpanTokens);
      } else {
        EXPECT_LE(out[i].tokens, cuda::sm90::kDecodeSpanTokens);
      }
      EXPECT_EQ(out[i].split, 1);
    }
    const auto boxes =
        static_cast<std::size_t>(std::count_if(out.begin(), out.begin() + count, is_boxes));
    EXPECT_EQ(boxes, m <= 8 ? 0U : m <= 16 ? 3U : 2U) << m;
    cuda::sm90::DecodeShape by_rows{m, 4096, 14336, true, true, kSmCount, false};
    EXPECT_EQ(cuda::sm90::decode_ranked(by_rows, out), count - boxes);
    const std::size_t few = m <= 8 ? 1 : 0;  // boxes made for more
    EXPECT_EQ(cuda::sm90::decode_ranked({m, 4096, 14336, true, false, kSmCount}, out), count + few);
    EXPECT_EQ(cuda::sm90::decode_ranked({m, 4096, 14336, false, true, kSmCount}, out),
              count + boxes + 2 * few);
    by_rows = {m, 4096, 14336, true, false, kSmCount, true, true};
    EXPECT_EQ(cuda::sm90::decode_ranked(by_rows, out), count);  // a norm meets at a grid barrier
    EXPECT_EQ(cuda::sm90::decode_ranked({m, 4096, 14336, false, true, 1}, out), count + few);
    EXPECT_EQ(cuda::sm90::decode_ranked({m, 4096, 14336, true, true, kSmCount}, {}), count);
  }
  EXPECT_EQ(cuda::sm90::decode_ranked({65, 4096, 14336, true, true, kSmCount}, out), 0U);
}

// Up to 4 tokens where 32 slots hold a CTA's rows of gate_up, and in small models up to 16 whose
// weights cannot come by boxes, begin with the ring that leaves room for the next launch's CTA; in
// gate_up of up to 8 with the wider one where its slots hold the rows.
TEST(DecodeConfig, SmallModelsLeadWithHalfRings) {
  std::array<DecodeTiling, 32> out;
  const auto first = [&](int m, Widths w, bool down, bool boxes = true) {
    cuda::sm90::decode_ranked({m, w.d, w.h, !down, down, kSmCount, boxes}, out);
    return name_of(out[0]);
  };
  EXPECT_EQ(first(1, {576, 1536}, false), "t8r32k256s5");
  EXPECT_EQ(first(4, {640, 2048}, true), "t8r16k512s4");
  EXPECT_EQ(first(4, {2048, 2048}, false), "t8r32k256s5");
  EXPECT_EQ(first(8, {2048, 2048}, false, false), "t8r32k256s5");
  EXPECT_EQ(first(8, {1024, 3072}, false, false), "t8r16k512s4");
  EXPECT_EQ(first(8, {1024, 3072}, true, false), "t8r16k512s4");
  // Boxes lead of more tokens, and in less small models.
  EXPECT_EQ(first(4, {4096, 2048}, false), "b16r64k256s5");  // no half ring for so wide a model
  EXPECT_EQ(first(5, {576, 1536}, false), "b16r64k256s5");
  EXPECT_EQ(first(1, {960, 2560}, false), "b16r64k256s5");
  EXPECT_EQ(first(8, {1024, 3072}, true), "b16r64k256s5x2");
  EXPECT_EQ(first(9, {576, 1536}, false), "b16r64k256s5");
  EXPECT_EQ(first(16, {2048, 2048}, true), "b16r64k256s5x2");
  EXPECT_EQ(first(9, {1152, 6912}, false), "b16r64k256s5");
  EXPECT_EQ(first(16, {1152, 6912}, true), "b32r64k128s9x4");
  cuda::sm90::decode_ranked({16, 2048, 8192, true, false, kSmCount, false}, out);
  EXPECT_EQ(name_of(out[0]), "t16r16k512s3");
  for (const Widths w : {Widths{2880, 2880}, Widths{2304, 9216}, Widths{4096, 14336}}) {
    for (const int m : {1, 16}) {
      for (const bool down : {false, true}) {
        const std::size_t count =
            cuda::sm90::decode_ranked({m, w.d, w.h, !down, down, kSmCount}, out);
        for (std::size_t i = 0; i < count; ++i) EXPECT_FALSE(out[i].half) << name_of(out[i]);
      }
    }
  }
  cuda::sm90::DecodeShape normed{1, 1024, 3072, true, false, kSmCount};
  normed.norm_rows = 2;
  cuda::sm90::decode_ranked(normed, out);
  EXPECT_EQ(name_of(out[0]), "bn16r64k256s5");
  // Each CTA sums the squares of all columns.
  const std::size_t narrow = cuda::sm90::decode_ranked({.m = 1,
                                                        .d = 2048,
                                                        .h = 768,
                                                        .gate_up = true,
                                                        .down = false,
                                                        .sm_count = kSmCount,
                                                        .norm_rows = 2},
                                                       out);
  for (std::size_t i = 0; i < narrow; ++i) EXPECT_EQ(out[i].split, 1) << name_of(out[i]);
  // x has half of a stage's sixteen rows, without a residual too.
  for (const int m : {8, 9}) {
    normed.m = normed.norm_rows = m;
    const std::size_t offered = cuda::sm90::decode_ranked(normed, out);
    const bool boxes = std::any_of(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(offered),
                                   [](const DecodeTiling& t) { return t.boxes; });
    EXPECT_EQ(boxes, m == 8) << m;
  }
  normed.m = 1;
  normed.norm_rows = 2;
  normed.boxes = false;
  cuda::sm90::decode_ranked(normed, out);
  EXPECT_EQ(name_of(out[0]), "n8r32k512s5");
  // In one launch of both there is nothing to be beside.
  const std::size_t count = cuda::sm90::decode_ranked({1, 576, 1536, true, true, kSmCount}, out);
  EXPECT_EQ(count, 1U);
}

// Boxes are first where whole ones are nearly even shares, else rows.
TEST(DecodeConfig, FewTokensLeadWithEvenBoxes) {
  std::array<DecodeTiling, 32> out;
  const auto first = [&](int m, Widths w, bool down, bool boxes = true) {
    cuda::sm90::decode_ranked({m, w.d, w.h, !down, down, kSmCount, boxes}, out);
    return name_of(out[0]);
  };
  for (const int m : {1, 8}) {
    EXPECT_EQ(first(m, {4096, 14336}, false), "b16r64k256s5");
    EXPECT_EQ(first(m, {4096, 14336}, true), "b16r64k256s5x2");
    EXPECT_EQ(first(m, {8192, 7168}, true), "b16r64k256s5");
    EXPECT_EQ(first(m, {16384, 6656}, false), "t8r32k512s5");  // 7 boxes of 512 KiB for 6.3
    EXPECT_EQ(first(m, {16384, 6656}, true), "b16r64k256s5");
    EXPECT_EQ(first(m, {4096, 14336}, false, false), "t8r32k512s5");
    EXPECT_EQ(first(m, {1536, 8960}, false), "b16r64k256s5");  // small: always
  }
}

// A chain by boxes begins with one kernel for both launches where two cost more: of 9 to 16 tokens
// gate_up alone would have boxes of 16, but down boxes of 32, whose K four CTAs may divide.
TEST(DecodeConfig, AChainPrefersOneKernel) {
  std::array<DecodeTiling, 32> gate_up;
  std::array<DecodeTiling, 32> down;
  const auto first = [&](int m, Widths w) {
    const cuda::sm90::DecodeShape up{m, w.d, w.h, true, false, kSmCount};
    const cuda::sm90::DecodeShape back{m, w.d, w.h, false, true, kSmCount};
    const auto ups = std::span(gate_up).first(cuda::sm90::decode_ranked(up, gate_up));
    const auto backs = std::span(down).first(cuda::sm90::decode_ranked(back, down));
    const auto pair = cuda::sm90::decode_first_pair(ups, up, backs, back);
    return name_of(ups[pair.gate_up]) + "+" + name_of(backs[pair.down]);
  };
  EXPECT_EQ(first(16, {1024, 3072}), "b32r64k128s9+b32r64k128s9x4");
  EXPECT_EQ(first(48, {896, 4864}), "b64r64k128s6+b64r64k128s6x4");
  EXPECT_EQ(first(16, {2048, 2048}), "b16r64k256s5+b16r64k256s5x2");
  // Two where that saves more; nothing is weighed where a launch has rows.
  EXPECT_EQ(first(64, {4096, 14336}), "b64r128k128s4+b64r64k128s6x2");
  EXPECT_EQ(first(8, {16384, 6656}), "t8r32k512s5+b16r64k256s5");
  EXPECT_EQ(first(1, {576, 1536}), "t8r32k256s5+t8r16k512s4");
}

// K is divided only where the rows of a cluster are one block.
TEST(DecodeConfig, DividesWhatIsOneBlock) {
  std::array<DecodeTiling, 32> out;
  for (const int sm_count : {1, 3, 4, 7, kSmCount}) {
    EXPECT_GE(cuda::sm90::decode_ranked({64, 64, 64, false, true, sm_count}, out), 1U);
  }
  int divided = 0;
  for (const int d : {576, 2048, 4096, 5120, 8192, 16384}) {
    for (const bool down : {false, true}) {
      for (const int m : {1, 9, 17, 64}) {
        const int h = 2048;
        const std::size_t count = cuda::sm90::decode_ranked({m, d, h, !down, down, kSmCount}, out);
        for (std::size_t i = 0; i < count; ++i) {
          if (out[i].split == 1) continue;
          ++divided;
          const int ctas = cuda::sm90::decode_ctas(out[i], down, down ? d : h, kSmCount);
          // The barrier at which sums arrive is waited for once.
          EXPECT_EQ(cuda::sm90::decode_launch_shares(out[i], down, d, h, ctas).blocks, 1)
              << m << " " << d << " " << name_of(out[i]);
        }
      }
    }
  }
  EXPECT_GT(divided, 0);
}

// By hand: 14 boxes of 8 pairs in two blocks of 112 rows and 32 chunks; 4 boxes of two CTAs in one
// block, 28 chunks each.
TEST(DecodeConfig, ModelCountsBytesStagesAndTheFinish) {
  const DecodeTiling tiling{64, 128, 128, 4, 1, true};
  const double bytes = 224 * 4096 * 2 + 2 * 4096 * 64 * 2;
  EXPECT_NEAR(cuda::sm90::decode_model_us(tiling, {64, 4096, 14336, true, false, kSmCount}),
              std::max(224 * 4096 * 2 / 34e3, bytes / 62e3) + 2 * 4096 * 64 * 2 / 260e3 + 2 * 2.4,
              1e-9);
  DecodeTiling divided{64, 64, 128, 6, 2, true};
  EXPECT_NEAR(cuda::sm90::decode_model_us(divided, {64, 4096, 14336, false, true, kSmCount}),
              2 * 0.4 + (64 + 64) * 7168 * 2 / 62e3 + 7168 * 64 * 2 / 260e3, 1e-9);
  // An exchange of gate_up's costs more.
  EXPECT_NEAR(cuda::sm90::decode_model_us(divided, {64, 2048, 2048, true, false, kSmCount}),
              2 * 2 + (64 + 64) * 1024 * 2 / 62e3 + 1024 * 64 * 2 / 260e3, 1e-9);
}

// 32 rows of w_down in 64 slots leave half of the ring empty: less is under way than the latency of
// memory wants.
TEST(DecodeConfig, ModelCountsBytesInFlight) {
  const cuda::sm90::DecodeShape shape{9, 4096, 14336, false, true, kSmCount};
  const double weights = 32 * 14336 * 2;
  EXPECT_NEAR(cuda::sm90::decode_model_us({16, 64, 256, 5, 1}, shape),
              weights / (5 * 32 * 256 * 2 / 2.8), 1e-9);
  EXPECT_NEAR(cuda::sm90::decode_model_us({16, 32, 512, 4, 1}, shape), weights / 31e3, 1e-9);
}

Problem problem_of(const std::string& text) { return harness::parse_case(text).value().problem; }

std::string chosen(const std::string& text, const Device& device) {
  const auto made = plan(problem_of(text), device);
  return made ? std::string(made->variant_name()) + " " + made->config.name
              : std::string(made.error().message);
}

Refusal row_of(const char* variant, const std::string& text, const Device& device) {
  for (const Refusal& row : explain(problem_of(text), device).variants) {
    if (row.variant == variant) return row;
  }
  return {variant, "not in the table", false, "not in the table"};
}
std::string reason_of(const char* variant, const std::string& text, const Device& device) {
  return row_of(variant, text, device).reason;
}
TEST(CudaSm90Decode, ServesUpTo64TokensOnHopper) {
  EXPECT_EQ(chosen("1x4096x14336:mlp", h200()),
            "cuda.sm90_decode_chain sm90.decode_chain.mlp.b16r64k256s5+r64k256s5x2");
  // Each launch of the chain has the tiling that its operator would have alone.
  EXPECT_EQ(chosen("40x4096x14336:mlp", h200()),
            "cuda.sm90_decode_chain sm90.decode_chain.mlp.b64r128k128s4+r64k128s6x2");
  EXPECT_EQ(chosen("17x4096x14336:mlp", h200()),
            "cuda.sm90_decode_chain sm90.decode_chain.mlp.b32r64k128s9+r64k128s9x2");
  EXPECT_EQ(chosen("9x4096x14336:gate_up:fp16", h200()),
            "cuda.sm90_decode sm90.decode.gate_up.b16r64k256s5");
  EXPECT_EQ(chosen("40x4096x14336:down", h200()),
            "cuda.sm90_decode sm90.decode.down.b64r64k128s6x2");
  EXPECT_EQ(chosen("64x8192x28672:gate_up", h200()),
            "cuda.sm90_decode sm90.decode.gate_up.b64r128k128s4");
  EXPECT_EQ(chosen("65x4096x14336:down:residual", h200()).substr(0, 10), "cuda.sm90 ");
  // Blocks of three rows have no boxes.
  EXPECT_EQ(chosen("16x4096x14336:gate_up:interleaved3", h200()).substr(0, 17),
            "cuda.sm90_decode ");
  EXPECT_EQ(chosen("17x4096x14336:gate_up:interleaved3", h200()).substr(0, 10), "cuda.sm80 ");
  EXPECT_EQ(chosen("40x136x400:mlp:interleaved16", h200()).substr(0, 23),
            "cuda.sm90_decode_chain ");
  EXPECT_EQ(chosen("64x576x1536:mlp", h200()).substr(0, 23), "cuda.sm90_decode_chain ");
  for (const std::string text :
       {"5x72x200:gate_up:bias:interleaved3", "33x64x72:down:residual:bias_down:pad=8",
        "64x64x48:mlp:interleaved16:clamped_swiglu", "0x64x96:mlp", "1x8x8:mlp:concat+up_first",
        "16x64x96:mlp:add_norm:residual_norm_input", "3x64x96:gate_up:norm"}) {
    EXPECT_EQ(reason_of("cuda.sm90_decode", text, h200()), "") << text;
  }
}

// The norm's scale waits for the sums of products where a stage has room for its operands and the
// type for what is not scaled; elsewhere the norm is a launch.
TEST(CudaSm90Decode, DefersTheNormOfFewTokens) {
  for (const std::string text :
       {"1x4096x14336:mlp:norm", "8x4096x14336:mlp:norm", "5x4096x14336:mlp:add_norm",
        "5x4096x14336:mlp:add_norm(weight_offset=1):residual_norm_input"}) {
    EXPECT_EQ(chosen(text, h200()),
              "cuda.sm90_decode_chain sm90.decode_chain.mlp.bn16r64k256s5+r64k256s5x2");
  }
  // Shares of whole boxes may be uneven, for by rows activations weigh more.
  EXPECT_EQ(chosen("1x16384x6656:mlp:add_norm", h200()),
            "cuda.sm90_decode_chain sm90.decode_chain.mlp.bn16r64k256s5+r64k256s5");
  // Where boxes take no weights, or no x, six tokens and their residual leave room for a stage
  // less.
  for (const std::string other : {":interleaved3", ":broadcast"}) {
    EXPECT_EQ(chosen("5x4096x14336:mlp:add_norm" + other, h200()),
              "cuda.sm90_decode_chain sm90.decode_chain.mlp.n8r32k512s5+r32k512s5");
    EXPECT_EQ(chosen("6x4096x14336:mlp:add_norm" + other, h200()),
              "cuda.sm90_decode_chain sm90.decode_chain.mlp.n8r32k512s4+r32k512s5");
  }
  // Up to 300 KB of weights an SM, 39.6 MB, a launch of the norm costs less.
  EXPECT_EQ(chosen("1x2048x3216:mlp:add_norm", h200()),
            "cuda.sm90_decode_chain_norm sm90.decode_chain.mlp.b16r64k256s5+r64k256s5x2");
  EXPECT_EQ(chosen("1x2048x3224:mlp:add_norm", h200()),
            "cuda.sm90_decode_chain sm90.decode_chain.mlp.bn16r64k256s5+r64k256s5x2");
  EXPECT_NE(row_of("cuda.sm90_decode_chain", "1x576x1536:mlp:norm", h200()).yields.find("5 MB"),
            std::string::npos);
  EXPECT_EQ(row_of("cuda.sm90_decode_chain", "1x576x1536:mlp", h200()).yields, "");
  // Where x cannot come by boxes down has the rows that are first without boxes.
  EXPECT_EQ(chosen("5x2048x6144:mlp:add_norm:broadcast", h200()),
            "cuda.sm90_decode_chain sm90.decode_chain.mlp.n8r32k512s5+r16k512s4");
  // To a launch of the norm that takes no rows as wide the chain does not yield.
  EXPECT_EQ(chosen("1x65536x64:mlp:norm", h200()).substr(0, 23), "cuda.sm90_decode_chain ");
  const std::array<std::string, 2> refused[] = {
      {"9x4096x14336:mlp:add_norm", "defers the norm's scale for up to 8 tokens, got 9"},
      {"1x4096x14336:mlp:norm:fp16", "fp16 may not hold what is not scaled yet"},
      {"1x4096x14336:mlp:norm(weight_offset=0.5)", "norm.weight_offset: got 0.5, wanted 0 or 1"}};
  for (const auto& [text, reason] : refused) {
    EXPECT_EQ(chosen(text, h200()).substr(0, 28), "cuda.sm90_decode_chain_norm ") << text;
    const std::string got = reason_of("cuda.sm90_decode_chain", text, h200());
    EXPECT_NE(got.find(reason), std::string::npos) << text << ": " << got;
  }
}

// Behind gate_up by rows down stores the norm's sum, which the kernel by boxes does not.
TEST(CudaSm90Decode, BehindADeferredNormByRowsDownReadsRows) {
  std::set<std::string> kinds;
  const auto names =
      config_names("cuda.sm90_decode_chain", problem_of("8x4096x14336:mlp:add_norm"), h200());
  // gate_up by boxes with each of three tilings of down, by rows with that of rows.
  EXPECT_EQ(names.size(), 4U);
  for (const std::string& name : names) {
    const bool rows = name.find(".n8") != std::string::npos;
    const bool down_rows =
        name.find("+t") != std::string::npos || (rows && name.find("+r") != std::string::npos);
    EXPECT_TRUE(!rows || down_rows) << name;
    kinds.insert(std::string(rows ? "rows" : "boxes") + (down_rows ? "+rows" : "+boxes"));
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"boxes+boxes", "boxes+rows", "rows+rows"}));
}

// However many tilings its launches have: a pair can be forced and measured for each.
TEST(CudaSm90Decode, TheChainOffersEveryTilingOfBothLaunches) {
  for (const std::string shape : {"9x576x1536", "9x1152x6912", "16x2048x8192", "64x2048x2048"}) {
    std::set<std::string> firsts;
    std::set<std::string> seconds;
    std::set<std::string> pairs;
    for (const std::string& name :
         config_names("cuda.sm90_decode_chain", problem_of(shape + ":mlp"), h200())) {
      EXPECT_TRUE(pairs.insert(name).second) << name;
      const std::string both = name.substr(name.rfind('.') + 1);
      const std::size_t plus = both.find('+');
      firsts.insert(both.substr(0, plus));
      // "+r64k128s6x2": of as many tokens as the first.
      std::string second = plus == std::string::npos ? both : both.substr(plus + 1);
      if (second[0] == 'r') second.insert(0, both.substr(0, both.find('r')));
      seconds.insert(second);
    }
    const auto tilings_of = [&](const std::string& op) {
      std::set<std::string> tilings;
      for (const std::string& name :
           config_names("cuda.sm90_decode", problem_of(shape + ":" + op), h200())) {
        tilings.insert(name.substr(name.rfind('.') + 1));
      }
      return tilings;
    };
    EXPECT_EQ(firsts, tilings_of("gate_up")) << shape;
    EXPECT_EQ(seconds, tilings_of("down")) << shape;
  }
}

TEST(CudaSm90Decode, OneLaunchNeedsAGridBarrier) {
  Device device = h200();
  device.cooperative_launch = false;
  EXPECT_EQ(reason_of("cuda.sm90_decode_chain", "1x4096x14336:mlp", device), "");
  EXPECT_EQ(reason_of("cuda.sm90_decode", "1x4096x14336:down", device), "");
  EXPECT_NE(reason_of("cuda.sm90_decode", "1x4096x14336:mlp", device)
                .find("one launch of mlp meets at a grid barrier"),
            std::string::npos);
  EXPECT_NE(reason_of("cuda.sm90_decode", "1x4096x14336:gate_up:norm", device).find("the norm"),
            std::string::npos);
}

// h of mlp, the normalised rows, their sum where y adds what nobody keeps.
TEST(CudaSm90Decode, WorkspaceHoldsWhatTheLaunchPassesOn) {
  const auto bytes = [](const std::string& text) {
    return plan(problem_of(text), h200()).value().workspace_bytes;
  };
  constexpr std::size_t kN = 4 * 4096 * 2;
  constexpr std::size_t kH = 4 * 14336 * 2;
  EXPECT_EQ(bytes("4x4096x14336:gate_up"), 0U);
  EXPECT_EQ(bytes("4x4096x14336:down"), 0U);
  EXPECT_EQ(bytes("4x4096x14336:mlp"), kWorkspaceHeaderBytes + kH);
  EXPECT_EQ(bytes("4x4096x14336:gate_up:norm"), kWorkspaceHeaderBytes + kN);
  EXPECT_EQ(bytes("4x4096x14336:mlp:add_norm"), kWorkspaceHeaderBytes + kH);
  EXPECT_EQ(bytes("4x4096x14336:mlp:norm:residual_norm_input"), kWorkspaceHeaderBytes + kH);
  EXPECT_EQ(bytes("4x4096x14336:mlp:add_norm:residual_norm_input"),
            kWorkspaceHeaderBytes + kN + kH);
  EXPECT_EQ(bytes("4x4096x14336:mlp:add_norm:residual_norm_input:fp16"),
            kWorkspaceHeaderBytes + 2 * kN + kH);
  EXPECT_EQ(bytes("40x4096x14336:down"), 0U);  // sums change hands in shared memory
}

TEST(CudaSm90Decode, SaysWhyItRefuses) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"cuda.sm90_decode", "65x64x96:mlp", "takes up to 64 tokens, got 65"},
      {"cuda.sm90_decode", "4x64x96:gate_up:save", "does not store g and u"},
      {"cuda.sm90_decode", "4x64x96:gate_mul", "has no gate_mul"},
      {"cuda.sm90_decode", "4x64x96:mlp:fp32", "takes bf16 or fp16"},
      {"cuda.sm90_decode", "4x64x96:mlp:align=8", "alignment_bytes is 8"},
      {"cuda.sm90_decode", "4x60x96:gate_up", "d is 60 and h 96, wanted multiples of 8"},
      {"cuda.sm90_decode", "4x64x96:gate_up:pad=3", "x: a stride of 134 bytes is no multiple"},
      {"cuda.sm90_decode", "4x64x16777216:gate_up", "wanted less than 16777216"},
      {"cuda.sm90_decode", "17x64x96:gate_up:interleaved3", "blocks of 3 rows neither divide 8"},
      {"cuda.sm90_decode", "17x64x104:gate_up:interleaved16", "leave a short last block"},
      {"cuda.sm90_decode_chain", "4x64x96:down", "is for mlp; down is one launch anyway"},
  };
  for (const auto& [variant, text, reason] : cases) {
    const std::string got = reason_of(variant.c_str(), text, h200());
    EXPECT_NE(got.find(reason), std::string::npos) << text << ": " << got;
  }
  Device old = h200();
  old.arch = Arch::kAmpere;
  old.compute_capability = 80;
  EXPECT_NE(reason_of("cuda.sm90_decode", "4x64x96:mlp", old).find("needs a Hopper GPU"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice
