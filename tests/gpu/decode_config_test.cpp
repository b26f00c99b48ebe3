// SPDX-License-Identifier: Apache-2.0
// The decode kernel's schedule as arithmetic (who reads which weight rows, into which slots of a
// stage), its tilings, and what the decode variants take and refuse: on any CPU.
#include "cuda/sm90/decode_config.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
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

// Every CTA of mlp reads the same bytes, to the nearest pair.
TEST(DecodeSchedule, PairsBalanceTheBytesOfBothMatrices) {
  for (const auto& [d, h] : kWidths) {
    for (const int sm_count : {1, 7, 114, kSmCount}) {
      const int ctas = cuda::sm90::decode_ctas(d, sm_count, 1);
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
  constexpr int kRows = 1100;
  constexpr int kColumns = 1032;
  for (const DecodeTiling& tiling : cuda::sm90::decode_tilings()) {
    for (const int split : {1, 2, cuda::sm90::kDecodeMaxSplit}) {
      const int ctas = cuda::sm90::decode_ctas(kRows, 15, split);
      ASSERT_EQ(ctas, 15 / split * split);
      for (const bool gated : {false, true}) {
        const int chunks = (kColumns + tiling.depth - 1) / tiling.depth;
        std::vector<int> seen(std::size_t{2} * kRows * static_cast<std::size_t>(chunks));
        for (int cta = 0; cta < ctas; ++cta) {
          UnitRange units = cuda::sm90::even_share(kRows, cta / split, ctas / split);
          if (gated) units = cuda::sm90::even_share(units, cta % split, split);
          const DecodePhase phase =
              cuda::sm90::make_phase(units, gated ? tiling.rows / 2 : tiling.rows, kColumns,
                                     tiling.depth, gated ? 0 : cta % split, gated ? 1 : split);
          for (int b = 0; b < phase.blocks; ++b) {
            const UnitRange block = phase.block(b);
            EXPECT_GT(block.size(), 0);
            for (int slot = 0; slot < tiling.rows; ++slot) {
              const auto where = cuda::sm90::slot_row(slot, gated);
              EXPECT_EQ(cuda::sm90::slot_of_unit(where.unit, gated),
                        slot - (where.up ? cuda::sm90::kMmaRows / 2 : 0));
              if (where.unit >= block.size()) continue;
              const int row = (where.up ? kRows : 0) + block.begin + where.unit;
              for (int c = phase.chunks.begin; c < phase.chunks.end; ++c) {
                ++seen[static_cast<std::size_t>(row * chunks + c)];
              }
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

// The tilings made for m tokens and no wider ones, each once with every split.
TEST(DecodeConfig, RanksTheNarrowestTilingsWithEverySplit) {
  std::array<DecodeTiling, 32> out;
  for (int m = 1; m <= cuda::sm90::kDecodeMaxTokens; ++m) {
    const std::size_t count =
        cuda::sm90::decode_ranked({m, 4096, 14336, true, true, kSmCount}, out);
    ASSERT_GE(count, 2U) << m;
    ASSERT_LE(count, out.size());
    std::set<std::string> names;
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(names.insert(name_of(out[i])).second) << name_of(out[i]);
      EXPECT_GE(out[i].tokens, m);
      EXPECT_LT(out[i].tokens, 2 * std::max(m, 8)) << m;
    }
    EXPECT_EQ(cuda::sm90::decode_ranked({m, 4096, 14336, true, false, kSmCount}, out), count / 2);
    EXPECT_EQ(cuda::sm90::decode_ranked({m, 4096, 14336, true, true, 1}, out), count / 2);
    EXPECT_EQ(cuda::sm90::decode_ranked({m, 4096, 14336, true, true, kSmCount}, {}), count);
  }
  EXPECT_EQ(cuda::sm90::decode_ranked({65, 4096, 14336, true, true, kSmCount}, out), 0U);
}

DecodeTiling best(std::int64_t m, std::int64_t d, std::int64_t h) {
  std::array<DecodeTiling, 1> out;
  EXPECT_GT(cuda::sm90::decode_ranked({m, d, h, true, true, kSmCount}, out), 0U);
  return out[0];
}

// Activations cost what weights cost: K of down is divided where a CTA has few rows of it, as 8B's
// 31, and not where it has as many as a block.
TEST(DecodeConfig, SharesRowsWhereActivationsWeigh) {
  for (const auto& [d, h] : {Widths{4096, 14336}, Widths{8192, 28672}, Widths{8192, 7168}}) {
    EXPECT_EQ(best(1, d, h).split, 1);
    EXPECT_EQ(best(8, d, h).split, 1);
    EXPECT_EQ(best(64, d, h).split, d == 4096 ? 2 : 1);
  }
}

// By hand: 109 pairs in 4 blocks of 55 rows, 63 rows of two CTAs in one.
TEST(DecodeConfig, ModelCountsBytesOfWeightsAndActivations) {
  const cuda::sm90::DecodeShape shape{64, 4096, 14336, true, true, kSmCount};
  const double gate_up = (2 * 109 * 4096 * 2 + 4 * 4096 * 64 * 2) / 50e3;
  const double down = (63 * 7168 * 2 + 7168 * 64 * 2) / 50e3;
  const double parts = 2.5 + 3 * 63 * 64 * 4 / 50e3;
  EXPECT_NEAR(cuda::sm90::decode_model_us({64, 64, 256, 3, 2}, shape), gate_up + down + parts,
              1e-9);
}

// 32 rows of w_down in 64 slots leave half of the ring empty: less is under way than the latency of
// memory wants.
TEST(DecodeConfig, ModelCountsBytesInFlight) {
  const cuda::sm90::DecodeShape shape{9, 4096, 14336, false, true, kSmCount};
  const double weights = 32 * 14336 * 2;
  EXPECT_NEAR(cuda::sm90::decode_model_us({16, 64, 256, 5, 1}, shape),
              weights / (5 * 32 * 256 * 2 / 2.5), 1e-9);
  EXPECT_NEAR(cuda::sm90::decode_model_us({16, 32, 512, 4, 1}, shape), weights / 34e3, 1e-9);
}

Problem problem_of(const std::string& text) { return harness::parse_case(text).value().problem; }

std::string chosen(const std::string& text, const Device& device) {
  const auto made = plan(problem_of(text), device);
  return made ? std::string(made->variant_name()) + " " + made->config.name
              : std::string(made.error().message);
}

std::string reason_of(const char* variant, const std::string& text, const Device& device) {
  for (const Refusal& row : explain(problem_of(text), device).variants) {
    if (row.variant == variant) return row.reason;
  }
  return "not in the table";
}
// What explain() says of a variant that yields, the log says too.
TEST(DecodePlan, YieldsAloud) {
  class Lines final : public Log {
   public:
    void write(const char* line) const noexcept override { all += std::string(line) + "\n"; }
    mutable std::string all;
  };
  const Problem problem = problem_of("64x4096x14336:mlp");
  const Lines lines;
  ASSERT_TRUE(plan(problem, h200(), {.log = &lines}).has_value());
  int yielding = 0;
  for (const Refusal& row : explain(problem, h200()).variants) {
    if (row.yields.empty() || row.chosen) continue;
    EXPECT_NE(lines.all.find(row.variant + ": " + row.yields + "\n"), std::string::npos)
        << lines.all;
    ++yielding;
  }
  EXPECT_GE(yielding, 2) << lines.all;
}

TEST(CudaSm90Decode, ServesUpTo64TokensOnHopper) {
  EXPECT_EQ(chosen("1x4096x14336:mlp", h200()),
            "cuda.sm90_decode_chain sm90.decode_chain.mlp.t8r32k512s5");
  // Each launch of the chain has the tiling that its operator would have alone.
  EXPECT_EQ(chosen("40x4096x14336:mlp", h200()),
            "cuda.sm90_decode_chain sm90.decode_chain.mlp.t64r64k256s3+r64k256s3x2");
  EXPECT_EQ(chosen("1x4096x14336:mlp:norm", h200()),
            "cuda.sm90_decode_chain_norm sm90.decode_chain.mlp.t8r32k512s5");
  EXPECT_EQ(chosen("9x4096x14336:gate_up:fp16", h200()),
            "cuda.sm90_decode sm90.decode.gate_up.t16r64k256s5");
  EXPECT_EQ(chosen("40x4096x14336:down", h200()),
            "cuda.sm90_decode sm90.decode.down.t64r64k256s3x2");
  EXPECT_EQ(chosen("65x4096x14336:down", h200()).substr(0, 10), "cuda.sm90 ");
  // More tokens are left to stream-K, where it takes the problem and the weights are large.
  EXPECT_EQ(chosen("41x4096x14336:mlp", h200()), "cuda.sm90 sm90.mlp.sk64x128c1g16+sk64x128c1g16");
  EXPECT_EQ(chosen("64x4096x14336:gate_up", h200()), "cuda.sm90 sm90.gate_up.sk64x128c1g16");
  EXPECT_EQ(chosen("64x4096x14336:gate_up:interleaved3", h200()).substr(0, 17),
            "cuda.sm90_decode ");
  EXPECT_EQ(chosen("64x576x1536:mlp", h200()).substr(0, 23), "cuda.sm90_decode_chain ");
  for (const std::string text :
       {"5x72x200:gate_up:bias:interleaved3", "33x64x72:down:residual:bias_down:pad=8",
        "64x64x48:mlp:interleaved16:clamped_swiglu", "0x64x96:mlp", "1x8x8:mlp:concat+up_first",
        "16x64x96:mlp:add_norm:residual_norm_input", "3x64x96:gate_up:norm"}) {
    EXPECT_EQ(reason_of("cuda.sm90_decode", text, h200()), "") << text;
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

// h of mlp, the normalised rows, their sum where y adds what nobody keeps, and parts of y's sums.
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
  EXPECT_EQ(bytes("4x4096x14336:mlp:add_norm:residual_norm_input"),
            kWorkspaceHeaderBytes + 2 * kN + kH);
  EXPECT_EQ(bytes("40x4096x14336:down"),
            kWorkspaceHeaderBytes + std::size_t{2} * 4096 * 40 * 4);  // parts of two CTAs
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
      {"cuda.sm90_decode_chain", "4x64x96:down", "is for mlp; down is one launch anyway"},
      {"cuda.sm90_decode_chain", "4x64x96:mlp:norm", "has no norm prologue"},
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
