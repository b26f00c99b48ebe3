// SPDX-License-Identifier: Apache-2.0
// What both Hopper kernels and the host know of tensor maps' boxes.
#pragma once

#include <cstdint>

namespace sluice::cuda::sm90 {

/// What one copy brings or stores, elements.
struct Box {
  int cols;
  int rows;
};

// How the copies of the paired weight view step along its groups: the last coordinate of group i is
// a_group * i + a_block * (i / groups of a block). See cuda/host/tensor_map.hpp.
struct PairWalk {
  int rank;
  std::uint32_t block_reciprocal;  // of the groups of a block
  int a_group;
  int a_block;
  int groups_a_copy;
  int groups_a_run;  // 1, or 2 or 4 of the first half before as many of the second

  [[nodiscard]] constexpr int last_coordinate(int group) const noexcept {
    const std::uint64_t block =
        std::uint64_t{block_reciprocal} * static_cast<unsigned>(group) >> 32;
    return a_group * group + a_block * static_cast<int>(block);
  }

  /// i / n is i * reciprocal(n) >> 32 while i * n stays below 2^32; of n = 1 the reciprocal is 0,
  /// and a_block is 0 too. NOTE: a division in front of each copy cost tiles of 128 a quarter of
  /// their time.
  [[nodiscard]] static constexpr std::uint32_t reciprocal(std::int64_t n) noexcept {
    return n == 1 ? 0 : static_cast<std::uint32_t>((std::int64_t{1} << 32) / n + 1);
  }
};

}  // namespace sluice::cuda::sm90
