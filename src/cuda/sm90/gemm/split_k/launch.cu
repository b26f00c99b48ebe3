// SPDX-License-Identifier: Apache-2.0
// gate_up and down by split K on Hopper: an instantiation for each width of a tile, whatever the
// split.
#include "cuda/host/launch.hpp"
#include "cuda/sm90/gemm/launch_tiling.hpp"
#include "cuda/sm90/gemm/split_k/kernel.cuh"

namespace sluice::cuda::sm90::gemm {
namespace {

template <GemmKind kGemmKind, class Element, int kWeightRows>
struct SplitKernel : TileConfig<kGemmKind, Element, kTileM, kWeightRows> {
  using Base = TileConfig<kGemmKind, Element, kTileM, kWeightRows>;
  using EpiloguePart = Unchanged;
  static constexpr int kConsumers = 2;
  static constexpr int kSums = kWeightRows / 2;
  static constexpr int kPassSums = 16;
  static constexpr int kSlotBytes = kPassSums * 128 * 4;
  static constexpr int kOutBytes = (kMaxSplit - 1) * kSlotBytes;
  static constexpr int kStages = stages_beside(kOutBytes + 8, Base::kStageBytes);
  static constexpr int kSmemBytes =
      kStages * (Base::kStageBytes + kStageBarrierBytes) + kOutBytes + 8;
};

template <class Cfg>
Status launch_config(const GemmLaunch& launch, SplitKParams& p) noexcept {
  GemmParams& gemm = p.gemm;
  p.split = launch.tiling.split;
  gemm.order.m_tiles = (gemm.m + kTileM - 1) / kTileM;
  const int columns = (gemm.n + Cfg::kOutCols - 1) / Cfg::kOutCols;
  const LaunchShape shape{.grid = static_cast<unsigned>(gemm.order.m_tiles * columns * p.split),
                          .block = kThreads,
                          .smem_bytes = Cfg::kSmemBytes,
                          .programmatic = true,
                          .cluster = static_cast<unsigned>(p.split)};
  return cuda::launch<split_k<Cfg>>(launch.device, shape, launch.stream, p);
}

}  // namespace

Status launch_split_k(const GemmLaunch& launch, GemmKind kind, SplitKParams& params) noexcept {
  const auto launch_kind = [&]<GemmKind kKind>() {
    return launch_typed(launch.dtype, [&]<class Element>() {
      return launch_tiling<kKind, Form::kSplitK>(launch.tiling, [&]<Tiling kTiling>() {
        return launch_config<SplitKernel<kKind, Element, kTiling.tile_n>>(launch, params);
      });
    });
  };
  return kind == GemmKind::kDown ? launch_kind.template operator()<GemmKind::kDown>()
                                 : launch_kind.template operator()<GemmKind::kGateUp>();
}

}  // namespace sluice::cuda::sm90::gemm
