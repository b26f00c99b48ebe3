// SPDX-License-Identifier: Apache-2.0
// gate_up and down under the stream-K schedule on Hopper: the instantiations marked stream_k in
// gemm_config.cpp.
#include "cuda/launch.hpp"
#include "cuda/sm90/stream_k.cuh"

namespace sluice::cuda::sm90 {
namespace {

// The compile-time form of a Tiling; what load_weights(), multiply() and the epilogue read is named
// as in GemmConfig.
template <GemmKind kGemmKind, class ElementType, int kRowCount, int kN, int kClusterSize,
          int kStageCount, bool kIsSwapped = false>
struct StreamKernel {
  using Element = ElementType;
  static constexpr GemmKind kKind = kGemmKind;
  static constexpr bool kTransposedA = false;
  static constexpr bool kTransposedB = false;
  static constexpr bool kSwapped = kIsSwapped;
  static constexpr int kRows = kRowCount;  // of x
  static constexpr int kTileN = kN;
  static constexpr int kConsumers = kSwapped ? 2 : kRows / 64;
  static constexpr int kHalves = kSwapped ? 2 : 1;            // times 64 rows of WGMMAs a consumer
  static constexpr int kColumns = kSwapped ? kRows : kTileN;  // of a WGMMA
  static constexpr int kSums = kColumns / 2;                  // a thread and half
  static constexpr int kTurnSums = kSwapped ? kTurnTokens / 2 : 16;
  static constexpr int kThreads = (kConsumers + 1) * 128;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 232;
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40;
  static constexpr int kMmaN = kConsumers == 3 && kN > 192 ? 128 : kColumns;
  static constexpr int kStages = kStageCount;
  static constexpr int kCluster = kClusterSize;
  static constexpr int kABytes = kRows * kTileK * 2;
  static constexpr int kBBytes = kTileN * kTileK * 2;
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr int kOutCols = kKind == GemmKind::kGateUp ? kTileN / 2 : kTileN;
  static constexpr int kOutBytes = kSwapped ? kConsumers * 4 * 2 * (2 * kTurnSums * 16 * 2) : 0;
  static constexpr int kSmemBytes = kStages * (kStageBytes + 16) + kOutBytes;
  static constexpr int kPiecesAtOnce = kConsumers == 3 || kSwapped ? 1 : 4;  // as registers allow
};

template <class Cfg>
Status launch_config(const GemmLaunch& launch, StreamKParams& p) noexcept {
  GemmParams& gemm = p.gemm;
  const int rows = Cfg::kRows * Cfg::kCluster;
  gemm.order.m_tiles = (gemm.m + rows - 1) / rows;
  gemm.order.cut = {(gemm.n + Cfg::kOutCols - 1) / Cfg::kOutCols, 0};
  gemm.order.group = launch.tiling.group;
  gemm.order.whole = gemm.order.tiles = gemm.order.m_tiles * gemm.order.cut.whole;
  const std::int64_t weight_rows = std::int64_t{gemm.n} * (Cfg::kTileN / Cfg::kOutCols);
  p.schedule =
      stream_k_schedule({gemm.m, weight_rows, gemm.k, Cfg::kKind, launch.sm_count}, launch.tiling);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(p.schedule.workers * Cfg::kCluster));
  shape.block = dim3(Cfg::kThreads);
  shape.smem_bytes = Cfg::kSmemBytes;
  shape.programmatic = true;
  shape.cluster = Cfg::kCluster;
  return cuda::launch<stream_k<Cfg>>(launch.device, shape, launch.stream, p);
}

template <GemmKind kKind, class Element>
Status launch_typed(const GemmLaunch& launch, StreamKParams& p) noexcept {
  const Tiling& t = launch.tiling;
  const auto is = [&](int rows, int tile_n, int cluster, bool swapped = false) {
    return t.stream_k && t.rows == rows && t.tile_n == tile_n && t.cluster == cluster &&
           t.swapped == swapped;
  };
  if constexpr (kKind == GemmKind::kGateUp) {
    if (is(128, 224, 1)) {
      return launch_config<StreamKernel<kKind, Element, 128, 224, 1, 5>>(launch, p);
    }
    if (is(192, 224, 1)) {
      return launch_config<StreamKernel<kKind, Element, 192, 224, 1, 4>>(launch, p);
    }
    if (is(144, 224, 1, true)) {
      return launch_config<StreamKernel<kKind, Element, 144, 224, 1, 4, true>>(launch, p);
    }
    if (is(160, 224, 1, true)) {
      return launch_config<StreamKernel<kKind, Element, 160, 224, 1, 4, true>>(launch, p);
    }
  } else {
    if (is(64, 128, 1)) {
      return launch_config<StreamKernel<kKind, Element, 64, 128, 1, 9>>(launch, p);
    }
    if (is(128, 128, 1)) {
      return launch_config<StreamKernel<kKind, Element, 128, 128, 1, 7>>(launch, p);
    }
    if (is(192, 192, 1)) {
      return launch_config<StreamKernel<kKind, Element, 192, 192, 1, 4>>(launch, p);
    }
    if (is(128, 256, 2)) {
      return launch_config<StreamKernel<kKind, Element, 128, 256, 2, 4>>(launch, p);
    }
  }
  return make_error(ErrorCode::kInternal, "sm90 stream-K: no kernel for rows %d, tile_n %d", t.rows,
                    t.tile_n);
}

template <class Element>
Status launch_kind(const GemmLaunch& launch, GemmKind kind, StreamKParams& p) noexcept {
  return kind == GemmKind::kDown ? launch_typed<GemmKind::kDown, Element>(launch, p)
                                 : launch_typed<GemmKind::kGateUp, Element>(launch, p);
}

}  // namespace

Status launch_stream_k(const GemmLaunch& launch, GemmKind kind, StreamKParams& params) noexcept {
  return launch.dtype == DType::kF16 ? launch_kind<__half>(launch, kind, params)
                                     : launch_kind<__nv_bfloat16>(launch, kind, params);
}

}  // namespace sluice::cuda::sm90
