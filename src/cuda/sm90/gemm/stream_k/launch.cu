// SPDX-License-Identifier: Apache-2.0
// gate_up under the stream-K schedule on Hopper: the instantiations of kGateUpTilings that are
// stream-K.
#include "cuda/host/launch.hpp"
#include "cuda/sm90/gemm/launch_tiling.hpp"
#include "cuda/sm90/gemm/stream_k/kernel.cuh"

namespace sluice::cuda::sm90::gemm {
namespace {

template <class Element, Tiling kTiling>
struct StreamKernel
    : TileConfig<GemmKind::kGateUp, Element, kTiling.rows, kTiling.tile_n, kTiling.cluster> {
  using Base =
      TileConfig<GemmKind::kGateUp, Element, kTiling.rows, kTiling.tile_n, kTiling.cluster>;
  using EpiloguePart = Unchanged;
  static constexpr bool kSwapAB = kTiling.swaps_ab();
  static constexpr int kWeightParts = kTiling.weight_parts();
  static constexpr int kInputParts = kTiling.input_parts();
  static constexpr int kConsumers = kSwapAB ? 2 : kTiling.rows / 64;
  static constexpr int kHalves = kSwapAB ? 2 : 1;  // times 64 rows of WGMMAs a consumer
  static constexpr int kColumns = kSwapAB ? kTiling.rows : kTiling.tile_n;  // of a WGMMA
  static constexpr int kSums = kColumns / 2;                                // a thread and half
  static constexpr int kPassSums = kSwapAB ? kPassTokens / 2 : 16;
  static constexpr int kThreads = (kConsumers + 1) * 128;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 232;
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40;
  static constexpr int kMmaN = kConsumers == 3 ? 128 : kColumns;
  static constexpr int kOutBytes = kSwapAB ? kConsumers * 4 * 2 * (2 * kPassSums * 16 * 2) : 0;
  static constexpr int kStages = stages_beside(kOutBytes, Base::kStageBytes);
  static constexpr int kSmemBytes = kStages * (Base::kStageBytes + kStageBarrierBytes) + kOutBytes;
};

template <class Cfg>
Status launch_config(const GemmLaunch& launch, StreamKParams& p) noexcept {
  GemmParams& gemm = p.gemm;
  gemm.order.m_tiles = (gemm.m + Cfg::kRows - 1) / Cfg::kRows;
  constexpr int kCols = Cfg::kOutCols * Cfg::kCluster;
  gemm.order.cut = {(gemm.n + kCols - 1) / kCols, 0};
  gemm.order.group = launch.tiling.group;
  gemm.order.whole = gemm.order.tiles = gemm.order.m_tiles * gemm.order.cut.whole;
  p.schedule = stream_k_schedule(
      {gemm.m, std::int64_t{gemm.n} * 2, gemm.k, GemmKind::kGateUp, launch.sm_count},
      launch.tiling);
  const int ctas = p.schedule.workers * Cfg::kCluster;
  const LaunchShape shape{.grid = static_cast<unsigned>(ctas),
                          .block = Cfg::kThreads,
                          .smem_bytes = Cfg::kSmemBytes,
                          .programmatic = starts_early(launch.tiling, ctas, launch.sm_count),
                          .cluster = Cfg::kCluster};
  return cuda::launch<stream_k<Cfg>>(launch.device, shape, launch.stream, p);
}

}  // namespace

Status launch_stream_k(const GemmLaunch& launch, StreamKParams& params) noexcept {
  return launch_typed(launch.dtype, [&]<class Element>() {
    return launch_tiling<GemmKind::kGateUp, Form::kStreamK>(launch.tiling, [&]<Tiling kTiling>() {
      return launch_config<StreamKernel<Element, kTiling>>(launch, params);
    });
  });
}

}  // namespace sluice::cuda::sm90::gemm
