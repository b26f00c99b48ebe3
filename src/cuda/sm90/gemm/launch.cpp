// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/gemm/launch.hpp"

#include <algorithm>
#include <atomic>

namespace sluice::cuda::sm90::gemm {
namespace {

// Launches take step words in turn, so that two at once mostly have two; one that was captured
// keeps its own.
int next_step_word() {
  static std::atomic<unsigned> next{0};
  return static_cast<int>(next.fetch_add(1, std::memory_order_relaxed) % kLockstepWords);
}

}  // namespace

int set_order(const GemmLaunch& launch, GemmKind kind, GemmParams& p) noexcept {
  const Tiling& tiling = launch.tiling;
  const GemmShape shape{p.m, std::int64_t{p.n} * (kind == GemmKind::kGateUp ? 2 : 1),
                        std::int64_t{p.k} * (kind == GemmKind::kInputGrad ? 2 : 1), kind,
                        launch.sm_count};
  const int rows = kTileM * tiling.cluster;
  p.order.m_tiles = (p.m + rows - 1) / rows;
  p.order.cut = column_cut(shape, tiling);
  p.order.group = static_cast<int>(tiling.group_of(p.order.m_tiles));
  p.order.halves = half_tiles(shape, tiling);
  p.order.whole = p.order.m_tiles * p.order.cut.whole;
  p.order.tiles = p.order.whole + p.order.m_tiles * p.order.cut.tail;
  p.lockstep_word = keeps_lockstep(shape, tiling) ? next_step_word() : -1;
  return std::min(std::max(1, launch.sm_count / tiling.cluster), p.order.tiles) * tiling.cluster;
}

}  // namespace sluice::cuda::sm90::gemm
