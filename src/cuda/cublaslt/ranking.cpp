// SPDX-License-Identifier: Apache-2.0
#include "cuda/cublaslt/ranking.hpp"

#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <string_view>
#include <utility>

namespace sluice::cuda {
namespace {

// Of a tile in elements, of a cluster in tiles. cuBLASLt's rows are our n, its columns our m.
struct Sides {
  int n, m;
};

// The first numbers of an enumerator's name, such as CUBLASLT_MATMUL_TILE_128x64, which the
// compiler spells out; zeros where it has none, or no enumerator this value.
template <auto kId>
constexpr Sides sides_of() {
  constexpr std::string_view kText = __PRETTY_FUNCTION__;
  std::size_t at = kText.rfind('_');
  const auto number = [&] {
    int value = 0;
    for (++at; kText[at] >= '0' && kText[at] <= '9'; ++at) value = 10 * value + (kText[at] - '0');
    return value;
  };
  const int n = number();
  return kText[at] == 'x' ? Sides{n, number()} : Sides{0, 0};
}

template <class Enum, std::size_t... kIds>
constexpr std::array<Sides, sizeof...(kIds)> sides_of_all(std::index_sequence<kIds...> /*ids*/) {
  return {sides_of<static_cast<Enum>(kIds)>()...};
}
constexpr auto kTiles =
    sides_of_all<cublasLtMatmulTile_t>(std::make_index_sequence<CUBLASLT_MATMUL_TILE_END>());
constexpr auto kClusters =
    sides_of_all<cublasLtClusterShape_t>(std::make_index_sequence<CUBLASLT_CLUSTER_SHAPE_END>());

static_assert(kTiles[CUBLASLT_MATMUL_TILE_UNDEFINED].n == 0);
static_assert(kTiles[CUBLASLT_MATMUL_TILE_128x64].n == 128);
static_assert(kTiles[CUBLASLT_MATMUL_TILE_128x64].m == 64);
static_assert(kClusters[CUBLASLT_CLUSTER_SHAPE_AUTO].n == 0);
static_assert(kClusters[CUBLASLT_CLUSTER_SHAPE_1x2x1].m == 2);

Sides entry(std::span<const Sides> table, std::uint32_t id) {
  return id < table.size() ? table[id] : Sides{0, 0};
}

double round_up(double value, double unit) { return std::ceil(value / unit) * unit; }

}  // namespace

// Waves of tiles that either multiply or wait for L2, which serves few CTAs faster; the weights
// from memory; the reduction of a split k. Fitted at 150 random shapes of gate_up and down on an
// H100, cuBLASLt 13 (the log of cublaslt); picoseconds are of one k.
std::optional<double> lt_algorithm_us(const LtProduct& p, const LtAttributes& algorithm,
                                      int sm_count) noexcept {
  constexpr double kElementPs = 0.333;  // of a tile's elements: 793 TFLOP/s on 132 SMs
  constexpr double kLoadPs = 31.9;      // of its rows and columns that no multicast brings
  constexpr double kRaggedLoads = 1.34;
  constexpr double kBusyPower = 0.46;
  constexpr int kStepK = 64;
  constexpr double kFilledByClusters = 0.97;  // of more than two: GPCs of odd sizes
  constexpr double kStartUs = 0.89;
  constexpr double kEpilogueUs = 1.29 / (128 * 128);  // of an element in 16 bits
  constexpr double kFp32Epilogue = 0.79;
  constexpr std::uint32_t kFirstCooperative = 4;
  constexpr double kMegabyteUs = 0.42;
  constexpr double kSplitUs = 2.45;
  constexpr double kSplitMegabyteUs = 0.105;
  constexpr double kLaunchUs = 5.3;

  const Sides tile = entry(kTiles, algorithm.tile);
  const Sides cluster = entry(kClusters, algorithm.cluster);
  if (p.a.transposed || !p.b.transposed) return std::nullopt;
  if (algorithm.id != kLtNvjet || tile.n == 0 || cluster.n == 0) return std::nullopt;
  const auto m = static_cast<double>(p.m);
  const auto n = static_cast<double>(p.n);
  const auto k = static_cast<double>(p.k);
  const double split = std::max(algorithm.split_k, 1);

  const double cluster_ctas = cluster.n * cluster.m;
  const double ctas = round_up(std::ceil(n / tile.n), cluster.n) *
                      round_up(std::ceil(m / tile.m), cluster.m) * split * p.count;
  const double at_once = sm_count / cluster_ctas * (cluster_ctas > 2 ? kFilledByClusters : 1);
  const double waves = std::ceil(ctas / cluster_ctas / at_once);
  const double busy = std::min(1.0, ctas / sm_count);

  const double elems = tile.n * tile.m;
  const double loads = static_cast<double>(tile.n) / cluster.m +  //
                       static_cast<double>(tile.m) / cluster.n;
  const double load_ps =
      loads * kLoadPs * (p.k % kStepK == 0 ? 1 : kRaggedLoads) * std::pow(busy, kBusyPower);
  const double steps = round_up(k / split, kStepK);
  const double tile_us = std::max(elems * kElementPs, load_ps) * steps * 1e-6 + kStartUs;
  const double epilogue = elems * kEpilogueUs * (p.out_dtype == DType::kF32 ? kFp32Epilogue : 1);
  // Pingpong: one tile's epilogue overlaps with the next tile.
  const double multiply = algorithm.custom < kFirstCooperative ? waves * tile_us + epilogue
                                                               : waves * (tile_us + epilogue);
  const double memory = 2 * (n * p.count + m) * k * 1e-6 * kMegabyteUs;
  const double sums = 4 * m * n * p.count * 1e-6;
  const double reduce = split == 1 ? 0 : kSplitUs + kSplitMegabyteUs * split * sums;
  return std::max(multiply, memory) + reduce + kLaunchUs;
}

std::array<int, kCublasLtRanks> lt_ranking(const LtProduct& product,
                                           std::span<const LtAttributes> offered,
                                           int sm_count) noexcept {
  // The heuristic knows what the estimate does not: its order decides between near ones.
  constexpr double kPlaceCosts = 0.0026;
  // Of few tokens and 16-bit outputs its first is within 1 % of the best, the estimate's 1 to 5 %.
  constexpr int kFewTokens = 384;
  std::array<int, kCublasLtRanks> order{};
  std::iota(order.begin(), order.end(), 0);
  if (product.m <= kFewTokens && product.out_dtype != DType::kF32) return order;
  std::array<std::pair<double, int>, kCublasLtRanks> estimates{};
  for (std::size_t i = 0; i < offered.size(); ++i) {
    const auto us = lt_algorithm_us(product, offered[i], sm_count);
    if (!us) return order;
    estimates[i] = {*us * (1 + kPlaceCosts * order[i]), order[i]};
  }
  const auto end = estimates.begin() + static_cast<std::ptrdiff_t>(offered.size());
  std::sort(estimates.begin(), end);
  std::transform(estimates.begin(), end, order.begin(), [](const auto& e) { return e.second; });
  return order;
}

}  // namespace sluice::cuda
