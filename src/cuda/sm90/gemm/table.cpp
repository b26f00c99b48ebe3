// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/gemm/table.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "cuda/host/ranking.hpp"
#include "cuda/host/workspace.hpp"

namespace sluice::cuda::sm90::gemm {
namespace {

// Parts of k are for tiles that leave SMs idle, and have some stages each. Clusters of more than a
// pair do not fill Hopper: 30 of 4 and 15 of 8 CTAs run at once on 132 SMs.
bool split_k_serves(const GemmShape& shape, const Tiling& t) {
  if (!t.is_split_k()) return true;
  const int ctas = t.split == 2 ? shape.sm_count : shape.sm_count * 10 / 11;
  return tiles_of(shape, t) * t.split <= ctas &&
         ceil_div(shape.k, kTileK) >= std::int64_t{2} * t.split;
}

bool stream_k_serves(const GemmShape& shape, const Tiling& t) {
  if (t.swaps_ab() && shape.m > t.rows) return false;  // one tile of tokens
  return shape.partials && shape.m <= kStreamKMaxTokens &&
         tiles_of(shape, t) * ceil_div(shape.k, kTileK) < kMaxUnits;
}

}  // namespace

HalfTiles half_tiles(const GemmShape& shape, const Tiling& t) noexcept {
  const std::int64_t row_tiles = ceil_div(ceil_div(shape.m, t.rows), t.cluster);
  if (!ends_in_half(shape, t) || row_tiles > t.group_of(row_tiles)) return {};
  return spread_half_tiles(static_cast<int>(ceil_div(shape.n, t.tile_n)),
                           static_cast<int>(row_tiles), clusters(shape, t));
}

bool keeps_lockstep(const GemmShape& shape, const Tiling& t) noexcept {
  // Of an H200's 60 MB, an H100's 50. With 30 MB a wave (8B's gate_up) step is worth nothing, with
  // 60 (70B's) 2 %, with 119 (405B's) 6 to 8 % (docs/kernels/gate_up.md).
  constexpr std::int64_t kHeldBytes = 40'000'000;
  const std::int64_t row_tiles = ceil_div(ceil_div(shape.m, t.rows), t.cluster);
  const std::int64_t rows = t.group_of(row_tiles);
  const std::int64_t columns = ceil_div(clusters(shape, t), rows);
  const std::int64_t read = (rows * t.rows * t.cluster + columns * t.tile_n) * shape.k * 2;
  // Of few tokens the weights' bytes are the limit, and they are read once or twice in any step.
  // Clusters that have half tiles at other times than the rest are out of step.
  return shape.m > kStreamKMaxTokens && tiles_of(shape, t) > clusters(shape, t) &&
         read > kHeldBytes && half_tiles(shape, t).among == 0;
}

StreamK stream_k_schedule(const GemmShape& shape, const Tiling& t) noexcept {
  // A worker has a ticket for each consumer of its CTAs.
  const int tickets = WorkspaceHeader::kTickets / (t.swaps_ab() ? 2 * t.cluster : t.rows / 64);
  return make_stream_k(static_cast<int>(tiles_of(shape, t)),
                       static_cast<int>(ceil_div(shape.k, kTileK)),
                       std::min(clusters(shape, t), tickets));
}

std::int64_t stream_k_partial_bytes(const GemmShape& shape, const Tiling& t) noexcept {
  const StreamK s = stream_k_schedule(shape, t);
  if (tiles_of(shape, t) % s.workers == 0) return 0;
  return std::int64_t{2} * s.workers * t.cluster * tile_sums(t) *
         static_cast<std::int64_t>(sizeof(float));
}

std::size_t ranked(const GemmShape& shape, std::span<Tiling> out) noexcept {
  Ranking<Tiling, std::size(kGateUpTilings)> order;
  for (const Tiling& t : tilings(shape.kind)) {
    if (t.is_stream_k() && !stream_k_serves(shape, t)) continue;
    if (split_k_serves(shape, t)) order.add(t, cost(shape, t));
  }
  return order.copy_to(out);
}

std::size_t loop_orders(const GemmShape& shape, std::span<Tiling, 2> out) noexcept {
  const Tiling t = tilings(shape.kind).front();
  const std::int64_t row_tiles = ceil_div(ceil_div(shape.m, t.rows), t.cluster);
  std::size_t count = 0;
  const auto add = [&](int group) {
    out[count] = t;
    out[count++].group = group;
  };
  if (shape.kind != GemmKind::kGateUp && shape.kind != GemmKind::kDown) return 0;
  if (row_tiles > 1) add(1);
  if (row_tiles > t.group) add(0);
  return count;
}

Tiling best_tiling(const GemmShape& shape) noexcept {
  Tiling best[1];
  static_cast<void>(ranked(shape, best));
  return best[0];
}

Tiling best_input_grad(std::int64_t m, std::int64_t d, std::int64_t h, int sm_count) noexcept {
  return best_tiling({m, d, 2 * h, GemmKind::kInputGrad, sm_count});
}

void name_tiling(const Tiling& t, std::span<char> out) noexcept {
  const char* schedule = "";
  switch (t.schedule) {
    case Schedule::kCooperative:
      schedule = "co";
      break;
    case Schedule::kPingpong:
      schedule = "pp";
      break;
    case Schedule::kStreamK:
      schedule = "sk";
      break;
    case Schedule::kStreamKSwapAB:
      schedule = "sw";
      break;
    case Schedule::kSplitK:
      std::snprintf(out.data(), out.size(), "sp%dx%dk%d", t.rows, t.tile_n, t.split);
      return;
  }
  std::snprintf(out.data(), out.size(), "%s%dx%dc%dg%d", schedule, t.rows, t.tile_n, t.cluster,
                t.group);
}

}  // namespace sluice::cuda::sm90::gemm
