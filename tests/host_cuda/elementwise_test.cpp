// SPDX-License-Identifier: Apache-2.0
// cuda.elementwise without a GPU: how rows are cut into chunks and chunks into launches, which walk
// is chosen, what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "choice.hpp"
#include "cuda/elementwise/chunks.hpp"
#include "sluice/plan.hpp"

namespace sluice {
namespace {

using cuda::elementwise::Extent;
using cuda::elementwise::Grid;
using cuda::elementwise::kChunkBytes;
using cuda::elementwise::Round;
using cuda::elementwise::RowCut;
using cuda::elementwise::Tiling;
using cuda::elementwise::Walk;
using gpu::chosen;

constexpr std::uintptr_t kAligned = 4096;

Device gpu_of(Arch arch, int compute_capability) {
  Device device;
  device.backend = Backend::kCuda;
  device.arch = arch;
  device.compute_capability = compute_capability;
  device.sm_count = 132;
  return device;
}

// Of every width, whatever the pass.
std::vector<Tiling> all_tilings() {
  std::vector<Tiling> all = {{Walk::kRow}, {Walk::kTiled}};
  for (const int chunks : cuda::elementwise::kTileChunks) all.push_back({Walk::kTiled, chunks});
  return all;
}

std::string name_of(const Tiling& tiling) {
  char name[32];
  cuda::elementwise::name_tiling(tiling, name);
  return name;
}

// How often the kernel's loops touch each element of a row, and how many chunks are whole: the
// loops of gate_mul.cuh on the host.
struct Coverage {
  std::vector<int> touched;
  std::int64_t whole = 0;
};

template <int kElems>
Coverage walk_row(const RowCut& cut, const Grid& grid, std::int64_t cols) {
  Coverage out{std::vector<int>(static_cast<std::size_t>(cols)), 0};
  const int count = grid.threads;
  const std::int64_t chunks = cuda::elementwise::chunks_of<kElems>(cut, cols);
  for (std::int64_t cta = 0; cta < grid.x; ++cta) {
    for (std::int64_t first = cta * count; first < chunks; first += grid.x * count) {
      const Round round = cuda::elementwise::round_at<kElems>(cut, first, count, cols);
      EXPECT_GE(round.col, -cut.shift);
      for (int j = 0; j < count; ++j) {
        const int begin = std::max(round.begin - j * kElems, 0);
        const int end = std::min(round.end - j * kElems, kElems);
        out.whole += cut.alike && begin == 0 && end == kElems ? 1 : 0;
        for (int i = begin; i < end; ++i) {
          const std::int64_t col = round.col + j * kElems + i;
          EXPECT_TRUE(col >= 0 && col < cols) << col;
          if (col >= 0 && col < cols) ++out.touched[static_cast<std::size_t>(col)];
        }
      }
    }
  }
  return out;
}

template <int kElems>
void expect_each_element_once(std::int64_t cols) {
  constexpr int kElemBytes = kChunkBytes / kElems;
  for (const bool grad : {false, true}) {
    for (const Tiling& tiling : all_tilings()) {
      const Grid grid = cuda::elementwise::grid_of(
          tiling, {.rows = 3, .cols = cols, .elems = kElems, .grad = grad}, kAligned);
      for (int behind = 0; behind < kElems; ++behind) {
        for (const std::uintptr_t difference : {0, kElemBytes}) {
          const auto address = static_cast<std::uintptr_t>(4096 + behind * kElemBytes);
          const RowCut cut = cuda::elementwise::cut_row<kElems>(address, difference);
          SCOPED_TRACE(std::to_string(cols) + " columns, " + name_of(tiling) + ", " +
                       std::to_string(behind) + " behind, difference " +
                       std::to_string(difference));
          const Coverage found = walk_row<kElems>(cut, grid, cols);
          EXPECT_EQ(std::count(found.touched.begin(), found.touched.end(), 1), cols);
          if (difference != 0) {
            EXPECT_EQ(found.whole, 0);
          } else {  // at most one part at each end
            EXPECT_GE(found.whole * kElems, cols - 2 * (kElems - 1));
          }
        }
      }
    }
  }
}

TEST(Elementwise, EveryElementIsTakenOnce) {
  for (const std::int64_t cols :
       {1,    3,    7,    8,    9,    15,   16,   17,    255,   256,   1023, 1024,
        1025, 2047, 2048, 2049, 4095, 4096, 4097, 11009, 14337, 16384, 65537}) {
    expect_each_element_once<8>(cols);
    if (cols < 5000) expect_each_element_once<4>(cols);
  }
}

TEST(Elementwise, ChunksBeginAtBoundaries) {
  for (int behind = 0; behind < 8; ++behind) {
    const auto address = static_cast<std::uintptr_t>(1024 + 2 * behind);
    const RowCut cut = cuda::elementwise::cut_row<8>(address, 0);
    EXPECT_TRUE(cut.alike);
    EXPECT_EQ((address - static_cast<std::uintptr_t>(2 * cut.shift)) % kChunkBytes, 0U);
  }
  // 32 bytes apart is alike, 8 is not.
  EXPECT_TRUE(cuda::elementwise::cut_row<8>(1026, 32).alike);
  EXPECT_FALSE(cuda::elementwise::cut_row<8>(1026, 8).alike);
  EXPECT_EQ(cuda::elementwise::cut_row<8>(1026, 8).shift, 0);
}

TEST(Elementwise, ColumnsBeyond32BitsStayExact) {
  const std::int64_t cols = (std::int64_t{1} << 40) + 5;
  const RowCut cut{true, 3};
  const std::int64_t chunks = cuda::elementwise::chunks_of<8>(cut, cols);
  EXPECT_EQ(chunks, (std::int64_t{1} << 37) + 1);
  const Round last = cuda::elementwise::round_at<8>(cut, chunks - 1, 256, cols);
  EXPECT_EQ(last.col, (std::int64_t{1} << 40) - 3);
  EXPECT_EQ(last.begin, 0);
  EXPECT_EQ(last.end, 8);
}

TEST(Elementwise, GridsStayInsideTheLimits) {
  constexpr std::int64_t kMany = std::int64_t{1} << 45;
  for (const Tiling& tiling : all_tilings()) {
    for (const bool grad : {false, true}) {
      for (const auto& [rows, cols] : {std::pair{kMany, std::int64_t{1}},
                                       {std::int64_t{1}, kMany},
                                       {std::int64_t{70000}, std::int64_t{14336}}}) {
        const Grid grid = cuda::elementwise::grid_of(
            tiling, {.rows = rows, .cols = cols, .elems = 8, .grad = grad}, kAligned);
        EXPECT_GE(grid.x, 1);
        EXPECT_LT(grid.x, std::int64_t{1} << 31);
        EXPECT_GE(grid.y, 1);
        EXPECT_LE(grid.y, 65535);
        EXPECT_EQ(grid.threads % 32, 0);
        EXPECT_GE(grid.threads, 32);
        EXPECT_LE(grid.threads, cuda::elementwise::kMaxThreads);
      }
    }
  }
}

TEST(Elementwise, GoldenGrids) {
  const auto row = [](std::int64_t cols, bool grad) {
    return cuda::elementwise::grid_of(
        {Walk::kRow}, {.rows = 8192, .cols = cols, .elems = 8, .grad = grad}, kAligned);
  };
  // 1792 chunks in 7 rounds of 256.
  EXPECT_EQ(row(14336, false).threads, 256);
  EXPECT_EQ(row(14336, true).threads, 256);
  EXPECT_EQ(row(1536, false).threads, 192);
  EXPECT_EQ(row(8, false).threads, 32);
  EXPECT_EQ(row(14336, false).x, 1);
  EXPECT_EQ(row(14336, false).y, 8192);
  // Joined rows: 2048 elements a CTA forward, 1024 backward.
  const Extent joined{.rows = 1, .cols = std::int64_t{8192} * 14336, .elems = 8, .grad = false};
  EXPECT_EQ(cuda::elementwise::grid_of({Walk::kTiled}, joined, kAligned).x, 8192 * 7);
  EXPECT_EQ(cuda::elementwise::grid_of({Walk::kTiled}, joined, kAligned).threads, 256);
  // 512 and 8192 elements: the widest in four rounds.
  EXPECT_EQ(cuda::elementwise::grid_of({Walk::kTiled, 64}, joined, kAligned).x, 8192 * 28);
  EXPECT_EQ(cuda::elementwise::grid_of({Walk::kTiled, 64}, joined, kAligned).threads, 64);
  EXPECT_EQ(cuda::elementwise::grid_of({Walk::kTiled, 1024}, joined, kAligned).x, 8192 * 7 / 4);
  EXPECT_EQ(cuda::elementwise::grid_of({Walk::kTiled, 1024}, joined, kAligned).threads, 256);
}

// One row of whole chunks, a thread each, and nothing else: the kernel without tails and loops.
TEST(Elementwise, WholeChunks) {
  const auto whole = [](Walk walk, std::int64_t rows, std::int64_t cols, std::uintptr_t addresses) {
    return cuda::elementwise::grid_of(
               {walk}, {.rows = rows, .cols = cols, .elems = 8, .grad = false}, addresses)
        .whole;
  };
  EXPECT_TRUE(whole(Walk::kTiled, 1, std::int64_t{8192} * 14336, kAligned));
  EXPECT_TRUE(whole(Walk::kTiled, 1, 8, kAligned | 16));
  EXPECT_FALSE(whole(Walk::kTiled, 1, 8, kAligned | 2));  // an operand between boundaries
  EXPECT_FALSE(whole(Walk::kTiled, 1, 12, kAligned));     // half a chunk at the end
  EXPECT_FALSE(whole(Walk::kTiled, 2, 4096, kAligned));   // rows apart
  EXPECT_FALSE(whole(Walk::kRow, 1, 14336, kAligned));    // threads that take several chunks
  EXPECT_FALSE(whole(Walk::kTiled, 1, std::int64_t{1} << 45, kAligned));  // too few threads
}

// Blackwell's gate is the one of Liger-Kernel's pull request 1271: next power of two >= 16384.
TEST(Elementwise, BlackwellTilesWideRows) {
  const Device blackwell = gpu_of(Arch::kBlackwell, 100);
  for (const std::string op : {"gate_mul", "gate_mul_grad"}) {
    EXPECT_EQ(chosen("16x1x4096:" + op, blackwell), "cuda.elementwise " + op + "=row");
    EXPECT_EQ(chosen("16x1x8192:" + op, blackwell), "cuda.elementwise " + op + "=row");
    EXPECT_EQ(chosen("16x1x8193:" + op, blackwell), "cuda.elementwise " + op + "=tiled");
    EXPECT_EQ(chosen("16x1x14336:" + op, blackwell), "cuda.elementwise " + op + "=tiled");
    EXPECT_EQ(chosen("16x1x131072:" + op, blackwell), "cuda.elementwise " + op + "=tiled");
  }
}

TEST(Elementwise, OthersTile) {
  for (const Device& device : {gpu_of(Arch::kTuring, 75), gpu_of(Arch::kAmpere, 80),
                               gpu_of(Arch::kAda, 89), gpu_of(Arch::kHopper, 90)}) {
    EXPECT_EQ(chosen("16x1x4096:gate_mul", device), "cuda.elementwise gate_mul=tiled");
    EXPECT_EQ(chosen("16x1x14336:gate_mul_grad:fp32", device),
              "cuda.elementwise gate_mul_grad=tiled");
  }
}

TEST(Elementwise, EachTilingCanBeForcedAnywhere) {
  for (const Device& device :
       {gpu_of(Arch::kTuring, 75), gpu_of(Arch::kHopper, 90), gpu_of(Arch::kBlackwell, 120)}) {
    for (const std::string text : {"3x1x11009:gate_mul", "5x1x64:gate_mul_grad:fp32:in_place"}) {
      const Problem problem = gpu::problem_of(text);
      for (const char* tiling : {"row", "tiled", "tiled64", "tiled1024"}) {
        const std::string config = std::string(to_string(problem.op)) + "=" + tiling;
        Options options;
        options.config = config.c_str();
        const auto made = plan(problem, device, options);
        ASSERT_TRUE(made) << made.error().message;
        EXPECT_STREQ(made->variant_name(), "cuda.elementwise");
        EXPECT_EQ(made->config_name(), config);
        EXPECT_EQ(made->workspace_bytes, 0U);
      }
    }
  }
}

TEST(Elementwise, LeavesTheRestToThePortableVariant) {
  const Device hopper = gpu_of(Arch::kHopper, 90);
  const auto reason = [](const std::string& text, const Device& device) {
    return gpu::reason_of("cuda.elementwise", text, device);
  };
  EXPECT_EQ(reason("4x1x64:gate_mul:concat", hopper), "");
  EXPECT_EQ(reason("4x1x33:gate_mul_grad:align=2:pad=1", hopper), "");
  EXPECT_EQ(reason("4x1x64:gate_mul_grad:broadcast", hopper), "");
  EXPECT_EQ(reason("4x1x64:gate_mul:interleaved8", hopper),
            "g: columns in blocks of 8, wanted contiguous ones");
  EXPECT_EQ(reason("4x1x64:gate_mul:fp64", hopper), "x_dtype is fp64; computes in fp32");
  EXPECT_EQ(reason("4x8x64:gate_up", hopper), "has no gate_up");
  EXPECT_EQ(reason("4x1x64:gate_mul", gpu_of(Arch::kNone, 70)),
            "needs compute capability 7.5, the device has 7.0");
  EXPECT_EQ(chosen("4x1x64:gate_mul:interleaved8", hopper).substr(0, 9), "cuda.simt");
}

}  // namespace
}  // namespace sluice
