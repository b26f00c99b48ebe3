// SPDX-License-Identifier: Apache-2.0
// The decode kernel's tilings, and which one serves which shape: pure arithmetic, tested on any
// CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cuda/sm90/decode/schedule.hpp"
#include "cuda/sm90/gemm/table.hpp"
#include "cuda/sm90/limits.hpp"

namespace sluice::cuda::sm90::decode {

inline constexpr int kMaxTokens = 160;
/// Tilings of rows made for up to as many tokens bring activations by rows, all others by boxes.
inline constexpr int kRowTokens = 8;
/// Made for up to as many tokens, a tiling may bring weights by rows; all others have boxes.
inline constexpr int kSpanTokens = 16;
inline constexpr int kMaxSplit = 4;  ///< CTAs of a cluster: 1, 2 or 4

/// An instantiation of the decode kernel, and how its launch divides K.
struct Tiling {
  int tokens = 8;   ///< columns of the mma tiles: M at most
  int rows = 64;    ///< weight rows of a stage
  int depth = 256;  ///< columns of a stage
  int stages = 5;
  int split = 1;       ///< CTAs that share the same weight rows, each a part of the columns
  bool boxes = false;  ///< weights by boxes and wgmma, else by rows and mma.sync
  bool half = false;   ///< two CTAs fit an SM: the next launch's fills its ring beside this one's
  bool norm = false;   ///< gate_up with a deferred norm: half of the tokens' room is the residual's

  friend constexpr bool operator==(const Tiling&, const Tiling&) = default;
};

/// All kernels, by tokens, the preferred first, each in two types but with a deferred norm; a new
/// one is a line here. Weights in flight are stages x rows x depth x 2 bytes: as many as fit beside
/// the activations of the stages (tokens x depth x 2) and the reduction. See
/// docs/kernels/mlp_decode.md, "Tilings".
inline constexpr Tiling kTilings[] = {
    {.tokens = 8, .rows = 32, .depth = 512, .stages = 5},
    {.tokens = 8, .rows = 32, .depth = 256, .stages = 5, .half = true},
    {.tokens = 8, .rows = 16, .depth = 512, .stages = 4, .half = true},
    {.tokens = 16, .rows = 64, .depth = 256, .stages = 5},
    {.tokens = 16, .rows = 32, .depth = 512, .stages = 4},
    {.tokens = 16, .rows = 32, .depth = 256, .stages = 4, .half = true},
    {.tokens = 16, .rows = 16, .depth = 512, .stages = 3, .half = true},
    {.tokens = 16, .rows = 64, .depth = 256, .stages = 5, .boxes = true},
    {.tokens = 16, .rows = 64, .depth = 256, .stages = 5, .boxes = true, .norm = true},
    {.tokens = 32, .rows = 64, .depth = 128, .stages = 9, .boxes = true},
    {.tokens = 32, .rows = 128, .depth = 128, .stages = 5, .boxes = true},
    {.tokens = 64, .rows = 64, .depth = 128, .stages = 6, .boxes = true},
    {.tokens = 64, .rows = 128, .depth = 128, .stages = 4, .boxes = true},
    {.tokens = 96, .rows = 64, .depth = 128, .stages = 5, .boxes = true},
    {.tokens = 96, .rows = 128, .depth = 64, .stages = 8, .boxes = true},
    {.tokens = 96, .rows = 128, .depth = 64, .stages = 6, .boxes = true},
    {.tokens = 128, .rows = 128, .depth = 64, .stages = 7, .boxes = true},
    {.tokens = 128, .rows = 128, .depth = 64, .stages = 5, .boxes = true},
    {.tokens = 128, .rows = 64, .depth = 64, .stages = 8, .boxes = true},
    {.tokens = 144, .rows = 64, .depth = 64, .stages = 7, .boxes = true},
    {.tokens = 144, .rows = 128, .depth = 64, .stages = 6, .boxes = true},
    {.tokens = 160, .rows = 64, .depth = 64, .stages = 6, .boxes = true},
    {.tokens = 160, .rows = 128, .depth = 64, .stages = 6, .boxes = true},
};

/// Whether CTAs may divide K under a tiling: the sums that they exchange must fit beside the ring,
/// and a deferred norm needs the squares of all columns.
[[nodiscard]] constexpr bool divides(const Tiling& tiling) noexcept {
  constexpr int kBarrierBytes = 1024;
  const int ring = tiling.stages * (tiling.rows + tiling.tokens) * tiling.depth * 2;
  const int sums = tiling.rows * tiling.tokens * 4;
  return tiling.boxes && !tiling.norm && ring + sums + kBarrierBytes <= kMaxSmemBytes;
}

/// Whether the CTAs of a cluster get as many slices of tokens to finish each.
[[nodiscard]] constexpr bool deals_slices(const Tiling& tiling, int split) noexcept {
  return tiling.tokens / kSliceTokens % split == 0;
}

/// What the choice of a tiling depends on.
struct Shape {
  std::int64_t m = 1;
  std::int64_t d = 0;
  std::int64_t h = 0;
  bool down = true;  ///< else gate_up
  int sm_count = 0;
  bool boxes = true;  ///< the weights, and with a deferred norm x, can come by boxes
  bool norm = false;  ///< gate_up with a deferred norm
  gemm::Pitch pitch = gemm::Pitch::kWholeLines;  ///< of x's rows, or of h's
  gemm::CopyRows copy_input = gemm::CopyRows::kNever;
  std::int64_t memory_bytes_per_second = 4'917'000'000'000;  ///< an H200's
};

/// Whether the launch is behind one that copies its input.
[[nodiscard]] bool copies_input(const Shape& shape) noexcept;

/// Microseconds that an SM of an H200 needs for its share, by the bytes it takes in: the model that
/// ranks tilings, no prediction. For more than 64 tokens the time of a launch with an H200's tensor
/// cores and the shape's bandwidth.
[[nodiscard]] double model_us(const Tiling& tiling, const Shape& shape) noexcept;

/// About what cuda.sm90 with cuBLASLt takes for the shape's step, 97 to 160 tokens, on the same.
[[nodiscard]] double tiles_us(const Shape& shape) noexcept;

/// The narrowest tilings that hold the shape's tokens, up to 8 tokens also boxes of 16, for 9 to 16
/// also boxes of 32, for 129 to 144 also those of 160, whose K four CTAs may divide; those by boxes
/// also with K divided where a cluster's rows are one block, in small models half rings; with a
/// deferred norm those made for it. By model_us(), equal ones in the order of kTilings, but what
/// suits a small model, or few tokens, first. Writes at most out.size(), returns how many there
/// are.
std::size_t ranked(const Shape& shape, std::span<Tiling> out) noexcept;

/// Of two ranked lists, places.
struct TilingPair {
  std::size_t gate_up = 0;
  std::size_t down = 0;

