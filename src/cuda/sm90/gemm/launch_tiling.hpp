// SPDX-License-Identifier: Apache-2.0
// From a run-time tiling to its constant: the instantiations of the GEMMs follow from the tables of
// table.hpp, and so do the stages of their rings.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "cuda/sm90/gemm/table.hpp"
#include "cuda/sm90/limits.hpp"
#include "sluice/status.hpp"

namespace sluice::cuda::sm90::gemm {

inline constexpr int kStageBarrierBytes = 2 * 8;  // full and empty

/// Stages of a ring beside so many bytes of shared memory: as many as fit.
[[nodiscard]] constexpr int stages_beside(int bytes, int stage_bytes) noexcept {
  return (kMaxSmemBytes - bytes) / (stage_bytes + kStageBarrierBytes);
}

/// What the kernels' configs have alike, by the names that load_weights(), multiply() and the
/// epilogue read. A config whose kernel differs hides them.
template <GemmKind kGemmKind, class ElementType, int kInputRows, int kWeightRows, int kCtas = 1>
struct TileConfig {
  using Element = ElementType;
  static constexpr GemmKind kKind = kGemmKind;
  // An operand lies with k along its rows, and not within them.
  static constexpr bool kTransposedA = kKind == GemmKind::kWeightGrad;
  static constexpr bool kTransposedB = kKind != GemmKind::kGateUp && kKind != GemmKind::kDown;
  static constexpr bool kSwapAB = false;     // Tiling::swaps_ab()
  static constexpr bool kHalfTiles = false;  // leaves_out_halves()
  static constexpr int kProducts = kKind == GemmKind::kInputGrad ? 2 : 1;
  static constexpr int kRows = kInputRows;  // of x
  static constexpr int kTileN = kWeightRows;
  static constexpr int kMmaN = kTileN;  // columns of one WGMMA
  static constexpr int kCluster = kCtas;
  static constexpr int kWeightParts = kCtas;  // Tiling::weight_parts()
  static constexpr int kInputParts = 1;       // Tiling::input_parts()
  static constexpr int kABytes = kRows * kTileK * 2;
  static constexpr int kBBytes = kTileN * kTileK * 2;
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr int kOutCols = kKind == GemmKind::kGateUp ? kTileN / 2 : kTileN;
  // 128 x producer + 256 x consumer is at most 384 x 168. NOTE: with fewer than 40 the producer
  // spills, which took 2 to 4 % of gate_up_grad's time.
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
};

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
      if (tiling.has_kernel_of(kAll[kIndex])) return launch.template operator()<kAll[kIndex]>();
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

}  // namespace sluice::cuda::sm90::gemm
