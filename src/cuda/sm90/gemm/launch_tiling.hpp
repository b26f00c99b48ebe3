// SPDX-License-Identifier: Apache-2.0
// From a run-time tiling to its constant: the instantiations of the GEMMs follow from the tables of
// table.hpp, and so do the stages of their rings.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "cuda/host/status.hpp"
#include "cuda/sm90/gemm/params.hpp"
#include "cuda/sm90/gemm/table.hpp"

namespace sluice::cuda::sm90::gemm {

inline constexpr int kStageBarrierBytes = 2 * 8;  // full and empty

/// Stages of a ring beside so many bytes of shared memory: as many as fit.
[[nodiscard]] constexpr int stages_beside(int bytes, int stage_bytes) noexcept {
  return (kMaxSmemBytes - bytes) / (stage_bytes + kStageBarrierBytes);
}

/// The kernels that a tiling may be of.
enum class Form : std::uint8_t { kWaves, kStreamK, kSplitK };

[[nodiscard]] constexpr Form form_of(const Tiling& tiling) noexcept {
  return tiling.is_split_k() ? Form::kSplitK : tiling.is_stream_k() ? Form::kStreamK : Form::kWaves;
}

/// launch.operator()<T>() for the T of tilings(kKind), those of a form, that `tiling` is; kInternal
/// if it is none.
template <GemmKind kKind, Form kForm, class Launch, std::size_t kIndex = 0>
Status launch_tiling(const Tiling& tiling, const Launch& launch) noexcept {
  constexpr auto kAll = tilings(kKind);
  if constexpr (kIndex < kAll.size()) {
    if constexpr (form_of(kAll[kIndex]) == kForm) {
      if (tiling == kAll[kIndex]) return launch.template operator()<kAll[kIndex]>();
    }
    return launch_tiling<kKind, kForm, Launch, kIndex + 1>(tiling, launch);
  } else {
    return make_error(ErrorCode::kInternal, "sm90: no kernel for a tile of %d x %d, cluster %d",
                      tiling.rows, tiling.tile_n, tiling.cluster);
  }
}

/// launch.operator()<Element>() in the launch's type.
template <class Launch>
Status launch_typed(DType dtype, const Launch& launch) noexcept {
  return dtype == DType::kF16 ? launch.template operator()<__half>()
                              : launch.template operator()<__nv_bfloat16>();
}

/// launch.operator()<kind, Element>() for gate_up or down in the launch's type.
template <class Launch>
Status launch_product(DType dtype, GemmKind kind, const Launch& launch) noexcept {
  return launch_typed(dtype, [&]<class Element>() {
    return kind == GemmKind::kDown ? launch.template operator()<GemmKind::kDown, Element>()
                                   : launch.template operator()<GemmKind::kGateUp, Element>();
  });
}

}  // namespace sluice::cuda::sm90::gemm
