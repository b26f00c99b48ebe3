// SPDX-License-Identifier: Apache-2.0
// The decode kernel's tilings and which one serves which shape, on any CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <set>
#include <span>
#include <string>

#include "cuda/sm90/decode/table.hpp"
#include "fake_devices.hpp"

namespace sluice {
namespace {

using cuda::sm90::decode::Shape;
using cuda::sm90::decode::Tiling;

constexpr int kSmCount = gpu::kH200SmCount;

struct Widths {
  int d;
  int h;
};

std::string name_of(const Tiling& tiling) {
  char text[24];
  cuda::sm90::decode::name_tiling(tiling, text);
  return text;
}

bool is_boxes(const Tiling& tiling) { return tiling.boxes; }

// The tilings made for m tokens and no wider ones, each once, up to 8 tokens also boxes of 16, from
// 9 on boxes where weights come so; of down those by boxes also divided.
TEST(DecodeConfig, RanksTheNarrowestTilings) {
  std::array<Tiling, 32> out;
  const auto count_of = [&](const Shape& shape) { return cuda::sm90::decode::ranked(shape, out); };
  for (int m = 1; m <= cuda::sm90::decode::kMaxTokens; ++m) {
    const std::size_t count = count_of({m, 4096, 14336, false, kSmCount});
    ASSERT_GE(count, 1U) << m;
    ASSERT_LE(count, out.size());
    std::set<std::string> names;
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(names.insert(name_of(out[i])).second) << name_of(out[i]);
      EXPECT_GE(out[i].tokens, m);
      EXPECT_LE(out[i].tokens, m <= 8 ? 16 : m <= 32 ? 32 : (m + 31) / 32 * 32) << m;
      if (out[i].boxes) {
        EXPECT_GE(out[i].tokens, cuda::sm90::decode::kSpanTokens);
      } else {
        EXPECT_LE(out[i].tokens, m <= 8 ? 8 : cuda::sm90::decode::kSpanTokens);
      }
      EXPECT_EQ(out[i].split, 1);
    }
    const auto boxes =
        static_cast<std::size_t>(std::count_if(out.begin(), out.begin() + count, is_boxes));
    const bool two_widths = m > 128 && m <= 144;
    EXPECT_EQ(boxes, m <= 8                            ? 1U
                     : m <= 16 || (m > 64 && m <= 128) ? 3U
                     : two_widths                      ? 4U
                                                       : 2U)
        << m;
    EXPECT_EQ(count_of({m, 4096, 14336, false, kSmCount, false}), count - boxes);
    // In two, but for one of 65 tokens and more, of each width: of 128 rows its sums have no room.
    EXPECT_EQ(count_of({m, 4096, 14336, true, kSmCount}), count + boxes -
                                                              (m <= 64      ? 0
                                                               : two_widths ? 2
                                                                            : 1));
    EXPECT_EQ(count_of({m, 4096, 14336, true, 1}), count);
    EXPECT_EQ(cuda::sm90::decode::ranked({m, 4096, 14336, false, kSmCount}, {}), count);
  }
  EXPECT_EQ(count_of({161, 4096, 14336, true, kSmCount}), 0U);
}

// Small models whose weights cannot come by boxes begin with the ring that leaves room for the next
// launch's CTA; in gate_up of up to 8 tokens with the wider one where its slots hold the rows.
TEST(DecodeConfig, SmallModelsLeadWithHalfRings) {
  std::array<Tiling, 32> out;
  const auto first = [&](int m, Widths w, bool down, bool boxes = true) {
    cuda::sm90::decode::ranked({m, w.d, w.h, down, kSmCount, boxes}, out);
    return name_of(out[0]);
  };
  EXPECT_EQ(first(1, {576, 1536}, false, false), "t8r32k256s5");
  EXPECT_EQ(first(4, {640, 2048}, true, false), "t8r16k512s4");
  EXPECT_EQ(first(8, {2048, 2048}, false, false), "t8r32k256s5");
  EXPECT_EQ(first(8, {1024, 3072}, false, false), "t8r16k512s4");
  EXPECT_EQ(first(8, {1024, 3072}, true, false), "t8r16k512s4");
  // Boxes lead where there are any.
  EXPECT_EQ(first(1, {576, 1536}, false), "b16r64k256s5");
  EXPECT_EQ(first(1, {2048, 2048}, true), "b16r64k256s5x2");
  EXPECT_EQ(first(4, {4096, 2048}, false), "b16r64k256s5");
  EXPECT_EQ(first(1, {960, 2560}, false), "b16r64k256s5");
  EXPECT_EQ(first(8, {1024, 3072}, true), "b16r64k256s5x2");
  EXPECT_EQ(first(9, {576, 1536}, false), "b16r64k256s5");
  EXPECT_EQ(first(16, {2048, 2048}, true), "b16r64k256s5x2");
  EXPECT_EQ(first(9, {1152, 6912}, false), "b16r64k256s5");
  EXPECT_EQ(first(16, {1152, 6912}, true), "b32r64k128s9x4");
  cuda::sm90::decode::ranked({16, 2048, 8192, false, kSmCount, false}, out);
  EXPECT_EQ(name_of(out[0]), "t16r16k512s3");
  for (const Widths w : {Widths{2880, 2880}, Widths{2304, 9216}, Widths{4096, 14336}}) {
    for (const int m : {1, 16}) {
      for (const bool down : {false, true}) {
        const std::size_t count = cuda::sm90::decode::ranked({m, w.d, w.h, down, kSmCount}, out);
        for (std::size_t i = 0; i < count; ++i) EXPECT_FALSE(out[i].half) << name_of(out[i]);
      }
    }
  }
}

// Each CTA sums the squares of all columns; x has half of a stage's sixteen rows, with or without a
// residual.
TEST(DecodeConfig, ADeferredNormHasBoxesOfItsOwn) {
  std::array<Tiling, 32> out;
  Shape normed{.m = 1, .d = 2048, .h = 768, .down = false, .sm_count = kSmCount, .norm = true};
  for (const int m : {1, 8}) {
    normed.m = m;
    EXPECT_EQ(cuda::sm90::decode::ranked(normed, out), 1U);
    EXPECT_EQ(name_of(out[0]), "bn16r64k256s5");
  }
  normed.m = 9;
  EXPECT_EQ(cuda::sm90::decode::ranked(normed, out), 0U);
  normed.m = 1;
  normed.boxes = false;
  EXPECT_EQ(cuda::sm90::decode::ranked(normed, out), 0U);
}

// Boxes are first where whole ones are nearly even shares, else rows.
TEST(DecodeConfig, FewTokensLeadWithEvenBoxes) {
  std::array<Tiling, 32> out;
  const auto first = [&](int m, Widths w, bool down, bool boxes = true) {
    cuda::sm90::decode::ranked({m, w.d, w.h, down, kSmCount, boxes}, out);
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
  std::array<Tiling, 32> gate_up;
  std::array<Tiling, 32> down;
  const auto first = [&](int m, Widths w) {
    const cuda::sm90::decode::Shape up{m, w.d, w.h, false, kSmCount};
    const cuda::sm90::decode::Shape back{m, w.d, w.h, true, kSmCount};
    const auto ups = std::span(gate_up).first(cuda::sm90::decode::ranked(up, gate_up));
    const auto backs = std::span(down).first(cuda::sm90::decode::ranked(back, down));
    const auto pair = cuda::sm90::decode::first_pair(ups, up, backs, back);
    return name_of(ups[pair.gate_up]) + "+" + name_of(backs[pair.down]);
  };
  EXPECT_EQ(first(16, {1024, 3072}), "b32r64k128s9+b32r64k128s9x4");
  EXPECT_EQ(first(48, {896, 4864}), "b64r64k128s6+b64r64k128s6x4");
  EXPECT_EQ(first(16, {2048, 2048}), "b16r64k256s5+b16r64k256s5x2");
  // Two where that saves more; nothing is weighed where a launch has rows.
  EXPECT_EQ(first(64, {4096, 14336}), "b64r128k128s4+b64r64k128s6x2");
  EXPECT_EQ(first(8, {16384, 6656}), "t8r32k512s5+b16r64k256s5");
}

// K is divided only where the rows of a cluster are one block.
TEST(DecodeConfig, DividesWhatIsOneBlock) {
  std::array<Tiling, 32> out;
  for (const int sm_count : {1, 3, 4, 7, kSmCount}) {
    EXPECT_GE(cuda::sm90::decode::ranked({64, 64, 64, true, sm_count}, out), 1U);
  }
  int divided = 0;
  for (const int d : {576, 2048, 4096, 5120, 8192, 16384}) {
    for (const bool down : {false, true}) {
      for (const int m : {1, 9, 17, 64, 96, 128, 160}) {
        const int h = 2048;
        const Shape shape{m, d, h, down, kSmCount};
        const std::size_t count = cuda::sm90::decode::ranked(shape, out);
        for (std::size_t i = 0; i < count; ++i) {
          if (out[i].split == 1) continue;
          ++divided;
          const int ctas = cuda::sm90::decode::ctas_of(out[i], shape);
          // The barrier at which sums arrive is waited for once.
          EXPECT_EQ(cuda::sm90::decode::launch_shares(out[i], down, d, h, ctas).blocks, 1)
              << m << " " << d << " " << name_of(out[i]);
        }
      }
    }
  }
  EXPECT_GT(divided, 0);
}

// Two short boxes each; by hand.
TEST(DecodeConfig, GroupsOfOneOrTwoBoxesHaveTwo) {
  constexpr Tiling kBoxes{16, 64, 256, 5, 1, true};
  Tiling divided = kBoxes;
  divided.split = 2;
  const Tiling in_four{64, 64, 128, 6, 4, true};
  const auto ctas = [](const Tiling& t, std::int64_t d, std::int64_t h, bool down) {
    return cuda::sm90::decode::ctas_of(t, {.d = d, .h = h, .down = down, .sm_count = kSmCount});
  };
  EXPECT_EQ(ctas(kBoxes, 576, 1536, false), 96);    // 192 boxes of 8 pairs
  EXPECT_EQ(ctas(kBoxes, 576, 1544, false), 97);    // an odd one
  EXPECT_EQ(ctas(kBoxes, 576, 2112, false), 132);   // two each in any case
  EXPECT_EQ(ctas(kBoxes, 576, 2120, false), 132);   // some have three
  EXPECT_EQ(ctas(kBoxes, 576, 1056, false), 132);   // one each
  EXPECT_EQ(ctas(kBoxes, 2560, 1536, false), 96);   // 32 rows of 2560: 160 KB
  EXPECT_EQ(ctas(kBoxes, 2568, 1536, false), 132);  // and a little more
  EXPECT_EQ(ctas(kBoxes, 2304, 2048, true), 72);    // 144 boxes of 16 rows
  EXPECT_EQ(ctas(kBoxes, 1152, 4096, true), 72);    // one each
  EXPECT_EQ(ctas(divided, 1152, 4096, true), 72);   // 72 boxes for 66 pairs of CTAs
  EXPECT_EQ(ctas(divided, 1152, 5128, true), 132);
  EXPECT_EQ(ctas(in_four, 576, 10240, true), 72);  // 36 boxes for 30 clusters of four
  EXPECT_EQ(ctas(in_four, 576, 10248, true), 120);
  // By rows there are no boxes.
  EXPECT_EQ(ctas({8, 32, 512, 5}, 576, 1536, false), 132);
}

// By hand: 14 boxes of 8 pairs in two blocks of 112 rows and 32 chunks; 4 boxes of two CTAs in one
// block, 28 chunks each.
TEST(DecodeConfig, ModelCountsBytesStagesAndTheFinish) {
  const Tiling tiling{64, 128, 128, 4, 1, true};
  const double bytes = 224 * 4096 * 2 + 2 * 4096 * 64 * 2;
  EXPECT_NEAR(cuda::sm90::decode::model_us(tiling, {64, 4096, 14336, false, kSmCount}),
              std::max(224 * 4096 * 2 / 34e3, bytes / 62e3) + 2 * 4096 * 64 * 2 / 260e3 + 2 * 2.4,
              1e-9);
  Tiling divided{64, 64, 128, 6, 2, true};
  EXPECT_NEAR(cuda::sm90::decode::model_us(divided, {64, 4096, 14336, true, kSmCount}),
              2 * 0.4 + (64 + 64) * 7168 * 2 / 62e3 + 7168 * 64 * 2 / 260e3, 1e-9);
  // An exchange of gate_up's costs more.
  EXPECT_NEAR(cuda::sm90::decode::model_us(divided, {64, 2048, 2048, false, kSmCount}),
              2 * 2 + (64 + 64) * 1024 * 2 / 62e3 + 1024 * 64 * 2 / 260e3, 1e-9);
}

// By hand, of more than 64 tokens: 14 boxes of 8 pairs in two blocks and 64 chunks; one box of 16
// rows of linear, a column half each, whose products take the time of 64 rows.
TEST(DecodeConfig, ModelOfManyTokensCountsCopiesAndProducts) {
  const Tiling tiling{96, 128, 64, 8, 1, true};
  Shape shape{96, 4096, 14336, false, kSmCount};
  const double memory = 1.056 * 4917e3 / kSmCount;
  const auto us = [&](double lines) {
    const double copies = 224 * 4096 * 2 / memory + lines * 2 * 4096 * 96 * 2 / 231e3;
    const double products = 2 * 64 * 4 * 2 * 1.5 * 0.0186;
    return 1.84 + std::pow(std::pow(copies, 4) + std::pow(products, 4), 0.25) + 2 * 1.5 * 0.29;
  };
  EXPECT_NEAR(cuda::sm90::decode::model_us(tiling, shape), us(1), 1e-9);
  shape.pitch = cuda::sm90::gemm::Pitch::kWholeSectors;
  EXPECT_NEAR(cuda::sm90::decode::model_us(tiling, shape), us(1.63), 1e-9);
  shape.pitch = cuda::sm90::gemm::Pitch::kSplitSectors;
  EXPECT_NEAR(cuda::sm90::decode::model_us(tiling, shape), us(4), 1e-9);
  shape.copy_input = cuda::sm90::gemm::CopyRows::kMay;
  EXPECT_NEAR(cuda::sm90::decode::model_us(tiling, shape), us(1) + 2, 1e-9);
  // Half of the bandwidth.
  Shape slow{160, 1024, 1024, true, kSmCount};
  slow.memory_bytes_per_second /= 2;
  const double copies = 16 * 512 * 2 / (memory / 2) + 512 * 160 * 2 / 231e3;
  const double products = 8 * 4 * 2.5 * 0.0186;
  EXPECT_NEAR(cuda::sm90::decode::model_us({160, 64, 64, 6, 2, true}, slow),
              1.84 + std::pow(std::pow(copies, 4) + std::pow(products, 4), 0.25) + 2 * 0.22, 1e-9);
  const double weights = 1024.0 * 1024 * 2;
  const auto tiles = [&](double m) {
    return 4.5 + 1024 * 3.2e-4 +
           std::pow(std::pow(weights / (0.926 * 2458.5e3), 4) +
                        std::pow(weights * m / (4.18e6 * kSmCount), 4),
                    0.25);
  };
  for (const int m : {97, 128, 129, 144, 145, 160}) {
    slow.m = m;
    const double few_rows = m == 129 || m == 144 ? 1.07 : 1;  // of the second row tile
    EXPECT_NEAR(cuda::sm90::decode::tiles_us(slow), few_rows * tiles(m), 1e-9) << m;
  }
  slow.pitch = cuda::sm90::gemm::Pitch::kSplitSectors;
  EXPECT_NEAR(cuda::sm90::decode::tiles_us(slow), 1.15 * tiles(160), 1e-9);
}

// 32 rows of w_down in 64 slots leave half of the ring empty: less is under way than the latency of
// memory wants.
TEST(DecodeConfig, ModelCountsBytesInFlight) {
  const cuda::sm90::decode::Shape shape{9, 4096, 14336, true, kSmCount};
  const double weights = 32 * 14336 * 2;
  EXPECT_NEAR(cuda::sm90::decode::model_us({16, 64, 256, 5, 1}, shape),
              weights / (5 * 32 * 256 * 2 / 2.8), 1e-9);
  EXPECT_NEAR(cuda::sm90::decode::model_us({16, 32, 512, 4, 1}, shape), weights / 31e3, 1e-9);
}

}  // namespace
}  // namespace sluice
