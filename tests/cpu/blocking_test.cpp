// SPDX-License-Identifier: Apache-2.0
// Blocks cover C exactly once, fit the scratch that the schedule reserves, and keep threads busy;
// the workspace stays bounded where the tokens do not.
#include "cpu/blocking.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/gemm.hpp"
#include "targets.hpp"

namespace sluice::cpu {
namespace {

constexpr SimdTarget kTargets[] = {SimdTarget::kEmulated, SimdTarget::kAvx2, SimdTarget::kAvx512};

TEST(Blocking, CoversEveryElementOnce) {
  for (const SimdTarget target : kTargets) {
    const GemmKernels& k = gemm_kernels(target);
    for (const std::int64_t m : {1, 9, 48, 100, 241, 1000}) {
      for (const std::int64_t panels : {1, 3, 8, 9, 50}) {
        for (const int threads : {1, 2, 7, 64}) {
          for (const std::int64_t l2 : {0, 1 << 18, 1 << 21}) {
            const Blocking b = choose_blocking(m, panels, 8, k, l2, threads);
            ASSERT_LE(b.panels, 8);
            std::vector<int> seen(static_cast<std::size_t>(m * panels));
            for (std::int64_t task = 0; task < b.tasks(); ++task) {
              const Block block = block_of(b, task, m, panels);
              ASSERT_GT(block.rows, 0);
              ASSERT_LE(block.rows, b.rows);
              ASSERT_GT(block.panels, 0);
              for (std::int64_t r = block.row; r < block.row + block.rows; ++r) {
                for (std::int64_t p = block.panel; p < block.panel + block.panels; ++p) {
                  ++seen[static_cast<std::size_t>(r * panels + p)];
                }
              }
            }
            for (const int count : seen) ASSERT_EQ(count, 1) << "m " << m << " panels " << panels;
          }
        }
      }
    }
  }
}

TEST(Blocking, GivesEveryThreadWorkWhereThereIsEnough) {
  for (const SimdTarget target : kTargets) {
    const GemmKernels& k = gemm_kernels(target);
    for (const int threads : {2, 3, 8}) {
      EXPECT_GE(choose_blocking(64, 64, 8, k, 1 << 20, threads).tasks(), threads);
      EXPECT_GE(choose_blocking(512, 4, 8, k, 1 << 20, threads).tasks(), threads);
    }
  }
}

Schedule schedule_of(const Problem& problem, int threads, SimdTarget target) {
  Device device;
  device.l2_bytes = 1 << 20;
  return make_schedule(problem, device, threads, target);
}

std::size_t workspace(Problem problem, std::int64_t m, int threads) {
  problem.m = m;
  return schedule_of(problem, threads, SimdTarget::kAvx512).bytes;
}

// x, and h of an mlp, of one pass in fp32; two threads' strips of weights and blocks of C.
std::size_t pass_bytes(std::int64_t cols, int threads) {
  const std::int64_t tokens = kMaxPassRows * cols;
  const std::int64_t c = kMaxForwardRows * (kMaxPassRows + kMaxLanes);
  const std::int64_t a = std::int64_t{2} * kMaxTileRows * kAStride;
  return static_cast<std::size_t>(4 * (tokens + threads * (a + c)));
}

TEST(Schedule, ForwardWorkspaceIsBoundedInTokens) {
  for (const Op op : {Op::kGateUp, Op::kDown, Op::kMlp}) {
    Problem p{.op = op, .d = 4096, .h = 14336};
    p.norm.enabled = op != Op::kDown;
    const std::size_t pass = workspace(p, kMaxPassRows, 2);
    for (const std::int64_t m : {2, 3, 8, 64}) EXPECT_EQ(workspace(p, m * kMaxPassRows, 2), pass);
    const std::int64_t cols = op == Op::kGateUp ? p.d : (op == Op::kDown ? p.h : p.d + p.h);
    EXPECT_EQ(pass, pass_bytes(cols, 2)) << to_string(op);
  }
}

// Tasks cover all rows and panels, rows fill whole tiles, and A's strip, a panel of B and C fit
// into L2 where it is not tiny.
TEST(Forward, BlocksCoverEverythingAndFitTheCache) {
  for (const SimdTarget target : kTargets) {
    const GemmKernels& k = gemm_kernels(target);
    const std::int64_t width = std::int64_t{2} * k.lanes;
    for (const std::int64_t rows : {1, 40, 48, 97, 576, 14336}) {
      for (const std::int64_t tokens : {17, 100, 256}) {
        for (const int matrices : {1, 2}) {
          for (const int threads : {1, 2, 64}) {
            for (const std::int64_t l2 : {0, 1 << 18, 1 << 20}) {
              const ForwardBlocks b = choose_forward(rows, matrices, tokens, k, l2, threads);
              EXPECT_GE(b.rows * b.row_blocks, rows);
              EXPECT_LT(b.rows * (b.row_blocks - 1), rows);
              EXPECT_GE(b.panels * b.token_blocks * width, tokens);
              EXPECT_LE(b.rows * matrices, kMaxForwardRows);
              EXPECT_EQ(b.rows * matrices % (2 * k.tile_rows), 0);
              EXPECT_GE(b.ldc, b.panels * width);
              const std::int64_t floats = b.rows * matrices * b.ldc + width * kBlockK +
                                          std::int64_t{2} * k.tile_rows * kAStride;
              EXPECT_LE(4 * floats, l2 > 0 ? l2 : 1 << 20);
            }
          }
        }
      }
    }
  }
}

TEST(BlockK, CutsEvenlyIntoWholeSteps) {
  for (std::int64_t k = 1; k < 3000; ++k) {
    const std::int64_t each = block_k(k);
    ASSERT_LE(each, kBlockK);
    ASSERT_EQ(each % kAheadSteps, 0);
    ASSERT_EQ((k + each - 1) / each, (k + kBlockK - 1) / kBlockK) << k;
  }
}

TEST(Schedule, ElementwiseNeedsNothing) {
  for (const Op op : {Op::kGateMul, Op::kGateMulGrad}) {
    EXPECT_EQ(workspace(Problem{.op = op, .h = 777}, 50, 8), 0U) << to_string(op);
  }
}

TEST(Schedule, FewTokensUseDotProducts) {
  for (const Op op : {Op::kGateUp, Op::kDown, Op::kMlp}) {
    for (const SimdTarget target : {SimdTarget::kAvx2, SimdTarget::kAvx512}) {
      Problem p{.op = op, .m = dot_kernels(target).max_tokens, .d = 64, .h = 64};
      EXPECT_TRUE(schedule_of(p, 2, target).dots);
      ++p.m;
      EXPECT_FALSE(schedule_of(p, 2, target).dots);
    }
  }
}

TEST(Schedule, Fp32ByOneVectorOfTokensIsReadInPlace) {
  const auto schedule = [](DType w, std::int64_t m, SimdTarget target) {
    Problem p{.op = Op::kMlp, .m = m, .d = 64, .h = 64};
    p.x_dtype = DType::kF32;
    p.w_dtype = w;
    return schedule_of(p, 2, target);
  };
  for (std::int64_t m = 1; m <= 20; ++m) {
    const Schedule s = schedule(DType::kF32, m, SimdTarget::kAvx512);
    EXPECT_EQ(s.dots, m < kMinInPlaceTokens) << m;
    EXPECT_EQ(s.in_place, m >= kMinInPlaceTokens && m <= 16) << m;
    EXPECT_FALSE(schedule(DType::kBF16, m, SimdTarget::kAvx512).in_place) << m;
    EXPECT_FALSE(schedule(DType::kF32, m, SimdTarget::kAvx2).in_place) << m;
  }
}

// Tasks are whole groups of 8 rows; the thread with most has little more than an even share.
TEST(Schedule, DotTasksAreSharedEvenly) {
  const auto most_over_even = [](std::int64_t rows, std::int64_t task, int threads) {
    const std::int64_t most = ceil_div(ceil_div(rows, task), threads) * task;
    return static_cast<double>(most * threads) / static_cast<double>(rows);
  };
  const std::int64_t shapes[][2] = {{576, 1536}, {2048, 8192}, {4096, 14336}};
  for (const auto& [d, h] : shapes) {
    for (const int threads : {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48}) {
      const Problem p{.op = Op::kMlp, .m = 1, .d = d, .h = h};
      const Schedule s = schedule_of(p, threads, SimdTarget::kAvx512);
      ASSERT_TRUE(s.dots);
      EXPECT_EQ(s.dot_cols % 8, 0);
      EXPECT_EQ(s.dot_rows % 8, 0);
      // 576 rows are 72 groups: 48 threads have one or two each.
      const double bound = d == 576 ? (threads > 16 ? 1.34 : 1.17) : 1.13;
      EXPECT_LE(most_over_even(h, s.dot_cols, threads), bound) << h << " rows, " << threads;
      EXPECT_LE(most_over_even(d, s.dot_rows, threads), bound) << d << " rows, " << threads;
    }
  }
}

// Threads beyond the tasks would each reserve panels for nothing.
TEST(Schedule, ReservesNoScratchForIdleThreads) {
  const Problem p{.op = Op::kDown, .m = DotKernels::kMaxTokens + 1, .d = 8, .h = 8};
  const Schedule s = schedule_of(p, 200, SimdTarget::kAvx512);
  EXPECT_EQ(s.threads, std::max(s.pack_tasks, s.down.tasks()));
  EXPECT_LT(s.threads, 200);
}

}  // namespace
}  // namespace sluice::cpu
