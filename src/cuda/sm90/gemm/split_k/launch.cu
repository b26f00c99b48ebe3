// SPDX-License-Identifier: Apache-2.0
// gate_up and down by split K on Hopper: an instantiation for each width of a tile, whatever the
// split.
#include "cuda/host/launch.hpp"
#include "cuda/sm90/gemm/launch_tiling.hpp"
#include "cuda/sm90/gemm/split_k/kernel.cuh"

namespace sluice::cuda::sm90::gemm {
namespace {

// What load_weights(), multiply() and the epilogue read is named as in GemmConfig.
template <GemmKind kGemmKind, class ElementType, int kWeightRows>
struct SplitKernel {
  using Element = ElementType;
  using EpiloguePart = Unchanged;
  static constexpr GemmKind kKind = kGemmKind;
  static constexpr bool kTransposedA = false;
  static constexpr bool kTransposedB = false;
  static constexpr bool kSwapAB = false;
  static constexpr int kProducts = 1;
  static constexpr int kTileN = kWeightRows;
  static constexpr int kMmaN = kTileN;
  static constexpr int kCluster = 1;  // nothing is multicast: parts of k have no byte in common
  static constexpr int kConsumers = 2;
  static constexpr int kSums = kTileN / 2;
  static constexpr int kPassSums = 16;
  static constexpr int kSlotBytes = kPassSums * 128 * 4;
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kProducerRegisters = 40;
  static constexpr int kABytes = kTileM * kTileK * 2;
  static constexpr int kBBytes = kTileN * kTileK * 2;
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr int kOutCols = kKind == GemmKind::kGateUp ? kTileN / 2 : kTileN;
  static constexpr int kOutBytes = (kMaxSplit - 1) * kSlotBytes;
  static constexpr int kStages = stages_beside(kOutBytes + 8, kStageBytes);
  static constexpr int kSmemBytes = kStages * (kStageBytes + kStageBarrierBytes) + kOutBytes + 8;
};

template <class Cfg>
Status launch_config(const GemmLaunch& launch, SplitKParams& p) noexcept {
  GemmParams& gemm = p.gemm;
  p.split = launch.tiling.split;
  gemm.order.m_tiles = (gemm.m + kTileM - 1) / kTileM;
  const int columns = (gemm.n + Cfg::kOutCols - 1) / Cfg::kOutCols;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(gemm.order.m_tiles * columns * p.split));
  shape.block = dim3(kThreads);
  shape.smem_bytes = Cfg::kSmemBytes;
  shape.programmatic = true;
  shape.cluster = static_cast<unsigned>(p.split);
  return cuda::launch<split_k<Cfg>>(launch.device, shape, launch.stream, p);
}

}  // namespace

Status launch_split_k(const GemmLaunch& launch, GemmKind kind, SplitKParams& params) noexcept {
  return launch_product(launch.dtype, kind, [&]<GemmKind kKind, class Element>() {
    return launch_tiling<kKind, Form::kSplitK>(launch.tiling, [&]<Tiling kTiling>() {
      return launch_config<SplitKernel<kKind, Element, kTiling.tile_n>>(launch, params);
    });
  });
}

}  // namespace sluice::cuda::sm90::gemm
