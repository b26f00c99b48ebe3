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

// Of an element in 16 bits, of a k in picoseconds, else in us. Fitted with cuBLASLt 13 at random
// shapes of gate_up and down: 150 on an H100, 880 products of 65 to 2048 tokens on an H200 (the log
// of cublaslt).
struct Constants {
  double load_ps;         // of a tile's rows and columns
  double multicast;       // the power of a cluster's side by which it spares loads
  double ragged_loads;    // the factor of rows that split lines
  double load_busy;       // the power of the share of SMs at work: L2 serves few CTAs faster,
  double memory_busy;     // and they draw less from memory
  double start_us;        // of a tile
  double epilogue_us;     // of a tile of 128 x 128
  double fp32_epilogue;   // its factor
  double megabyte_us;     // of x and weights
  double split_us;        // of a split k's reduction,
  double split_megabyte;  // and of its sums in fp32, for each part
  double launch_us;
  double place;  // by which each place in the heuristic's order costs more: it knows more
};
constexpr Constants kH100 = {.load_ps = 31.9,
                             .multicast = 1,
                             .ragged_loads = 1.34,
                             .load_busy = 0.46,
                             .memory_busy = 0,
                             .start_us = 0.89,
                             .epilogue_us = 1.29,
                             .fp32_epilogue = 0.79,
                             .megabyte_us = 0.42,
                             .split_us = 2.45,
                             .split_megabyte = 0.105,
                             .launch_us = 5.3,
                             .place = 0.0026};
constexpr Constants kH200 = {.load_ps = 25,
                             .multicast = 0.5,
                             .ragged_loads = 1.37,
                             .load_busy = 0,
                             .memory_busy = 0.9,
                             .start_us = 0,
                             .epilogue_us = 3.6,
                             .fp32_epilogue = 1,
                             .megabyte_us = 0.22,
                             .split_us = 1.8,
                             .split_megabyte = 0.64,
                             .launch_us = 1.5,
                             .place = 0.02};

const Constants& constants_of(const LtGpu& gpu) { return gpu.narrow_l2 ? kH100 : kH200; }

}  // namespace

// Waves of tiles that either multiply or wait for L2; the weights from memory; the reduction of a
// split k.
std::optional<double> lt_algorithm_us(const LtProduct& p, const LtAttributes& algorithm,
                                      const LtGpu& gpu) noexcept {
  constexpr double kElementPs = 0.333;  // of a tile's elements: 793 TFLOP/s on 132 SMs
  constexpr int kStepK = 64;
  constexpr double kFilledByClusters = 0.97;  // of more than two: GPCs of odd sizes
  constexpr std::uint32_t kFirstCooperative = 4;
  // Where a stage has more rows and columns, of 64 elements each, only two fit beside the
  // epilogue's tile in 227 KiB. They do not hide L2: 1.5 to 1.66 at 568 to 592 on an H200.
  constexpr int kShallowSides = 545;
  constexpr double kShallow = 1.5;
  const Constants& c = constants_of(gpu);

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
  const double at_once = gpu.sm_count / cluster_ctas * (cluster_ctas > 2 ? kFilledByClusters : 1);
  const double waves = std::ceil(ctas / cluster_ctas / at_once);
  const double busy = std::min(1.0, ctas / gpu.sm_count);

  const double elems = tile.n * tile.m;
  const double loads =
      tile.n / std::pow(cluster.m, c.multicast) + tile.m / std::pow(cluster.n, c.multicast);
  const double load_ps =
      loads * c.load_ps * (p.k % kStepK == 0 ? 1 : c.ragged_loads) * std::pow(busy, c.load_busy);
  const double steps = round_up(k / split, kStepK);
  const double shallow = tile.n + tile.m > kShallowSides ? kShallow : 1;
  const double tile_us =
      shallow * std::max(elems * kElementPs, load_ps) * steps * 1e-6 + c.start_us;
  const double epilogue =
      elems / (128 * 128) * c.epilogue_us * (p.out_dtype == DType::kF32 ? c.fp32_epilogue : 1);
  // Pingpong: one tile's epilogue overlaps with the next tile.
  const double multiply = algorithm.custom < kFirstCooperative ? waves * tile_us + epilogue
                                                               : waves * (tile_us + epilogue);
  const double memory =
      2 * (n * p.count + m) * k * 1e-6 * c.megabyte_us / std::pow(busy, c.memory_busy);
  const double sums = 4 * m * n * p.count * 1e-6;
  const double reduce = split == 1 ? 0 : c.split_us + c.split_megabyte * split * sums;
  return std::max(multiply, memory) + reduce + c.launch_us;
}

std::array<int, kCublasLtRanks> lt_ranking(const LtProduct& product,
                                           std::span<const LtAttributes> offered,
                                           const LtGpu& gpu) noexcept {
  // Of few tokens and 16-bit outputs the heuristic's first is within 1 % of the best on an H100,
  // the estimate's 1 to 5 %; on an H200 3.8 % and 2.2.
  constexpr int kFewTokens = 384;
  std::array<int, kCublasLtRanks> order{};
  std::iota(order.begin(), order.end(), 0);
  if (gpu.narrow_l2 && product.m <= kFewTokens && product.out_dtype != DType::kF32) return order;
  std::array<std::pair<double, int>, kCublasLtRanks> estimates{};
  for (std::size_t i = 0; i < offered.size(); ++i) {
    const auto us = lt_algorithm_us(product, offered[i], gpu);
    if (!us) return order;
    estimates[i] = {*us * (1 + constants_of(gpu).place * order[i]), order[i]};
  }
  const auto end = estimates.begin() + static_cast<std::ptrdiff_t>(offered.size());
  std::sort(estimates.begin(), end);
  std::transform(estimates.begin(), end, order.begin(), [](const auto& e) { return e.second; });
  return order;
}

}  // namespace sluice::cuda
