// SPDX-License-Identifier: Apache-2.0
// The decode kernel's tilings, and which one serves which shape: pure arithmetic, tested on any
// CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cuda/sm90/decode_schedule.hpp"

namespace sluice::cuda::sm90 {

inline constexpr int kDecodeMaxTokens = 64;
/// Tilings of rows made for up to as many tokens bring activations by rows, all others by boxes.
inline constexpr int kDecodeRowTokens = 8;
/// Made for up to as many tokens, a tiling may bring weights by rows; all others have boxes.
inline constexpr int kDecodeSpanTokens = 16;
inline constexpr int kDecodeMaxSplit = 4;  ///< CTAs of a cluster: 1, 2 or 4

/// An instantiation of the decode kernel, and how its launch divides K.
struct DecodeTiling {
  int tokens = 8;   ///< columns of the mma tiles: M at most
  int rows = 64;    ///< weight rows of a stage
  int depth = 256;  ///< columns of a stage
  int stages = 5;
  int split = 1;       ///< CTAs that share the same weight rows, each a part of the columns
  bool boxes = false;  ///< weights by boxes and wgmma, else by rows and mma.sync
  bool half = false;   ///< two CTAs fit an SM: the next launch's fills its ring beside this one's
  int norm_rows = 0;   ///< gate_up with a deferred norm: rows of x and residual that a stage holds

  friend bool operator==(const DecodeTiling&, const DecodeTiling&) = default;
};

/// All instantiations, by tokens, the preferred first; split is 1.
[[nodiscard]] std::span<const DecodeTiling> decode_tilings() noexcept;

/// What the choice of a tiling depends on.
struct DecodeShape {
  std::int64_t m = 1;
  std::int64_t d = 0;
  std::int64_t h = 0;
  bool gate_up = true;
  bool down = true;
  int sm_count = 0;
  bool boxes = true;  ///< the weights, and with a deferred norm x, can come by boxes
  bool norm = false;  ///< with the norm prologue
  int norm_rows = 0;  ///< of gate_up with a deferred norm: its rows of activations, else 0
};

/// Microseconds that an SM of an H200 needs for its share, by the bytes it takes in: the model that
/// ranks tilings, no prediction.
[[nodiscard]] double decode_model_us(const DecodeTiling& tiling, const DecodeShape& shape) noexcept;

/// The narrowest tilings that hold the shape's tokens, and for 9 to 16 tokens also boxes of 32. For
/// one operator alone those by boxes also with K divided where a cluster's rows are one block, in
/// small models half rings, and up to 8 tokens boxes of 16; with a deferred norm those made for it.
/// By decode_model_us(), equal ones in the order of decode_tilings(), but what suits a small model,
/// or few tokens, first. Writes at most out.size(), returns how many there are.
std::size_t decode_ranked(const DecodeShape& shape, std::span<DecodeTiling> out) noexcept;

/// Of two ranked lists, places.
struct DecodePair {
  std::size_t gate_up = 0;
  std::size_t down = 0;

  friend bool operator==(const DecodePair&, const DecodePair&) = default;
};

/// The tilings of a chain's launches that should be tried first, of what decode_ranked() gave for
/// each: the first of both but where these are different kernels by boxes and one kernel for both
/// costs less than that does. Neither list is empty.
[[nodiscard]] DecodePair decode_first_pair(std::span<const DecodeTiling> gate_up,
                                           const DecodeShape& gate_up_shape,
                                           std::span<const DecodeTiling> down,
                                           const DecodeShape& down_shape) noexcept;

/// Whether gate_up should defer the norm, where it can: each of its CTAs then multiplies all of x
/// by the norm's weight, stage by stage, which a model's weights must outweigh.
[[nodiscard]] bool decode_defers_norm(std::int64_t d, std::int64_t h, int sm_count) noexcept;

/// CTAs of a launch: one an SM in whole groups of `split`, but no more groups than units: rows of
/// w_down (down, or mlp) or pairs of gate_up, or boxes of them. Of short boxes two in each group
/// rather than one or two.
[[nodiscard]] int decode_ctas(const DecodeTiling& tiling, const DecodeShape& shape) noexcept;

/// How `ctas` CTAs of such a launch divide its weights.
[[nodiscard]] DecodeShares decode_launch_shares(const DecodeTiling& tiling, bool down, int d, int h,
                                                int ctas) noexcept;

/// What the launch of gate_up brings into L2 for the launch of down behind it, in whole spans or
/// rows; nothing where that gains nothing.
[[nodiscard]] WeightPrefetch decode_prefetch(const DecodeTiling& gate_up, const DecodeTiling& down,
                                             int d, int h, int sm_count) noexcept;

/// "t8r32k512s5", "b" for "t" by boxes, "n" or "bn" with a deferred norm; "x2" or "x4" behind it
/// where so many CTAs share rows.
void name_decode_tiling(const DecodeTiling& tiling, std::span<char> out) noexcept;

}  // namespace sluice::cuda::sm90
