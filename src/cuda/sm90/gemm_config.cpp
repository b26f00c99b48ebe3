// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/gemm_config.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace sluice::cuda::sm90 {
namespace {

constexpr Tiling kGateUp[] = {
    {.tile_n = 192, .cluster = 2, .pingpong = true, .group = 8},
    {.tile_n = 256, .cluster = 2, .pingpong = false, .group = 8},
    {.tile_n = 160, .cluster = 2, .pingpong = true, .group = 8},
    {.tile_n = 128, .cluster = 2, .pingpong = true, .group = 8},
    {.tile_n = 192, .cluster = 1, .pingpong = true, .group = 16},
    {.tile_n = 128, .cluster = 1, .pingpong = true, .group = 16},
};
constexpr Tiling kDown[] = {
    {.tile_n = 192, .cluster = 2, .pingpong = true, .group = 8},
    {.tile_n = 128, .cluster = 2, .pingpong = true, .group = 8},
    {.tile_n = 192, .cluster = 1, .pingpong = true, .group = 16},
    {.tile_n = 128, .cluster = 1, .pingpong = true, .group = 16},
};
// Its long epilogue has to run beside the other consumer's product: no cooperative tiles.
constexpr Tiling kGateUpGrad[] = {
    {.tile_n = 192, .cluster = 2, .pingpong = true, .group = 8},
    {.tile_n = 128, .cluster = 2, .pingpong = true, .group = 8},
    {.tile_n = 128, .cluster = 1, .pingpong = true, .group = 16},
};
constexpr Tiling kGrads[] = {
    {.tile_n = 192, .cluster = 2, .pingpong = true, .group = 8},
    {.tile_n = 128, .cluster = 2, .pingpong = true, .group = 8},
};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Share of the best tiling's rate that one reaches when its waves are full;
// docs/kernels/gate_up.md. Without a partner to share weights with, 128 x 128 starves on L2 as soon
// as weights are read by more than one row tile.
double efficiency(const Tiling& t, std::int64_t row_tiles) {
  if (t.tile_n == 256) return 0.975;
  if (t.tile_n == 160) return 0.985;
  if (t.tile_n == 192) return t.cluster == 2 || row_tiles == 1 ? 1.0 : 0.97;
  return t.cluster == 2 || row_tiles == 1 ? 0.955 : 0.5;
}

}  // namespace

double cost(const GemmShape& shape, const Tiling& t) noexcept {
  const std::int64_t row_tiles = ceil_div(shape.m, kTileM);
  const std::int64_t tiles = ceil_div(row_tiles, t.cluster) * ceil_div(shape.n, t.tile_n);
  const std::int64_t waves = ceil_div(tiles, std::max(1, shape.sm_count / t.cluster));
  return static_cast<double>(waves) * t.tile_n / efficiency(t, row_tiles);
}

std::span<const Tiling> tilings(GemmKind kind) noexcept {
  switch (kind) {
    case GemmKind::kGateUp:
      return kGateUp;
    case GemmKind::kDown:
      return kDown;
    case GemmKind::kGateUpGrad:
      return kGateUpGrad;
    case GemmKind::kInputGrad:
    case GemmKind::kWeightGrad:
      break;
  }
  return kGrads;
}

std::size_t ranked(const GemmShape& shape, std::span<Tiling> out) noexcept {
  const auto source = tilings(shape.kind);
  // By cost, ties in source order. At most six: insertion sort, which allocates nothing.
  std::array<std::size_t, std::size(kGateUp)> order{};
  for (std::size_t i = 0; i < source.size(); ++i) {
    std::size_t at = i;
    while (at > 0 && cost(shape, source[i]) < cost(shape, source[order[at - 1]])) {
      order[at] = order[at - 1];
      --at;
    }
    order[at] = i;
  }
  for (std::size_t i = 0; i < std::min(out.size(), source.size()); ++i) out[i] = source[order[i]];
  return source.size();
}

Box out_box(const Tiling& t, GemmKind kind) noexcept {
  const int cols = kind == GemmKind::kGateUp ? t.tile_n / 2 : t.tile_n;
  return {cols % 64 == 0 ? 64 : cols % 32 == 0 ? 32 : 16, t.pingpong ? kTileM : kTileM / 2};
}

void name_tiling(const Tiling& t, std::span<char> out) noexcept {
  std::snprintf(out.data(), out.size(), "%s%dx%dc%dg%d", t.pingpong ? "pp" : "co", kTileM, t.tile_n,
                t.cluster, t.group);
}

}  // namespace sluice::cuda::sm90
