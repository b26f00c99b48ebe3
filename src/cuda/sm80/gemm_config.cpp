// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/gemm_config.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace sluice::cuda::sm80 {
namespace {

constexpr Tiling kTilings[] = {
    {.tile_m = 128, .tile_n = 256, .resident = 1},
    {.tile_m = 128, .tile_n = 128, .resident = 2},
    {.tile_m = 64, .tile_n = 128, .resident = 3},
};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Products a byte that a tiling brings to shared memory, against the largest tile's, weigh little
// while the tensor cores are the limit: estimates from that ratio, docs/kernels/sm80.md.
double efficiency(const Tiling& t) {
  if (t.tile_n == 256) return 1.0;
  return t.tile_m == 128 ? 0.95 : 0.85;
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

std::span<const Tiling> tilings() noexcept { return kTilings; }

std::size_t ranked(const GemmShape& shape, std::span<Tiling> out) noexcept {
  std::array<Tiling, std::size(kTilings)> order{};
  std::copy(std::begin(kTilings), std::end(kTilings), order.begin());
  // Three elements: insertion sort, which keeps ties in source order and allocates nothing.
  for (std::size_t i = 1; i < order.size(); ++i) {
    for (std::size_t at = i; at > 0 && cost(shape, order[at]) < cost(shape, order[at - 1]); --at) {
      std::swap(order[at], order[at - 1]);
    }
  }
  std::copy_n(order.begin(), std::min(out.size(), order.size()), out.begin());
  return order.size();
}

void name_tiling(const Tiling& t, std::span<char> out) noexcept {
  std::snprintf(out.data(), out.size(), "%dx%d", t.tile_m, t.tile_n);
}

}  // namespace sluice::cuda::sm80
