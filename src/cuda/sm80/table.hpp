// SPDX-License-Identifier: Apache-2.0
// Which tiling the mma.sync GEMM uses for which shape: pure arithmetic, tested on any CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::cuda::sm80 {

/// A kernel instantiation: rows of x by weight rows of one CTA.
struct Tiling {
  int tile_m = 0;
  int tile_n = 0;  ///< weight rows; half of them are output columns of gate_up
  int warp_m = 0;  ///< the part of the tile that one warp multiplies
  int warp_n = 0;
  int tile_k = 0;  ///< elements of K that a stage of the ring holds
  int stages = 0;
  int resident = 0;  ///< CTAs that an SM with 164 KiB of shared memory holds

  friend constexpr bool operator==(const Tiling&, const Tiling&) = default;
};

/// All that there are, largest first. A new one is a line here.
inline constexpr Tiling kTilings[] = {
    {128, 256, 64, 64, 64, 3, 1},
    {128, 128, 64, 64, 32, 4, 2},
    {64, 128, 32, 64, 32, 4, 3},
};

/// Shared memory of a CTA.
constexpr int smem_bytes(const Tiling& t) noexcept {
  return t.stages * (t.tile_m + t.tile_n) * t.tile_k * 2;
}

/// What the choice depends on: rows and columns of the product. `n` is 2 H for gate_up, D for down
/// and input_grad, H for gate_up_grad; weight_grad is H by D.
struct GemmShape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  int sm_count = 108;
  int smem_per_block_bytes = 163 * 1024;  ///< what a CTA may have at most
};

/// Time of a shape under a tiling in arbitrary units: rounds of resident CTAs, each as long as its
/// products, over the tiling's efficiency. Lower is better.
[[nodiscard]] double cost(const GemmShape& shape, const Tiling& tiling) noexcept;

/// The tilings that fit a CTA's shared memory, cheapest first. Writes at most out.size(), returns
/// how many there are.
std::size_t ranked(const GemmShape& shape, std::span<Tiling> out) noexcept;

/// "128x256".
void name_tiling(const Tiling& tiling, std::span<char> out) noexcept;

}  // namespace sluice::cuda::sm80