  friend bool operator==(const TilingPair&, const TilingPair&) = default;
};

/// The tilings of a chain's launches that should be tried first, of what ranked() gave for
/// each: the first of both but where these are different kernels by boxes and one kernel for both
/// costs less than that does. Neither list is empty.
[[nodiscard]] TilingPair first_pair(std::span<const Tiling> gate_up, const Shape& gate_up_shape,
                                    std::span<const Tiling> down, const Shape& down_shape) noexcept;

/// Whether gate_up should defer the norm, where it can: each of its CTAs then multiplies all of x
/// by the norm's weight, stage by stage, which a model's weights must outweigh.
[[nodiscard]] bool defers_norm(std::int64_t d, std::int64_t h, int sm_count) noexcept;

/// CTAs of a launch: one an SM in whole groups of `split`, but no more groups than units: rows of
/// w_down or pairs of gate_up, or boxes of them. Of short boxes two in each group rather than one
/// or two.
[[nodiscard]] int ctas_of(const Tiling& tiling, const Shape& shape) noexcept;

/// How `ctas` CTAs of such a launch divide its weights.
[[nodiscard]] Shares launch_shares(const Tiling& tiling, bool down, int d, int h,
                                   int ctas) noexcept;

/// What the launch of gate_up brings into L2 for the launch of down behind it, in whole spans or
/// rows; nothing where that gains nothing.
[[nodiscard]] WeightPrefetch prefetch_of(const Tiling& gate_up, const Tiling& down, int d, int h,
                                         int sm_count) noexcept;

/// "t8r32k512s5", "b" for "t" by boxes, "bn" with a deferred norm; "x2" or "x4" behind it
/// where so many CTAs share rows.
void name_tiling(const Tiling& tiling, std::span<char> out) noexcept;

}  // namespace sluice::cuda::sm90::decode
