// SPDX-License-Identifier: Apache-2.0
// The mma.sync decode kernel on any CPU: how its CTAs share weights, where its lanes find them,
// what it takes, and when it is chosen.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "choice.hpp"
#include "cuda/sm80/decode/table.hpp"
#include "fake_devices.hpp"
#include "sluice/plan.hpp"

namespace sluice {
namespace {

namespace decode = cuda::sm80::decode;
using decode::Shape;
using decode::Shares;
using decode::Tiling;
using decode::UnitRange;
using gpu::a100;

std::vector<Tiling> ranking(const Shape& shape) {
  std::array<Tiling, 32> out;
  const std::size_t count = decode::ranked(shape, out);
  EXPECT_LE(count, out.size());
  return {out.begin(), out.begin() + static_cast<std::ptrdiff_t>(count)};
}

std::string best(const Shape& shape) {
  char name[32];
  decode::name_tiling(ranking(shape).front(), name);
  return name;
}

// SMs and shared memory of GPUs that there are, and of none.
constexpr int kSmCounts[] = {1, 2, 3, 40, 58, 84, 108, 132, 142, 188, 2000};
constexpr int kSmems[] = {99 * 1024, 163 * 1024, 227 * 1024};

TEST(Sm80Decode, EveryUnitAndColumnHasOneOwner) {
  for (const int sm_count : kSmCounts) {
    for (const std::int64_t n : {1, 8, 40, 4096, 14336}) {
      const Shape shape{.m = 1, .n = n, .k = 4104, .gated = n % 3 == 1, .sm_count = sm_count};
      for (const Tiling& t : ranking(shape)) {
        const Shares s = decode::make_shares(t, shape);
        EXPECT_LE(s.groups * t.split, sm_count);
        int next = 0;
        for (int g = 0; g < s.groups; ++g) {
          for (int b = 0; b < s.blocks; ++b) {
            const UnitRange block = s.block(g, b);
            EXPECT_EQ(block.begin, next);
            EXPECT_GT(block.size(), 0);
            EXPECT_LE(block.size(), decode::block_units(t, shape.gated));
            next = block.end;
          }
        }
        EXPECT_EQ(next, n);
        EXPECT_EQ(s.columns.part(0).begin, 0);
        EXPECT_EQ(s.columns.part(t.split - 1).end, (4104 + 63) / 64);
        if (t.split > 1) {
          EXPECT_EQ(s.blocks, 1);
          EXPECT_LE(s.groups, decode::kMaxGroups);
        }
      }
    }
  }
}

TEST(Sm80Decode, EveryTokenCountHasATilingThatFits) {
  for (const int smem : kSmems) {
    for (std::int64_t m = 0; m <= decode::kMaxTokens; ++m) {
      const Shape shape{.m = m, .n = 4096, .k = 4096, .smem_per_block_bytes = smem};
      const std::vector<Tiling> order = ranking(shape);
      ASSERT_FALSE(order.empty());
      for (std::size_t i = 0; i < order.size(); ++i) {
        EXPECT_GE(order[i].tokens, m);
        EXPECT_LE(decode::smem_bytes(order[i]), smem);
        EXPECT_GE(order[i].stages, 1);
        const Tiling& before = order[i == 0 ? 0 : i - 1];
        EXPECT_LE(decode::cost(shape, before), decode::cost(shape, order[i]));
      }
    }
  }
}

// 8B and the H200's SMs: all of shared memory, whole rows for few tokens, for 64 tokens CTAs that
// share rows.
TEST(Sm80Decode, GoldenChoices) {
  const auto down = [](std::int64_t m, int sm_count, int smem) {
    return best(
        {.m = m, .n = 4096, .k = 14336, .sm_count = sm_count, .smem_per_block_bytes = smem});
  };
  EXPECT_EQ(down(1, 108, 163 * 1024).substr(0, 2), "t8");
  EXPECT_EQ(down(1, 132, 227 * 1024), "t8r32s11");     // 31 rows of 32: of 64 it took 2 % longer
  EXPECT_EQ(down(64, 132, 227 * 1024), "t64r64s3x2");  // r128x4 took 9 % longer
  EXPECT_EQ(down(64, 142, 99 * 1024).substr(0, 6), "t64r64");
}

// A fix-up takes as long whatever the memory gives an SM meanwhile: the less, the sooner it pays.
TEST(Sm80Decode, AFixUpPaysSoonerWhereMemoryGivesLess) {
  Shape shape{.m = 16, .n = 4096, .k = 4096, .sm_count = 132, .smem_per_block_bytes = 227 * 1024};
  const auto whole_over_shared = [&](double intake) {
    shape.intake = intake;
    const Tiling whole{.tokens = 16, .rows = 64, .groups = 2, .stages = 10, .split = 1};
    Tiling shared = whole;
    shared.split = 2;
    return decode::cost(shape, whole) / decode::cost(shape, shared);
  };
  EXPECT_LT(whole_over_shared(1), whole_over_shared(0.5));
  EXPECT_LT(whole_over_shared(0.5), whole_over_shared(0.2));
}

// The rate that a description gives decides, not the GPU's name.
TEST(Sm80Decode, TheBandwidthOfADeviceDecides) {
  const auto order_at = [](const char* text, int gigabytes) {
    Device device = a100();
    device.memory_bytes_per_second = std::int64_t{1'000'000'000} * gigabytes;
    return config_names("cuda.sm80", gpu::problem_of(text), device);
  };
  EXPECT_NE(order_at("16x2048x8192:down", 400), order_at("16x2048x8192:down", 2039));
}

TEST(Sm80Decode, SlotsOfAnMmaAreEightPairs) {
  std::set<std::pair<int, bool>> seen;
  for (int slot = 0; slot < 64; ++slot) {
    const decode::SlotRow row = decode::slot_row(slot, true);
    seen.insert({row.unit, row.up});
    // A thread has rows r and r + 8: gate and up of one pair.
    EXPECT_EQ(decode::slot_row(slot ^ 8, true).unit, row.unit);
    EXPECT_EQ(row.up, slot % 16 >= 8);
    EXPECT_LT(row.unit, 32);
    EXPECT_EQ(decode::slot_row(slot, false).unit, slot);
  }
  EXPECT_EQ(seen.size(), 64U);
}

// What ldmatrix reads at once, eight rows of one chunk column, lies in all 32 banks; what eight
// threads copy, one row, too.
TEST(Sm80Decode, RowsMeetNoBankTwice) {
  for (int chunk = 0; chunk < 8; ++chunk) {
    std::set<int> column, row;
    for (int i = 0; i < 8; ++i) {
      column.insert(decode::chunk_at(i, chunk) % 128);
      row.insert(decode::chunk_at(chunk, i) % 128);
    }
    EXPECT_EQ(column.size(), 8U);
    EXPECT_EQ(row.size(), 8U);
  }
}

// One unit of K by the kernel's lanes: copied as threads copy it, read as ldmatrix reads it,
// multiplied as an mma does. A lane's address of another step differs from its first by one bit.
TEST(Sm80Decode, FragmentsMultiplyEveryColumnOnce) {
  constexpr int kColumns = decode::kUnitColumns;
  const auto weight = [](int row, int col) { return (row * 7 + col * 3) % 11 - 5; };
  const auto token = [](int row, int col) { return (row * 5 + col * 13) % 9 - 4; };
  std::vector<int> a(16 * kColumns), b(8 * kColumns);  // as shared memory holds them
  for (int row = 0; row < 16; ++row) {
    for (int col = 0; col < kColumns; ++col) {
      const auto at = static_cast<std::size_t>(decode::chunk_at(row, col / 8) / 2 + col % 8);
      a.at(at) = weight(row, col);
      if (row < 8) b.at(at) = token(row, col);
    }
  }
  int d[16][8] = {};
  for (int step = 0; step < kColumns / 16; ++step) {
    // Row r and columns 8 c of this step, by the lane that gives this row's address.
    const auto weights = [&](int r, int c, int k) {
      const int lane = c * 16 + r;
      const int at = decode::chunk_at(lane % 16, lane / 16) ^ step * 32;
      return a.at(static_cast<std::size_t>(at / 2 + k));
    };
    const auto tokens = [&](int r, int c, int k) {
      const int lane = (step % 2 * 2 + c) * 8 + r;
      const int at = decode::chunk_at(lane % 8, lane / 8) ^ step / 2 * 64;
      return b.at(static_cast<std::size_t>(at / 2 + k));
    };
    for (int r = 0; r < 16; ++r) {
      for (int c = 0; c < 8; ++c) {
        for (int k = 0; k < 16; ++k) d[r][c] += weights(r, k / 8, k % 8) * tokens(c, k / 8, k % 8);
      }
    }
  }
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 8; ++c) {
      int want = 0;
      for (int col = 0; col < kColumns; ++col) want += weight(r, col) * token(c, col);
      EXPECT_EQ(d[r][c], want) << r << ", " << c;
    }
  }
}

TEST(Sm80Decode, IsChosenBelowHopperAndOfferedOnIt) {
  EXPECT_EQ(gpu::steps_of("64x4096x14336:down:fp16:residual", a100()), "down:cuda.sm80_decode");
  EXPECT_EQ(gpu::steps_of("1x64x48:gate_up:interleaved3:bias", a100()), "gate_up:cuda.sm80_decode");
  EXPECT_EQ(gpu::steps_of("65x4096x14336:down", a100()), "down:cuda.sm80_gemm");
  // The same kernels, in another order: a config forces each.
  const Problem problem = gpu::problem_of("4x4096x14336:gate_up");
  const std::vector<std::string> names = config_names("cuda.sm80", problem, gpu::h200());
  EXPECT_EQ(names.front(), "gate_up=64x128");
  EXPECT_EQ(std::count(names.begin(), names.end(), "gate_up=t8r64s12"), 1);
}

}  // namespace
}  // namespace sluice
