// SPDX-License-Identifier: Apache-2.0
// Who multiplies what under the stream-K schedule: pure arithmetic, the same on host and device,
// tested on any CPU. Source: Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense
// Matrix-Matrix Multiplication on the GPU", 2023. Drawing: docs/kernels/stream_k.md.
//
// A unit is one step of kTileK columns of one tile. All units lie in one line, tile after tile, and
// every worker (a CTA, or a pair of them with a weight tile each) takes an equal contiguous share:
// so bytes are balanced for any shape. A tile that a border cuts has pieces of several workers,
// whose sums meet in the workspace.
#pragma once

#include <cstdint>

namespace sluice::cuda::sm90::gemm {

// The first `rest` workers have one unit more than `each`. All in 32 bits and without a division
// but in holder(): 64-bit divisions in the kernel cost more than what they divided (the log).
struct StreamK {
  int k_units;  ///< units of a tile
  int workers;
  int each;  ///< at least 1
  int rest;

  /// First unit of a worker; of worker `workers` the end of the last.
  [[nodiscard]] constexpr int begin(int worker) const noexcept {
    return worker * each + (worker < rest ? worker : rest);
  }
  /// The worker whose share holds a unit.
  [[nodiscard]] constexpr int holder(int unit) const noexcept {
    const int longer = rest * (each + 1);
    return unit < longer ? unit / (each + 1) : rest + (unit - longer) / each;
  }
  /// The workers first .. last that hold a piece of a tile, in the order of k.
  [[nodiscard]] constexpr int first_holder(int tile) const noexcept {
    return holder(tile * k_units);
  }
  [[nodiscard]] constexpr int last_holder(int tile) const noexcept {
    return holder((tile + 1) * k_units - 1);
  }
  /// Where a worker leaves its sums of a tile that it shares. A worker shares two tiles at most,
  /// that of its first unit and that of its last.
  [[nodiscard]] constexpr int slot(int worker, int tile) const noexcept {
    return 2 * worker + (begin(worker) < tile * k_units ? 1 : 0);
  }
};

/// A worker has this many units at least: below, what a piece costs outweighs what it brings.
inline constexpr int kMinUnits = 4;

/// Whether whole tiles, of so many units a worker, take no longer than cut ones with their fix-up,
/// which takes as long as 20 units and more; fewer workers have more of the memory and of L2 each.
/// Wrong by 3 % at most at the 60 shapes and tilings of gate_up that it was fitted on.
[[nodiscard]] constexpr bool rather_whole(int whole, int cut) noexcept {
  return 20 * std::int64_t{whole} <= 23 * std::int64_t{cut} + 400;
}

/// Above, numbers of units would leave 32 bits.
inline constexpr std::int64_t kMaxUnits = std::int64_t{1} << 30;

/// The schedule of `tiles` tiles on at most `most` workers. Where nearly all of them can have the
/// same part of k of a tile each, or the same number of whole tiles, the rest are left out: workers
/// that load the same rows of x at the same time share the trips to L2, and whole tiles need no
/// fix-up. Fewer have whole tiles where that is rather_whole().
/// Needs fewer than kMaxUnits units.
[[nodiscard]] constexpr StreamK make_stream_k(int tiles, int k_units, int most) noexcept {
  const int units = tiles * k_units;
  const int wanted = units / kMinUnits;
  const int fit = most < wanted ? most : wanted;
  const int able = fit < 1 ? 1 : fit;
  const int waves = (tiles + able - 1) / able;  // of whole tiles
  int even = 0;
  if (waves == 1) even = able / tiles * tiles;
  if (waves > 1 && tiles % waves == 0) even = tiles / waves;
  int workers = even * 16 >= able * 15 ? even : able;
  if (waves > 0 && tiles % waves == 0 && rather_whole(waves * k_units, units / able)) {
    workers = tiles / waves;
  }
  return {k_units, workers, units / workers, units % workers};
}

}  // namespace sluice::cuda::sm90::gemm
