// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/decode_config.hpp"

#include <algorithm>
#include <cstdio>

namespace sluice::cuda::sm90 {
namespace {

// Weights in flight are stages x rows x depth x 2 bytes: as many as fit beside the activations of
// the stages (tokens x depth x 2) and the reduction. See docs/kernels/mlp_decode.md, "Tilings".
constexpr DecodeTiling kTilings[] = {
    {.tokens = 8, .rows = 32, .depth = 512, .stages = 5},
    {.tokens = 8, .rows = 16, .depth = 1024, .stages = 4},
    {.tokens = 8, .rows = 32, .depth = 256, .stages = 4},
    {.tokens = 8, .rows = 16, .depth = 512, .stages = 4},
    {.tokens = 16, .rows = 32, .depth = 512, .stages = 4},
    {.tokens = 16, .rows = 32, .depth = 256, .stages = 8},
    {.tokens = 16, .rows = 32, .depth = 256, .stages = 4},
    {.tokens = 32, .rows = 64, .depth = 256, .stages = 4},
    {.tokens = 32, .rows = 64, .depth = 256, .stages = 4, .cluster = 2},
    {.tokens = 64, .rows = 64, .depth = 256, .stages = 3},
    {.tokens = 64, .rows = 64, .depth = 256, .stages = 3, .cluster = 2},
};

}  // namespace

std::span<const DecodeTiling> decode_tilings() noexcept { return kTilings; }

std::size_t decode_ranked(std::int64_t m, std::span<DecodeTiling> out) noexcept {
  std::size_t count = 0;
  for (const DecodeTiling& tiling : kTilings) {
    if (tiling.tokens < m) continue;
    if (count < out.size()) out[count] = tiling;
    ++count;
  }
  return count;
}

int decode_ctas(std::int64_t units, int sm_count, int cluster) noexcept {
  const std::int64_t most = std::max(1, sm_count / cluster);
  return static_cast<int>(std::clamp<std::int64_t>(units, 1, most)) * cluster;
}

void name_decode_tiling(const DecodeTiling& t, std::span<char> out) noexcept {
  std::snprintf(out.data(), out.size(), "t%dr%dk%ds%d%s", t.tokens, t.rows, t.depth, t.stages,
                t.cluster == 2 ? "c2" : "");
}

}  // namespace sluice::cuda::sm90
