// SPDX-License-Identifier: Apache-2.0
// The decode kernel's tilings, and which one serves which shape: pure arithmetic, tested on any
// CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::cuda::sm90 {

inline constexpr int kDecodeMaxTokens = 64;

/// An instantiation of the decode kernel.
struct DecodeTiling {
  int tokens = 8;   ///< columns of the mma tiles: M at most
  int rows = 32;    ///< weight rows of a stage
  int depth = 512;  ///< columns of a stage
  int stages = 5;
  int cluster = 1;  ///< CTAs that share each chunk of activations by multicast

  friend bool operator==(const DecodeTiling&, const DecodeTiling&) = default;
};

/// All instantiations, by tokens, the preferred first.
[[nodiscard]] std::span<const DecodeTiling> decode_tilings() noexcept;

/// Those that take m tokens, best first. Writes at most out.size(), returns how many there are.
std::size_t decode_ranked(std::int64_t m, std::span<DecodeTiling> out) noexcept;

/// CTAs of a launch: one an SM in whole clusters, but no more clusters than `units` (rows of w_down
/// for mlp and down, pairs for gate_up).
[[nodiscard]] int decode_ctas(std::int64_t units, int sm_count, int cluster) noexcept;

/// "t8r32k512s5", with "c2" behind it in clusters of two.
void name_decode_tiling(const DecodeTiling& tiling, std::span<char> out) noexcept;

}  // namespace sluice::cuda::sm90
