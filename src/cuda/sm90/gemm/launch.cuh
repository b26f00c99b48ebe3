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
template <GemmKind kGemmKind, class ElementType, Tiling kTiling, bool kIsPlainSilu = false>
struct GemmConfig {
  using Element = ElementType;
  using EpiloguePart = Unchanged;
  static constexpr GemmKind kKind = kGemmKind;
  static constexpr bool kGateGrad = kKind == GemmKind::kGateUpGrad;
  static constexpr bool kFromRegisters = kKind == GemmKind::kWeightGrad;
  // An operand lies with k along its rows, and not within them.
  static constexpr bool kTransposedA = kKind == GemmKind::kWeightGrad;
  static constexpr bool kTransposedB = kKind != GemmKind::kGateUp && kKind != GemmKind::kDown;
  // The columns that whole tiles leave come in tiles of one box.
  static constexpr bool kTailTiles = kGateGrad || kFromRegisters;
  static constexpr int kProducts = kKind == GemmKind::kInputGrad ? 2 : 1;
  static constexpr bool kPingpong = kTiling.schedule == Schedule::kPingpong;
  static constexpr bool kPlainSilu = kIsPlainSilu;
  static constexpr bool kSwapAB = false;  // Tiling::swaps_ab()
  static constexpr int kTileN = kTiling.tile_n;
  static constexpr int kMmaN = kTileN;  // columns of one WGMMA
  static constexpr int kCluster = kTiling.cluster;
  static constexpr int kABytes = kTileM * kTileK * 2;
  static constexpr int kBBytes = kTileN * kTileK * 2;
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr int kOutCols = kKind == GemmKind::kGateUp ? kTileN / 2 : kTileN;
  static constexpr int kOutBoxCols = kOutCols % 64 == 0 ? 64 : kOutCols % 32 == 0 ? 32 : 16;
  static constexpr int kOutTileBytes = kOutRows * kOutCols * 2;
  // gate_up_grad's tiles come and go by pieces of 64 x 64; a slot holds one of g and one of u.
  static constexpr int kPieces = 2 * (kTileN / kColumnBox);
  static constexpr int kSlots = 4;
  static constexpr int kPieceBytes = 64 * kColumnBox * 2;
  static constexpr int kOutBytes = kFromRegisters ? 0
                                   : kGateGrad    ? 2 * kSlots * kPieceBytes
                                                  : kOutTileBytes * (kPingpong ? 1 : 2);
  // 128 x producer + 256 x consumer is at most 384 x 168. NOTE: with fewer than 40 the producer
  // spills, which took 2 to 4 % of gate_up_grad's time.
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kBesideBytes = kOutBytes + (kGateGrad ? 2 * kSlots : 0) * 8;
  static constexpr int kStages = stages_beside(kBesideBytes, kStageBytes);
  static constexpr int kSmemBytes = kStages * (kStageBytes + kStageBarrierBytes) + kBesideBytes;
};

template <class Cfg>
Status launch_config(const GemmLaunch& launch, GemmParams& p) noexcept {
  LaunchShape launched;
  const int ctas = set_order(launch, Cfg::kKind, p);
  launched.grid = dim3(static_cast<unsigned>(ctas));
  launched.block = dim3(kThreads);
  launched.smem_bytes = Cfg::kSmemBytes;
  launched.programmatic = starts_early(launch.tiling, ctas, launch.sm_count);
  launched.cluster = Cfg::kCluster;
  return cuda::launch<gemm<Cfg>>(launch.device, launched, launch.stream, p);
}

template <GemmKind kKind, class Element>
Status launch_typed(const GemmLaunch& launch, GemmParams& p) noexcept {
  return launch_tiling<kKind, Form::kWaves>(launch.tiling, [&]<Tiling kTiling>() {
    if constexpr (kKind == GemmKind::kGateUpGrad) {
      if (math::is_plain(p.gate) && p.gate.activation == Activation::kSilu) {
        return launch_config<GemmConfig<kKind, Element, kTiling, true>>(launch, p);
      }
    }
    return launch_config<GemmConfig<kKind, Element, kTiling>>(launch, p);
  });
}

/// The launch's tiling, one of tilings(kKind) in waves, in the launch's type.
template <GemmKind kKind>
Status launch_kind(const GemmLaunch& launch, GemmParams& p) noexcept {
  return launch.dtype == DType::kF16 ? launch_typed<kKind, __half>(launch, p)
                                     : launch_typed<kKind, __nv_bfloat16>(launch, p);
}

}  // namespace sluice::cuda::sm90::gemm
