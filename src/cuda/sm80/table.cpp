// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/table.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "cuda/host/ranking.hpp"

namespace sluice::cuda::sm80 {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Of the largest tile's speed where all SMs are busy: on an H200, between runs 0.87 and 1.0 for
// the middle one, 0.82 for the smallest; docs/kernels/sm80.md.
double efficiency(const Tiling& t) {
  if (t.tile_n == 256) return 1.0;
  return t.tile_m == 128 ? 0.95 : 0.82;
}

}  // namespace

double cost(const GemmShape& shape, const Tiling& t) noexcept {
  const std::int64_t tiles = ceil_div(shape.m, t.tile_m) * ceil_div(shape.n, t.tile_n);
  const std::int64_t slots = std::int64_t{std::max(1, shape.sm_count)} * t.resident;
  const std::int64_t full = tiles / slots;
  // CTAs of a last round that is not full share their SM with fewer others.
  const std::int64_t last = ceil_div(tiles % slots, std::max(1, shape.sm_count));
  const double products = static_cast<double>(full * t.resident + last) * t.tile_m * t.tile_n;
  return products / efficiency(t);
}

std::size_t ranked(const GemmShape& shape, std::span<Tiling> out) noexcept {
  Ranking<Tiling, std::size(kTilings)> order;
  for (const Tiling& tiling : kTilings) {
    if (smem_bytes(tiling) <= shape.smem_per_block_bytes) order.add(tiling, cost(shape, tiling));
  }
  return order.copy_to(out);
}

void name_tiling(const Tiling& t, std::span<char> out) noexcept {
  std::snprintf(out.data(), out.size(), "%dx%d", t.tile_m, t.tile_n);
}

}  // namespace sluice::cuda::sm80
