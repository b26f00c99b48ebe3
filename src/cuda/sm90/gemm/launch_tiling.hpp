// SPDX-License-Identifier: Apache-2.0
// From a run-time tiling to its constant: the instantiations of the GEMMs follow from the tables of
// table.hpp, and so do the stages of their rings.
#pragma once

#include <cstddef>

#include "cuda/host/status.hpp"
#include "cuda/sm90/gemm/params.hpp"
#include "cuda/sm90/gemm/table.hpp"

namespace sluice::cuda::sm90::gemm {

inline constexpr int kStageBarrierBytes = 2 * 8;  // full and empty

/// Stages of a ring beside so many bytes of shared memory: as many as fit.
[[nodiscard]] constexpr int stages_beside(int bytes, int stage_bytes) noexcept {
  return (kMaxSmemBytes - bytes) / (stage_bytes + kStageBarrierBytes);
}

/// launch.operator()<T>() for the T of tilings(kKind), those of stream-K or the others, that
/// `tiling` is; kInternal if it is none.
template <GemmKind kKind, bool kStreamK, class Launch, std::size_t kIndex = 0>
Status launch_tiling(const Tiling& tiling, const Launch& launch) noexcept {
  constexpr auto kAll = tilings(kKind);
  if constexpr (kIndex < kAll.size()) {
    if constexpr (kAll[kIndex].split == 1 && kAll[kIndex].is_stream_k() == kStreamK) {
      if (tiling == kAll[kIndex]) return launch.template operator()<kAll[kIndex]>();
    }
    return launch_tiling<kKind, kStreamK, Launch, kIndex + 1>(tiling, launch);
  } else {
    return make_error(ErrorCode::kInternal, "sm90: no kernel for a tile of %d x %d, cluster %d",
                      tiling.rows, tiling.tile_n, tiling.cluster);
  }
}

}  // namespace sluice::cuda::sm90::gemm
