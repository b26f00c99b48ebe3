// SPDX-License-Identifier: Apache-2.0
// Which tiling the mma.sync GEMM uses for which shape: pure arithmetic, tested on any CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::cuda::sm80 {

/// A kernel instantiation: rows of x by weight rows of one CTA.
struct Tiling {
  int tile_m = 128;
  int tile_n = 256;  ///< weight rows; half of them are output columns of gate_up
  int resident = 1;  ///< CTAs that an SM with 164 KiB of shared memory holds

  friend bool operator==(const Tiling&, const Tiling&) = default;
};

/// What the choice depends on. `n` counts weight rows: 2 H for gate_up, D for down.
struct GemmShape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  int sm_count = 108;
};

/// Time of a shape under a tiling in arbitrary units: rounds of resident CTAs, each as long as its
/// products, over the tiling's efficiency. Lower is better.
[[nodiscard]] double cost(const GemmShape& shape, const Tiling& tiling) noexcept;

/// The tilings that exist, in the order of the source.
[[nodiscard]] std::span<const Tiling> tilings() noexcept;

/// All tilings, cheapest first. Writes at most out.size(), returns how many there are.
std::size_t ranked(const GemmShape& shape, std::span<Tiling> out) noexcept;

/// "128x256".
void name_tiling(const Tiling& tiling, std::span<char> out) noexcept;

}  // namespace sluice::cuda::sm80
