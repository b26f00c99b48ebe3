// SPDX-License-Identifier: Apache-2.0
// The estimate by which cuBLASLt's algorithms are ranked, by an H100's constants and an H200's.
#include <cublasLt.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "cuda/cublaslt/ranking.hpp"

namespace sluice::cuda {
namespace {

constexpr int kSms = 132;
constexpr LtGpu kH100{.sm_count = kSms, .narrow_l2 = true};
constexpr LtGpu kH200{.sm_count = kSms};

LtProduct product(std::int64_t m, std::int64_t n, std::int64_t k) {
  LtProduct p;
  p.m = m;
  p.n = n;
  p.k = k;
  p.b.transposed = true;
  return p;
}

LtAttributes algorithm(cublasLtMatmulTile_t tile,
                       cublasLtClusterShape_t cluster = CUBLASLT_CLUSTER_SHAPE_1x1x1,
                       int split_k = 1) {
  return {.id = kLtNvjet,
          .tile = static_cast<std::uint32_t>(tile),
          .split_k = split_k,
          .custom = 0,
          .cluster = static_cast<std::uint16_t>(cluster)};
}

double us(const LtProduct& p, const LtAttributes& a, const LtGpu& gpu = kH100) {
  return lt_algorithm_us(p, a, gpu).value();
}

using Order = std::array<int, kCublasLtRanks>;
constexpr Order kOwnOrder{0, 1, 2, 3, 4, 5, 6, 7};

const LtAttributes kSquare = algorithm(CUBLASLT_MATMUL_TILE_128x128);

// A tile on each SM, all in pairs that share the 256 rows of tokens.
TEST(CublasLtRanking, OneWaveTakesATileItsEpilogueAndTheLaunch) {
  const LtAttributes pairs = algorithm(CUBLASLT_MATMUL_TILE_128x256, CUBLASLT_CLUSTER_SHAPE_2x1x1);
  const double tile = 128 * 256 * 0.333 * 4096 * 1e-6;  // 44.7 us
  EXPECT_DOUBLE_EQ(us(product(11 * 256, 12 * 128, 4096), pairs), tile + 0.89 + 2 * 1.29 + 5.3);
  // An odd tile of n has a partner that multiplies nothing: a second wave.
  EXPECT_DOUBLE_EQ(us(product(12 * 256, 11 * 128, 4096), pairs),
                   2 * (tile + 0.89) + 2 * 1.29 + 5.3);
}

TEST(CublasLtRanking, MoreWorkTakesLonger) {
  const LtProduct p = product(1408, 1536, 4096);  // one wave
  EXPECT_GT(us(product(1408, 1536, 8192), kSquare), us(p, kSquare));
  EXPECT_GT(us(product(1409, 1536, 4096), kSquare), us(p, kSquare));
  EXPECT_GT(us(product(1408, 1537, 4096), kSquare), us(p, kSquare));
  EXPECT_GT(us(p, kSquare, {kSms - 1, true}), us(p, kSquare));
  // The same steps of 64, of which the last is not whole.
  EXPECT_GT(us(product(1408, 1536, 4104), kSquare), us(product(1408, 1536, 4160), kSquare));
  // More CTAs wait for L2.
  EXPECT_GT(us(p, kSquare), us(product(128, 1536, 4096), kSquare));
  LtProduct sums = p;
  sums.out_dtype = DType::kF32;
  EXPECT_LT(us(sums, kSquare), us(p, kSquare));
}

TEST(CublasLtRanking, PingpongHidesAllEpiloguesButTheLast) {
  LtAttributes cooperative = kSquare;
  cooperative.custom = 4;
  LtAttributes pingpong = kSquare;
  pingpong.custom = 3;
  const LtProduct wave = product(1408, 1536, 4096);
  EXPECT_DOUBLE_EQ(us(wave, cooperative), us(wave, pingpong));
  const LtProduct waves = product(2 * 1408, 1536, 4096);
  EXPECT_DOUBLE_EQ(us(waves, cooperative), us(waves, pingpong) + 1.29);
}

// cuBLASLt's rows are weights, n here; its columns tokens.
TEST(CublasLtRanking, FirstSidesLieAlongN) {
  const LtProduct p = product(64, 256 * kSms, 4096);
  EXPECT_LT(us(p, algorithm(CUBLASLT_MATMUL_TILE_256x64)),
            us(p, algorithm(CUBLASLT_MATMUL_TILE_64x256)));
  // Two tiles along n share the 256 tokens, two along m the 64 weights: rows of L2 for each.
  const LtProduct wide = product(256 * 22, 64 * 6, 4096);
  const auto with_loads = [](double rows) { return rows * 31.9 * 4096 * 1e-6 + 0.89 + 1.29 + 5.3; };
  EXPECT_DOUBLE_EQ(us(wide, algorithm(CUBLASLT_MATMUL_TILE_64x256, CUBLASLT_CLUSTER_SHAPE_2x1x1)),
                   with_loads(64 + 128));
  EXPECT_DOUBLE_EQ(us(wide, algorithm(CUBLASLT_MATMUL_TILE_64x256, CUBLASLT_CLUSTER_SHAPE_1x2x1)),
                   with_loads(32 + 256));
}

// 33 clusters of four have more than one wave on 132 SMs, 32 have one.
TEST(CublasLtRanking, ClustersOfMoreThanTwoLeaveSmsIdle) {
  const auto fours = algorithm(CUBLASLT_MATMUL_TILE_128x256, CUBLASLT_CLUSTER_SHAPE_2x2x1);
  const LtProduct all = product(256 * 6, 128 * 22, 4096);
  EXPECT_GT(us(all, fours), us(all, fours, {kSms + 8, true}));
  const LtProduct fewer = product(256 * 4, 128 * 32, 4096);
  EXPECT_DOUBLE_EQ(us(fewer, fours), us(fewer, fours, {kSms + 8, true}));
}

TEST(CublasLtRanking, WeightsComeFromMemory) {
  const LtProduct p = product(8, 128 * kSms, 256);
  const double bytes = 2.0 * (8 + 128 * kSms) * 256;
  LtAttributes rows = algorithm(CUBLASLT_MATMUL_TILE_128x32);
  const double whole = us(p, rows);
  EXPECT_DOUBLE_EQ(whole, bytes * 1e-6 * 0.42 + 5.3);
  rows.split_k = 2;
  const double sums_bytes = 4.0 * 8 * 128 * kSms;
  EXPECT_DOUBLE_EQ(us(p, rows), whole + 2.45 + 2 * sums_bytes * 1e-6 * 0.105);
}

TEST(CublasLtRanking, ASplitPaysWhereTilesAreFew) {
  const auto split = algorithm(CUBLASLT_MATMUL_TILE_128x128, CUBLASLT_CLUSTER_SHAPE_1x1x1, 4);
  const LtProduct few = product(128, 4096, 14336);
  const LtProduct many = product(2816, 1536, 512);
  EXPECT_LT(us(few, split), us(few, kSquare));
  EXPECT_GT(us(many, split), us(many, kSquare));
  const std::array offered{kSquare, split};
  LtProduct few_sums = few;
  few_sums.out_dtype = DType::kF32;
  EXPECT_EQ(lt_ranking(few_sums, offered, kH100)[0], 1);
  EXPECT_EQ(lt_ranking(many, offered, kH100)[0], 0);
  LtAttributes none = kSquare;
  none.split_k = 0;
  EXPECT_EQ(us(few, none), us(few, kSquare));
}

// One wave of 22 x 3 tiles of two products, 276 us measured; 44 x 3 in two waves took 173.
TEST(CublasLtRanking, TilesOfTwoStagesWaitForL2) {
  LtProduct p = product(216, 11136, 11136);
  p.out_dtype = DType::kF32;
  p.count = 2;
  const auto wide = algorithm(CUBLASLT_MATMUL_TILE_512x72, CUBLASLT_CLUSTER_SHAPE_2x1x1);
  const auto half = algorithm(CUBLASLT_MATMUL_TILE_256x72, CUBLASLT_CLUSTER_SHAPE_2x1x1);
  EXPECT_GT(us(p, wide, kH200), 1.25 * us(p, half, kH200));
  EXPECT_EQ(lt_ranking(p, std::array{wide, half}, kH200)[0], 1);
}

TEST(CublasLtRanking, ABatchIsAsOneProductOfTheirRows) {
  for (const int m : {128, 1408}) {  // memory, tiles
    for (const int split : {1, 3}) {
      const auto a = algorithm(CUBLASLT_MATMUL_TILE_128x128, CUBLASLT_CLUSTER_SHAPE_1x1x1, split);
      LtProduct batch = product(m, 2048, 4096);
      batch.count = 2;
      EXPECT_DOUBLE_EQ(us(batch, a), us(product(m, 4096, 4096), a));
    }
  }
}

TEST(CublasLtRanking, TheHeuristicsOrderDecidesBetweenNearEstimates) {
  // Two waves: an epilogue of 1.29 of some 76 us, 1.7 %.
  const LtProduct waves = product(2 * 1408, 1536, 4096);
  std::vector<LtAttributes> offered(8, kSquare);
  for (LtAttributes& a : offered) a.custom = 4;
  EXPECT_EQ(lt_ranking(waves, offered, kH100), kOwnOrder);
  offered[4].custom = offered[7].custom = 0;
  EXPECT_EQ(lt_ranking(waves, offered, kH100), (Order{4, 0, 7, 1, 2, 3, 5, 6}));
}

// A side of a cluster spares the square root of its loads, CTAs draw their share of the memory.
TEST(CublasLtRanking, AnH200sConstants) {
  const LtProduct wide = product(256 * 22, 64 * 6, 4096);
  EXPECT_DOUBLE_EQ(
      us(wide, algorithm(CUBLASLT_MATMUL_TILE_64x256, CUBLASLT_CLUSTER_SHAPE_2x1x1), kH200),
      (64 + 256 / std::sqrt(2)) * 25 * 4096 * 1e-6 + 3.6 + 1.5);
  LtProduct weights = product(8, 128 * kSms, 2048);
  const LtAttributes rows = algorithm(CUBLASLT_MATMUL_TILE_128x32);
  EXPECT_DOUBLE_EQ(us(weights, rows, kH200), 2.0 * (8 + 128 * kSms) * 2048 * 1e-6 * 0.22 + 1.5);
  weights.n /= 2;
  const double half = 2.0 * (8 + 64 * kSms) * 2048 * 1e-6 * 0.22;
  EXPECT_DOUBLE_EQ(us(weights, rows, kH200), half / std::pow(0.5, 0.9) + 1.5);
  // Rows that split lines, the last step of 64 a part.
  LtProduct ragged = wide;
  ragged.k = 4104;
  EXPECT_DOUBLE_EQ(us(ragged, algorithm(CUBLASLT_MATMUL_TILE_64x256), kH200),
                   (64 + 256) * 25 * 1.37 * 4160 * 1e-6 + 3.6 + 1.5);
  LtProduct sums = ragged;
  sums.out_dtype = DType::kF32;
  EXPECT_DOUBLE_EQ(us(sums, algorithm(CUBLASLT_MATMUL_TILE_64x256), kH200),
                   us(ragged, algorithm(CUBLASLT_MATMUL_TILE_64x256), kH200));
}

TEST(CublasLtRanking, AnH200sSplitAndOrder) {
  const LtProduct weights = product(8, 128 * kSms, 2048);
  LtAttributes rows = algorithm(CUBLASLT_MATMUL_TILE_128x32);
  const double whole = us(weights, rows, kH200);
  rows.split_k = 2;
  EXPECT_DOUBLE_EQ(us(weights, rows, kH200), whole + 1.8 + 2 * 4.0 * 8 * 128 * kSms * 1e-6 * 0.64);
  // An epilogue of some 270 us, 1.3 %, is less than a place in the heuristic's order.
  LtAttributes cooperative = kSquare;
  cooperative.custom = 4;
  EXPECT_EQ(lt_ranking(product(2 * 1408, 1536, 20480), std::array{cooperative, kSquare}, kH200)[0],
            0);
  EXPECT_EQ(lt_ranking(product(2 * 1408, 1536, 2048), std::array{cooperative, kSquare}, kH200)[0],
            1);
}

// Few tokens in 16 bits are ranked too: two waves of the wide tiles against three of narrow ones.
TEST(CublasLtRanking, AnH200sOrderOfFewTokens) {
  const LtProduct few = product(216, 11136, 11136);
  const std::array offered{algorithm(CUBLASLT_MATMUL_TILE_256x32),
                           algorithm(CUBLASLT_MATMUL_TILE_128x128, CUBLASLT_CLUSTER_SHAPE_2x1x1)};
  EXPECT_EQ(lt_ranking(few, offered, kH200)[0], 1);
  EXPECT_EQ(lt_ranking(few, offered, kH100)[0], 0);  // the heuristic's
}

TEST(CublasLtRanking, WhatWasNotFittedKeepsTheOrder) {
  LtProduct p = product(128, 4096, 14336);
  p.out_dtype = DType::kF32;
  const auto better = algorithm(CUBLASLT_MATMUL_TILE_128x128, CUBLASLT_CLUSTER_SHAPE_1x1x1, 4);
  const auto order = [&](const LtProduct& of, const LtAttributes& third) {
    return lt_ranking(of, std::array{kSquare, better, third}, kH100);
  };
  EXPECT_EQ(order(p, kSquare), (Order{1, 0, 2, 3, 4, 5, 6, 7}));
  const auto refused = [&](auto change) {
    LtAttributes third = kSquare;
    change(third);
    EXPECT_FALSE(lt_algorithm_us(p, third, kH100));
    EXPECT_EQ(order(p, third), kOwnOrder);
  };
  refused([](LtAttributes& a) { a = {}; });
  refused([](LtAttributes& a) { a.id = kLtNvjet - 1; });
  refused([](LtAttributes& a) { a.tile = CUBLASLT_MATMUL_TILE_UNDEFINED; });
  refused([](LtAttributes& a) { a.tile = CUBLASLT_MATMUL_TILE_END; });
  refused([](LtAttributes& a) { a.cluster = CUBLASLT_CLUSTER_SHAPE_AUTO; });
  refused([](LtAttributes& a) { a.cluster = 1; });  // no enumerator
  refused([](LtAttributes& a) { a.cluster = CUBLASLT_CLUSTER_SHAPE_END; });
  LtProduct weight_grad = p;
  weight_grad.a.transposed = true;
  EXPECT_EQ(order(weight_grad, kSquare), kOwnOrder);
  LtProduct input_grad = p;
  input_grad.b.transposed = false;
  EXPECT_EQ(order(input_grad, kSquare), kOwnOrder);
  LtProduct few_outputs = p;
  few_outputs.out_dtype = DType::kBF16;
  EXPECT_EQ(order(few_outputs, kSquare), kOwnOrder);
}

}  // namespace
}  // namespace sluice::cuda
