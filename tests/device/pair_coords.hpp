// SPDX-License-Identifier: Apache-2.0
// Where a copy of a pair view begins.
#pragma once

#include <cstdint>

#include "cuda/host/tensor_map.hpp"

namespace sluice::cuda {

/// Coordinates of a copy, innermost first.
struct TensorCoords {
  std::int32_t at[TensorView::kMaxRank];
};

/// Of the copy that starts at column k and row group `group`, a multiple of groups_a_copy.
inline TensorCoords pair_coords(const PairView& pair, std::int64_t k, std::int64_t group) noexcept {
  TensorCoords coords{};
  coords.at[0] = static_cast<std::int32_t>(k);
  coords.at[pair.view.rank - 1] = static_cast<std::int32_t>(
      pair.a_group * group + pair.a_block * (group / pair.groups_a_block));
  return coords;
}

}  // namespace sluice::cuda
