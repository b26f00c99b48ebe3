// SPDX-License-Identifier: Apache-2.0
// Random shapes: an endless list of `mlp` problems for each seed, to measure choices where nobody
// tuned them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace sluice::harness {

/// From `least` to `most` tokens, both included; 1 to kMostRandomTokens.
struct TokenRange {
  std::int64_t least = 1;
  std::int64_t most = 16384;
};

/// So that products of two bounds in fixed point fit 64 bits.
inline constexpr std::int64_t kMostRandomTokens = std::int64_t{1} << 20;

/// Problem `index` of a seed, as parse_case() reads it, without types. M, D and H are drawn
/// log-uniformly: M from `tokens`; D from 1024 to 16384 and H from 512 to 65536, multiples of 8, in
/// one problem of four of 128. In half of the problems H/D is a model's at some tensor-parallel
/// size, else anything. Every gate and every placement occurs, with the up matrix first too.
///
/// A function of its arguments alone, in integers: the same on every platform, and a longer list
/// begins with every shorter one.
[[nodiscard]] std::string random_case(std::uint64_t seed, std::size_t index,
                                      const TokenRange& tokens = {});

}  // namespace sluice::harness
