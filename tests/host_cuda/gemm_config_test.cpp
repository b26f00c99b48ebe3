// SPDX-License-Identifier: Apache-2.0
// The Hopper GEMM's choice of tiling, its launch and its boxes: arithmetic, on any CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cuda/sm90/gemm/launch.hpp"
#include "cuda/sm90/gemm/table.hpp"
#include "fake_devices.hpp"

namespace sluice {
namespace {

using cuda::sm90::gemm::ColumnCut;
using cuda::sm90::gemm::GemmKind;
using cuda::sm90::gemm::GemmShape;
using cuda::sm90::gemm::Pitch;
using cuda::sm90::gemm::Schedule;
using cuda::sm90::gemm::Tiling;

constexpr int kSmCount = gpu::kH200SmCount;
constexpr GemmKind kKinds[] = {GemmKind::kGateUp, GemmKind::kDown, GemmKind::kGateUpGrad,
                               GemmKind::kInputGrad, GemmKind::kWeightGrad};
constexpr std::int64_t kTokens[] = {0,   1,   127, 128,  129,  145,  161,
                                    256, 257, 512, 1000, 2048, 4096, 16384};

GemmShape gate_up(std::int64_t m, std::int64_t d, std::int64_t h) {
  return {.m = m, .n = 2 * h, .k = d, .kind = GemmKind::kGateUp, .sm_count = kSmCount};
}
GemmShape down(std::int64_t m, std::int64_t d, std::int64_t h) {
  return {.m = m, .n = d, .k = h, .kind = GemmKind::kDown, .sm_count = kSmCount};
}

GemmShape gate_up_grad(std::int64_t m, std::int64_t d, std::int64_t h) {
  return {.m = m, .n = h, .k = d, .kind = GemmKind::kGateUpGrad, .sm_count = kSmCount};
}

GemmShape shape_of(GemmKind kind, std::int64_t m, std::int64_t d, std::int64_t h) {
  switch (kind) {
    case GemmKind::kGateUp:
      return gate_up(m, d, h);
    case GemmKind::kDown:
      return down(m, d, h);
    case GemmKind::kGateUpGrad:
      return gate_up_grad(m, d, h);
    case GemmKind::kInputGrad:
    case GemmKind::kWeightGrad:
      break;
  }
  return {.m = h, .n = d, .k = m, .kind = kind, .sm_count = kSmCount};
}

// Every size of token count, every operator, shapes with and without tails.
std::vector<GemmShape> many_shapes() {
  std::vector<GemmShape> shapes;
  for (const std::int64_t m : kTokens) {
    for (const auto& [d, h] : {std::pair{64, 8}, {576, 1536}, {2048, 8192}, {4096, 14336}}) {
      for (const GemmKind kind : kKinds) shapes.push_back(shape_of(kind, m, d, h));
    }
  }
  return shapes;
}

std::string name_of(const Tiling& tiling) {
  char text[24];
  cuda::sm90::gemm::name_tiling(tiling, text);
  return text;
}

std::vector<Tiling> ranking(const GemmShape& shape) {
  std::array<Tiling, 24> out;
  const std::size_t count = cuda::sm90::gemm::ranked(shape, out);
  EXPECT_LE(count, out.size());
  return {out.begin(), out.begin() + static_cast<std::ptrdiff_t>(count)};
}

// Whether the parts of a split k are CTAs that run at once, with two stages each or more.
bool fills_in_one_wave(const GemmShape& shape, const Tiling& t) {
  if (t.split == 1) return true;
  const std::int64_t tiles =
      (shape.m + t.rows - 1) / t.rows * ((shape.n + t.tile_n - 1) / t.tile_n);
  return tiles * t.split <= (t.split == 2 ? 132 : 120) && (shape.k + 63) / 64 >= 2 * t.split;
}

std::string best(const GemmShape& shape) { return name_of(ranking(shape).front()); }

// What name_tiling() says, read back.
Tiling parse(const std::string& name) {
  char kind[3];
  Tiling t;
  if (name.starts_with("sp")) {
    t.schedule = Schedule::kSplitK, t.cluster = 1, t.group = 16;
    EXPECT_EQ(std::sscanf(name.c_str(), "sp%dx%dk%d", &t.rows, &t.tile_n, &t.split), 3) << name;
    return t;
  }
  EXPECT_EQ(std::sscanf(name.c_str(), "%2[a-z]%dx%dc%dg%d", kind, &t.rows, &t.tile_n, &t.cluster,
                        &t.group),
            5)
      << name;
  const std::map<std::string, Schedule> schedules = {{"co", Schedule::kCooperative},
                                                     {"pp", Schedule::kPingpong},
                                                     {"sk", Schedule::kStreamK},
                                                     {"sw", Schedule::kStreamKSwapAB}};
  EXPECT_TRUE(schedules.contains(kind)) << name;
  t.schedule = schedules.at(kind);
  return t;
}

TEST(GemmConfig, NamesRoundTripAndAreUnique) {
  for (const GemmKind kind : kKinds) {
    std::set<std::string> names;
    for (const Tiling& tiling : cuda::sm90::gemm::tilings(kind)) {
      EXPECT_EQ(parse(name_of(tiling)), tiling);
      EXPECT_TRUE(names.insert(name_of(tiling)).second) << name_of(tiling);
    }
    EXPECT_FALSE(names.empty());
  }
}

TEST(GemmConfig, LoopOrdersAreByRowsAndByColumns) {
  const auto orders = [](std::int64_t m) {
    std::array<Tiling, 2> out;
    const Tiling tiling = cuda::sm90::gemm::kGateUpTilings.front();
    const auto count =
        cuda::sm90::gemm::loop_orders(shape_of(GemmKind::kGateUp, m, 4096, 14336), out);
    std::string names;
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(tiling.has_kernel_of(out[i]));
      names += name_of(out[i]) + " ";
    }
    return names;
  };
  EXPECT_EQ(orders(256), "");  // one row of tiles
  EXPECT_EQ(orders(257), "pp128x192c2g1 ");
  EXPECT_EQ(orders(2048), "pp128x192c2g1 ");
  EXPECT_EQ(orders(2049), "pp128x192c2g1 pp128x192c2g0 ");
}

TEST(GemmConfig, RanksEveryTilingOnceCheapestFirst) {
  for (const GemmShape& shape : many_shapes()) {
    const std::vector<Tiling> order = ranking(shape);
    const auto all = cuda::sm90::gemm::tilings(shape.kind);
    std::vector<Tiling> source(all.begin(), all.end());
    if (shape.m > cuda::sm90::gemm::kStreamKMaxTokens) {
      std::erase_if(source, [](const Tiling& t) { return t.is_stream_k(); });
    }
    std::erase_if(source, [&](const Tiling& t) { return !fills_in_one_wave(shape, t); });
    // With swap-AB one tile has all tokens.
    std::erase_if(source, [&](const Tiling& t) { return t.swaps_ab() && t.rows < shape.m; });
    ASSERT_EQ(order.size(), source.size());
    for (const Tiling& tiling : source) {
      EXPECT_EQ(std::count(order.begin(), order.end(), tiling), 1) << name_of(tiling);
    }
    for (std::size_t i = 1; i < order.size(); ++i) {
      const double before = cuda::sm90::gemm::cost(shape, order[i - 1]);
      const double after = cuda::sm90::gemm::cost(shape, order[i]);
      EXPECT_LE(before, after) << shape.m << "x" << shape.n << " " << name_of(order[i]);
      if (before == after) {  // ties stay in source order
        EXPECT_LT(std::find(source.begin(), source.end(), order[i - 1]),
                  std::find(source.begin(), source.end(), order[i]));
      }
    }
  }
}

TEST(GemmConfig, AShortSpanReceivesTheCheapest) {
  const GemmShape shape = gate_up(64, 4096, 14336);
  std::array<Tiling, 2> out;
  const std::vector<Tiling> all = ranking(shape);
  EXPECT_EQ(cuda::sm90::gemm::ranked(shape, out), all.size());
  EXPECT_EQ(out[0], all[0]);
  EXPECT_EQ(out[1], all[1]);
  EXPECT_EQ(cuda::sm90::gemm::ranked(shape, {}), all.size());
}

TEST(GemmConfig, MoreTokensNeverCostLess) {
  for (const GemmKind kind : kKinds) {
    for (const Tiling& tiling : cuda::sm90::gemm::tilings(kind)) {
      // More tokens can bring stream-K's workers into step.
      if (tiling.is_stream_k()) continue;
      double before = 0;
      // Below a whole row tile empty rows cost more than tokens, as measured.
      for (std::int64_t m = tiling.rows; m <= 5000; m += 37) {
        const GemmShape shape = shape_of(kind, m, 4096, 14336);
        const double now = cuda::sm90::gemm::cost(shape, tiling);
        // A row tile of few tokens reads less of x than a full one.
        EXPECT_GE(now, 0.98 * before) << name_of(tiling) << " at m = " << m;
        before = now;
      }
    }
  }
}

// Every meeting of a turn is ahead of the last by kLockstepBlocks to twice as many, and the last
// one is the turn's end; short turns have that one alone.
TEST(GemmConfig, CtasMeetAtTheEndOfATurnAndBetween) {
  constexpr int kStep = cuda::sm90::gemm::kLockstepBlocks;
  for (const int k_blocks : {1, 7, kStep - 1, kStep, 2 * kStep - 1, 2 * kStep, 448, 832, 1664}) {
    int meetings = 0;
    for (int k = 0; k < k_blocks; ++meetings) {
      const int next = cuda::sm90::gemm::next_meeting(k, k_blocks);
      EXPECT_LT(next - k, 2 * kStep) << k_blocks;
      EXPECT_GE(next - k, std::min(kStep, k_blocks)) << k_blocks;
      ASSERT_GT(next, k);
      ASSERT_LE(next, k_blocks);
      k = next;
    }
    EXPECT_EQ(meetings, std::max(1, k_blocks / kStep)) << k_blocks;
  }
}

TEST(GemmConfig, ADeviceSmallerThanAClusterHasACost) {
  GemmShape shape = gate_up(512, 4096, 14336);
  shape.sm_count = 1;
  for (const Tiling& tiling : cuda::sm90::gemm::tilings(GemmKind::kGateUp)) {
    EXPECT_GT(cuda::sm90::gemm::cost(shape, tiling), 0);
  }
}

GemmShape narrow(GemmShape shape) {
  shape.narrow_l2 = true;
  return shape;
}

// On an H200 and on an H100: docs/kernels/gate_up.md, section 9.
struct Golden {
  std::int64_t m, d, h;
  const char* wide;
  const char* narrow;
};

TEST(GemmConfig, GoldenChoicesOfGateUp) {
  const Golden choices[] = {
      {1, 4096, 14336, "co128x224c1g16", "co128x224c1g16"},
      {64, 4096, 14336, "co128x224c1g16", "co128x224c1g16"},
      {128, 4096, 14336, "co128x224c1g16", "co128x224c1g16"},
      {129, 4096, 14336, "sw144x224c1g16", "sw144x224c1g16"},
      {144, 4096, 14336, "sw144x224c1g16", "sw144x224c1g16"},
      {145, 4096, 14336, "sw160x224c1g16", "sw160x224c1g16"},
      {160, 4096, 14336, "sw160x224c1g16", "sw160x224c1g16"},
      {161, 4096, 14336, "sk192x224c1g16", "sk192x224c1g16"},
      {136, 8192, 28672, "sw144x224c1g16", "sw144x224c1g16"},
      {160, 8192, 28672, "sw160x224c1g16", "sw160x224c1g16"},
      {160, 5120, 13824, "sw160x224c1g16", "sw160x224c1g16"},
      {136, 3584, 18944, "pp128x192c2g8", "pp128x192c2g8"},
      {144, 6144, 16384, "sw144x256c2g16", "sw144x256c2g16"},
      {144, 5120, 27648, "sw144x256c2g16", "sw144x256c2g16"},
      {144, 4096, 12288, "sw144x224c1g16", "pp128x192c2g8"},
      {192, 2304, 9216, "pp128x160c2g8", "pp128x160c2g8"},
      {192, 4096, 12288, "sk192x192c1g16", "pp128x192c2g8"},
      {192, 4096, 14336, "sk192x224c1g16", "sk192x224c1g16"},
      {192, 8192, 28672, "sk192x224c1g16", "sk192x224c1g16"},
      {192, 3584, 18944, "pp128x192c2g8", "pp128x192c2g8"},
      {256, 4096, 14336, "co128x224c1g16", "co128x224c1g16"},
      {384, 4096, 14336, "co128x224c1g16", "co128x224c1g16"},
      {512, 4096, 14336, "co128x224c1g16", "co128x224c1g16"},
      {896, 4096, 14336, "pp128x192c1g16", "pp128x192c1g16"},
      {1024, 4096, 14336, "pp128x160c2g8", "pp128x160c2g8"},
      {2048, 4096, 14336, "pp128x192c2g8", "pp128x192c2g8"},
      {4096, 4096, 14336, "pp128x192c2g8", "pp128x192c2g8"},
      {16384, 4096, 14336, "pp128x192c2g8", "pp128x192c2g8"},
      {256, 8192, 28672, "co128x224c1g16", "pp128x192c2g8"},
      {384, 8192, 28672, "pp128x192c1g16", "pp128x192c1g16"},
      {512, 8192, 28672, "pp128x160c2g8", "pp128x160c2g8"},
      {2048, 8192, 28672, "pp128x192c2g8", "pp128x192c2g8"},
      {4096, 8192, 28672, "pp128x192c2g8", "pp128x192c2g8"},
      {1280, 8192, 28672, "pp128x192c2g8", "pp128x192c2g8"},
      {1024, 2880, 2880, "pp128x192c1g16", "pp128x192c1g16"},
      {96, 16384, 6656, "pp128x128c1g16", "pp128x128c1g16"},
      {128, 16384, 6656, "pp128x128c1g16", "pp128x128c1g16"},
      {192, 16384, 6656, "co128x224c1g16", "co128x224c1g16"},
      {256, 16384, 6656, "co128x224c1g16", "co128x224c1g16"},
      {384, 16384, 6656, "pp128x160c1g16", "pp128x160c1g16"},
      {96, 8192, 7168, "pp128x128c1g16", "pp128x128c1g16"},
      {160, 8192, 7168, "co128x224c1g16", "co128x224c1g16"},
      {512, 16384, 53248, "pp128x192c2g8", "pp128x192c2g8"},
      {2048, 16384, 53248, "pp128x192c2g8", "pp128x192c2g8"},
      {4096, 16384, 53248, "pp128x192c2g8", "pp128x192c2g8"},
      {896, 16384, 53248, "pp128x192c1g16", "co128x224c1g16"},
  };
  for (const auto& [m, d, h, on_wide, on_narrow] : choices) {
    EXPECT_EQ(best(gate_up(m, d, h)), on_wide) << m << "x" << d << "x" << h;
    EXPECT_EQ(best(narrow(gate_up(m, d, h))), on_narrow) << m << "x" << d << "x" << h;
  }
}

GemmShape split(GemmShape shape) {
  shape.x_pitch = shape.w_pitch = Pitch::kSplitSectors;
  return shape;
}

TEST(GemmConfig, APitchSplitsLinesOf128BytesOrSectorsOf32) {
  EXPECT_EQ(cuda::sm90::gemm::pitch_of(4096 * 2), Pitch::kWholeLines);
  EXPECT_EQ(cuda::sm90::gemm::pitch_of(64 * 2), Pitch::kWholeLines);
  EXPECT_EQ(cuda::sm90::gemm::pitch_of(4784 * 2), Pitch::kWholeSectors);
  EXPECT_EQ(cuda::sm90::gemm::pitch_of(4792 * 2), Pitch::kSplitSectors);
  EXPECT_EQ(cuda::sm90::gemm::pitch_of(72 * 2), Pitch::kSplitSectors);
}

// The first products of two random lists of 180 that the estimate was not fitted to.
TEST(GemmConfig, GateUpCostsWhatItWasMeasuredAt) {
  struct Measured {
    std::int64_t m, d, h;
    const char* wide_tiling;
    double wide_us;
    const char* narrow_tiling;
    double narrow_us;
  };
  const Measured products[] = {
      {155, 5504, 17920, "pp128x192c1g16", 139.4, "pp128x192c1g16", 155.4},
      {329, 10936, 14584, "co128x224c1g16", 458.3, "pp128x192c2g8", 467.3},
      {202, 1536, 1288, "sp128x128k2", 10.5, "sp128x128k2", 11.91},
      {358, 1768, 2384, "pp128x160c2g8", 19.87, "pp128x160c2g8", 21.22},
      {99, 14344, 904, "sp128x128k8", 21.64, "sp128x128k8", 25.61},
      {247, 9400, 22272, "pp128x192c2g8", 338.4, "pp128x192c2g8", 376.6},
      {1460, 10096, 8832, "pp128x192c2g8", 709, "pp128x192c2g8", 741.5},
      {3654, 3360, 5344, "pp128x192c2g8", 348.4, "pp128x192c2g8", 364},
      {634, 4224, 8448, "pp128x128c1g16", 120, "co128x224c1g16", 125.6},
      {1157, 4608, 1792, "pp128x160c1g16", 60.1, "pp128x160c2g8", 63.76},
      {5533, 7680, 1024, "pp128x192c1g16", 237.3, "pp128x192c2g8", 248.1},
  };
  for (const Measured& product : products) {
    GemmShape shape = gate_up(product.m, product.d, product.h);
    shape.x_pitch = shape.w_pitch = cuda::sm90::gemm::pitch_of(2 * product.d);
    SCOPED_TRACE(std::to_string(product.m) + "x" + std::to_string(product.d));
    const double wide = cuda::sm90::gemm::cost(shape, parse(product.wide_tiling));
    EXPECT_NEAR(wide / product.wide_us, 1, 0.25);
    const double on_narrow = cuda::sm90::gemm::cost(narrow(shape), parse(product.narrow_tiling));
    EXPECT_NEAR(on_narrow / product.narrow_us, 1, 0.25);
  }
}

// Measured on an H200 in us, the other and the choice: 130.6, 86.8; 3060, 2238.
TEST(GemmConfig, GoldenChoicesWhereRowsSplitSectors) {
  EXPECT_EQ(best(split(gate_up(1024, 1624, 8928))), "pp128x192c2g8");
  EXPECT_EQ(best(split(gate_up(4195, 4792, 19584))), "pp128x192c2g8");
}

TEST(GemmConfig, CopiesXWhereRowsThatSplitLinesCostMore) {
  const auto copied = [](GemmShape shape, const char* tiling) {
    shape.copy_x = cuda::sm90::gemm::CopyRows::kMay;
    shape.x_pitch = shape.w_pitch = cuda::sm90::gemm::pitch_of(2 * shape.k);
    return cuda::sm90::gemm::copies_x(narrow(shape), parse(tiling));
  };
  // Measured on an H100, of the time without: 0.86, 0.90; then 1.20, 1.26.
  EXPECT_TRUE(copied(gate_up(486, 3112, 27048), "pp128x192c2g8"));
  EXPECT_TRUE(copied(gate_up(3032, 4376, 33176), "pp128x192c2g8"));
  EXPECT_FALSE(copied(gate_up(7911, 6224, 1472), "pp128x160c2g8"));
  EXPECT_FALSE(copied(gate_up(3315, 4592, 1656), "pp128x192c2g8"));
  EXPECT_FALSE(copied(gate_up(3032, 4352, 33176), "pp128x192c2g8"));
  EXPECT_FALSE(copied(gate_up(144, 4376, 33176), "sw144x224c1g16"));

  GemmShape may = narrow(split(gate_up(3032, 4376, 33176)));
  const double without = cuda::sm90::gemm::cost(may, parse("pp128x192c2g8"));
  may.copy_x = cuda::sm90::gemm::CopyRows::kMay;
  EXPECT_LT(cuda::sm90::gemm::cost(may, parse("pp128x192c2g8")), without);
}

TEST(GemmConfig, GoldenChoicesOfDown) {
  const Golden choices[] = {
      {1, 4096, 14336, "sp128x64k2", "sp128x64k2"},
      {128, 4096, 14336, "sp128x64k2", "sp128x64k2"},
      {256, 4096, 14336, "sp128x128k2", "sp128x128k2"},
      {384, 4096, 14336, "pp128x128c1g16", "pp128x128c1g16"},
      {512, 4096, 14336, "pp128x128c1g16", "pp128x128c2g8"},
      {1024, 4096, 14336, "co128x256c2g8", "co128x256c2g8"},
      {1024, 8192, 28672, "co128x256c2g8", "co128x256c2g8"},
      {2048, 8192, 28672, "co128x256c2g8", "co128x256c2g8"},
      {4096, 4096, 14336, "co128x256c2g8", "co128x256c2g8"},
      {8192, 4096, 14336, "co128x256c2g8", "co128x256c2g8"},
      {128, 16384, 53248, "pp128x128c1g16", "pp128x128c1g16"},
      {384, 5120, 13824, "pp128x128c1g16", "pp128x128c1g16"},
      {384, 8192, 28672, "pp128x192c1g16", "pp128x192c1g16"},
      {4096, 8192, 28672, "co128x256c2g8", "co128x256c2g8"},
      {8192, 8192, 28672, "pp128x192c2g8", "pp128x192c2g8"},
      {4096, 16384, 53248, "pp128x192c2g8", "pp128x192c2g8"},
  };
  for (const auto& [m, d, h, on_wide, on_narrow] : choices) {
    EXPECT_EQ(best(down(m, d, h)), on_wide) << m << "x" << d << "x" << h;
    EXPECT_EQ(best(narrow(down(m, d, h))), on_narrow) << m << "x" << d << "x" << h;
  }
}

TEST(GemmConfig, StreamKNeedsAPlaceForPartialSumsAndFewTokens) {
  GemmShape shape = gate_up(64, 4096, 14336);
  shape.partials = false;
  const auto is_stream_k = [](const Tiling& t) { return t.is_stream_k(); };
  EXPECT_TRUE(std::ranges::none_of(ranking(shape), is_stream_k));
  EXPECT_TRUE(std::ranges::none_of(ranking(gate_up(385, 4096, 14336)), is_stream_k));
  EXPECT_EQ(std::ranges::count_if(ranking(gate_up(384, 4096, 14336)), is_stream_k), 2);
  EXPECT_EQ(std::ranges::count_if(ranking(gate_up(144, 4096, 14336)), is_stream_k), 6);
}

// Few tiles: their parts of k are multiplied at once.
TEST(GemmConfig, GoldenChoicesOfFewTiles) {
  EXPECT_EQ(best(gate_up(76, 1488, 512)), "sp128x64k4");
  EXPECT_EQ(best(gate_up(110, 1232, 1024)), "sp128x64k2");
  EXPECT_EQ(best(gate_up(218, 6920, 584)), "sp128x128k4");
  EXPECT_EQ(best(gate_up(128, 4096, 14336)), "co128x224c1g16");
  EXPECT_EQ(best(gate_up(76, 120, 512)).substr(0, 2), "pp");  // two stages: nothing to split
}

TEST(GemmConfig, GoldenChoicesOfGateUpGrad) {
  EXPECT_EQ(best(gate_up_grad(1, 4096, 14336)), "pp128x128c1g16");
  EXPECT_EQ(best(gate_up_grad(4096, 4096, 14336)), "pp128x192c2g8");
  EXPECT_EQ(best(gate_up_grad(8192, 4096, 14336)), "pp128x192c2g8");
  EXPECT_EQ(best(gate_up_grad(8192, 8192, 28672)), "pp128x192c2g8");
}

// dx, [M, 2H] by [2H, D]; of the weights the larger, [H, M] by [M, D].
TEST(GemmConfig, GoldenChoicesOfGrads) {
  const auto dx = [](std::int64_t m, std::int64_t d, std::int64_t h) {
    return GemmShape{m, d, 2 * h, GemmKind::kInputGrad, kSmCount};
  };
  // What mlp_grad launches, whose columns are those of x and not of h.
  EXPECT_EQ(name_of(cuda::sm90::gemm::best_input_grad(4096, 4096, 14336, kSmCount)),
            best(dx(4096, 4096, 14336)));
  const auto dw = [](std::int64_t m, std::int64_t d, std::int64_t h) {
    return GemmShape{h, d, m, GemmKind::kWeightGrad, kSmCount};
  };
  // 128 tiles of 256 on 66 clusters, 2 waves: 512 against 4 waves of 128: 512 / 0.955 = 536.
  EXPECT_EQ(best(dx(2048, 4096, 14336)), "co128x256c2g8");
  EXPECT_EQ(best(dx(4096, 4096, 14336)), "co128x256c2g8");
  // 8 waves of 256: 2048 against 11 waves of 192: 2112.
  EXPECT_EQ(best(dx(8192, 4096, 14336)), "co128x256c2g8");
  EXPECT_EQ(best(dx(4096, 8192, 28672)), "co128x256c2g8");
  EXPECT_EQ(best(dx(3000, 4096, 14336)), "co128x256c2g8");
  // Short sums: open epilogues outweigh fuller waves.
  EXPECT_EQ(best(dx(4096, 4096, 1536)), "pp128x128c2g8");
  // What GpuTraining.MlpGradByEveryTiling takes for 192: 89 tiles, 2 waves, against 133, 3 waves.
  EXPECT_EQ(best(dx(64, 17000, 72)), "pp128x192c2g8");
  EXPECT_EQ(best(dw(2048, 4096, 14336)), "pp128x192c2g8");
  EXPECT_EQ(best(dw(8192, 4096, 14336)), "pp128x192c2g8");
  EXPECT_EQ(best(dw(4096, 8192, 28672)), "pp128x192c2g8");
}

TEST(GemmConfig, ColumnCutsCoverEveryColumnAndNeverCostMoreThanWholeTiles) {
  for (const GemmShape& shape : many_shapes()) {
    if (shape.m == 0) continue;
    for (const Tiling& tiling : cuda::sm90::gemm::tilings(shape.kind)) {
      const ColumnCut cut = cuda::sm90::gemm::column_cut(shape, tiling);
      SCOPED_TRACE(std::to_string(shape.m) + "x" + std::to_string(shape.n) + " " + name_of(tiling));
      const std::int64_t columns = (shape.n + tiling.tile_n - 1) / tiling.tile_n;
      if (cut.tail == 0) {
        EXPECT_EQ(cut.whole, columns);
        continue;
      }
      EXPECT_TRUE(shape.kind == GemmKind::kGateUpGrad || shape.kind == GemmKind::kWeightGrad);
      EXPECT_LE(cut.whole * tiling.tile_n, shape.n);
      const std::int64_t end = cut.whole * tiling.tile_n + cut.tail * cuda::sm90::gemm::kColumnBox;
      EXPECT_GE(end, shape.n);
      EXPECT_LT(end - cuda::sm90::gemm::kColumnBox, shape.n);
    }
  }
}

// On 66 clusters of two.
TEST(GemmConfig, GoldenColumnCuts) {
  const Tiling wide{.tile_n = 192, .cluster = 2, .group = 8};
  const auto cut = [&](const GemmShape& shape) {
    return cuda::sm90::gemm::column_cut(shape, wide);
  };
  // 16 row tiles: 1184 whole tiles in 18 waves, 32 tail ones, 28 of them in a wave of their own;
  // 75 columns of whole tiles would be 19 waves.
  EXPECT_EQ(cut(gate_up_grad(4096, 4096, 14336)), (ColumnCut{74, 2}));
  EXPECT_EQ(cut(gate_up_grad(8192, 4096, 14336)), (ColumnCut{74, 2}));
  // 149 whole columns fit, but the last would begin a 37th wave.
  EXPECT_EQ(cut(gate_up_grad(4096, 8192, 28672)), (ColumnCut{148, 4}));
  // 72.7 waves of whole tiles, 71.8 and two of tail ones: nothing to gain.
  EXPECT_EQ(cut(gate_up_grad(16384, 4096, 14336)), (ColumnCut{75, 0}));
  // What GpuTraining.GateUpGradByEveryTiling takes for tiles of both kinds.
  EXPECT_EQ(cut(gate_up_grad(256, 64, 12808)), (ColumnCut{66, 3}));
  EXPECT_EQ(cut(gate_up_grad(300, 64, 6408)), (ColumnCut{33, 2}));
  EXPECT_EQ(cut(gate_up_grad(700, 72, 4424)), (ColumnCut{22, 4}));
  // Few tiles are tail all of them: as many CTAs as there are boxes.
  EXPECT_EQ(cut(gate_up_grad(256, 4096, 1536)), (ColumnCut{0, 24}));
}

TEST(GemmConfig, KeepsStepWhereAWaveReadsMoreThanL2Holds) {
  const Tiling wide{.tile_n = 192};
  EXPECT_FALSE(
      cuda::sm90::gemm::keeps_lockstep(gate_up(16384, 4096, 14336), wide));          // 30 MB a wave
  EXPECT_TRUE(cuda::sm90::gemm::keeps_lockstep(gate_up(4096, 8192, 28672), wide));   // 60 MB
  EXPECT_TRUE(cuda::sm90::gemm::keeps_lockstep(gate_up(4096, 16384, 53248), wide));  // 119 MB
  EXPECT_TRUE(cuda::sm90::gemm::keeps_lockstep(down(4096, 4096, 14336), {.tile_n = 128}));
  EXPECT_FALSE(
      cuda::sm90::gemm::keeps_lockstep(gate_up(384, 8192, 28672), wide));  // a stream of weights
  // One turn: nothing to keep up with.
  EXPECT_FALSE(cuda::sm90::gemm::keeps_lockstep(down(512, 4096, 14336), {.tile_n = 128}));
}

// What a launch is told: the order of a shape's tiles, and a word to keep in step by where
// keeps_lockstep() says so, the next of all for each launch.
TEST(GemmLaunch, TakesOrderAndStepFromTheShape) {
  using cuda::sm90::gemm::GemmLaunch;
  using cuda::sm90::gemm::GemmParams;
  const auto set = [](GemmKind kind, const Tiling& tiling, int m, int n, int k, int& ctas) {
    GemmParams params{};
    params.m = m, params.n = n, params.k = k;
    ctas = cuda::sm90::gemm::set_order({.tiling = tiling, .sm_count = kSmCount}, kind, params);
    return params;
  };
  const Tiling wide{.tile_n = 192};
  int ctas = 0;
  // 70B: 16 row tiles by 299 columns of 96 outputs.
  const GemmParams in_step = set(GemmKind::kGateUp, wide, 4096, 28672, 8192, ctas);
  EXPECT_EQ(ctas, kSmCount);
  EXPECT_EQ(in_step.order.m_tiles, 16);
  EXPECT_EQ(in_step.order.tiles, 16 * 299);
  EXPECT_EQ(in_step.order.whole, in_step.order.tiles);
  EXPECT_EQ(in_step.order.group, wide.group);
  const int first = in_step.lockstep_word;
  EXPECT_GE(first, 0);
  for (int i = 1; i <= cuda::sm90::gemm::kLockstepWords; ++i) {
    EXPECT_EQ(set(GemmKind::kGateUp, wide, 4096, 28672, 8192, ctas).lockstep_word,
              (first + i) % cuda::sm90::gemm::kLockstepWords);
  }
  // 8B: L2 holds what a wave reads. The two products of dx are one of twice the k.
  EXPECT_EQ(set(GemmKind::kGateUp, wide, 4096, 14336, 4096, ctas).lockstep_word, -1);
  EXPECT_EQ(set(GemmKind::kDown, wide, 4096, 14336, 4096, ctas).lockstep_word, -1);
  EXPECT_GE(set(GemmKind::kInputGrad, wide, 4096, 14336, 4096, ctas).lockstep_word, 0);
  // Fewer tiles than CTAs.
  const GemmParams few = set(GemmKind::kDown, {.tile_n = 128}, 300, 1024, 4096, ctas);
  EXPECT_EQ(ctas, 2 * 16);
  EXPECT_EQ(few.order.tiles, 16);
  // Narrow tiles behind the whole ones.
  const GemmParams cut = set(GemmKind::kGateUpGrad, wide, 4096, 14336, 4096, ctas);
  EXPECT_EQ(cut.order.whole, 16 * 74);
  EXPECT_EQ(cut.order.tiles, 16 * (74 + 2));
}

TEST(GemmConfig, OutBoxesFillTheTileAndASwizzleSpan) {
  for (const GemmKind kind : kKinds) {
    for (const Tiling& tiling : cuda::sm90::gemm::tilings(kind)) {
      if (tiling.stores_rows()) continue;
      const cuda::sm90::Box box = cuda::sm90::gemm::out_box(tiling, kind);
      const int cols = kind == GemmKind::kGateUp ? tiling.tile_n / 2 : tiling.tile_n;
      EXPECT_EQ(cols % box.cols, 0) << name_of(tiling);
      EXPECT_TRUE(box.cols == 16 || box.cols == 32 || box.cols == 64) << name_of(tiling);
      EXPECT_EQ(tiling.rows % box.rows, 0) << name_of(tiling);
    }
  }
}

TEST(GemmLaunch, StartsEarlyWithoutPairsOrWhereItFillsTheSms) {
  const Tiling single{128, 1, Schedule::kPingpong, 16};
  const Tiling pair{128, 2, Schedule::kPingpong, 8};
  EXPECT_TRUE(cuda::sm90::gemm::starts_early(single, 8, kSmCount));
  EXPECT_FALSE(cuda::sm90::gemm::starts_early(pair, 104, kSmCount));
  EXPECT_FALSE(cuda::sm90::gemm::starts_early(pair, 123, kSmCount));
  EXPECT_TRUE(cuda::sm90::gemm::starts_early(pair, 124, kSmCount));
  EXPECT_TRUE(cuda::sm90::gemm::starts_early(pair, kSmCount, kSmCount));
}

}  // namespace
}  // namespace sluice
