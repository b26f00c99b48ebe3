// SPDX-License-Identifier: Apache-2.0
// From a Tiling to its instantiation. Included by the .cu file of each operator.
#pragma once

#include "cuda/host/launch.hpp"
#include "cuda/sm90/gemm/kernel.cuh"
#include "cuda/sm90/gemm/launch.hpp"
#include "cuda/sm90/gemm/launch_tiling.hpp"
#include "math/gate.hpp"

namespace sluice::cuda::sm90::gemm {

/// The compile-time form of a tiling of whole tiles; of gate_up_grad also whether the gate is plain
/// silu.
template <GemmKind kGemmKind, class Element, Tiling kTiling, bool kIsPlainSilu = false>
struct GemmConfig : TileConfig<kGemmKind, Element, kTileM, kTiling.tile_n, kTiling.cluster> {
  using Base = TileConfig<kGemmKind, Element, kTileM, kTiling.tile_n, kTiling.cluster>;
  using EpiloguePart = Unchanged;
  static constexpr bool kGateGrad = kGemmKind == GemmKind::kGateUpGrad;
  static constexpr bool kFromRegisters = kGemmKind == GemmKind::kWeightGrad;
  // The columns that whole tiles leave come in tiles of one box.
  static constexpr bool kTailTiles = kGateGrad || kFromRegisters;
  static constexpr bool kPingpong = kTiling.schedule == Schedule::kPingpong;
  static constexpr bool kHalfTiles = leaves_out_halves(kGemmKind, kTiling);
  static constexpr bool kPlainSilu = kIsPlainSilu;
  static constexpr int kOutBoxCols = out_box(kTiling, kGemmKind).cols;
  static constexpr int kOutTileBytes = kOutRows * Base::kOutCols * 2;
  // gate_up_grad's tiles come and go by pieces of 64 x 64; a slot holds one of g and one of u.
  static constexpr int kPieces = 2 * (kTiling.tile_n / kColumnBox);
  static constexpr int kSlots = 4;
  static constexpr int kPieceBytes = 64 * kColumnBox * 2;
  static constexpr int kOutBytes = kFromRegisters ? 0
                                   : kGateGrad    ? 2 * kSlots * kPieceBytes
                                                  : kOutTileBytes * (kPingpong ? 1 : 2);
  static constexpr int kBesideBytes = kOutBytes + (kGateGrad ? 2 * kSlots : 0) * 8;
  static constexpr int kStages = stages_beside(kBesideBytes, Base::kStageBytes);
  static constexpr int kSmemBytes =
      kStages * (Base::kStageBytes + kStageBarrierBytes) + kBesideBytes;
};

template <class Cfg>
Status launch_config(const GemmLaunch& launch, GemmParams& p) noexcept {
  const int ctas = set_order(launch, Cfg::kKind, p);
  const LaunchShape shape{.grid = static_cast<unsigned>(ctas),
                          .block = kThreads,
                          .smem_bytes = Cfg::kSmemBytes,
                          .programmatic = starts_early(launch.tiling, ctas, launch.sm_count),
                          .cluster = Cfg::kCluster};
  return cuda::launch<gemm<Cfg>>(launch.device, shape, launch.stream, p);
}

template <GemmKind kKind>
Status launch_waves(const GemmLaunch& launch, GemmParams& p) noexcept {
  return launch_typed(launch.dtype, [&]<class Element>() {
    return launch_tiling<kKind, Form::kWaves>(launch.tiling, [&]<Tiling kTiling>() {
      if constexpr (kKind == GemmKind::kGateUpGrad) {
        if (math::is_plain(p.gate) && p.gate.activation == Activation::kSilu) {
          return launch_config<GemmConfig<kKind, Element, kTiling, true>>(launch, p);
        }
      }
      return launch_config<GemmConfig<kKind, Element, kTiling>>(launch, p);
    });
  });
}

}  // namespace sluice::cuda::sm90::gemm
