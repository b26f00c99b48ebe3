// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/decode/table.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "cuda/host/ranking.hpp"

namespace sluice::cuda::sm80::decode {
namespace {

constexpr int kSplits[] = {1, 2, 4};

// With fewer units of K a CTA, what the exchange costs outweighs what the split saves.
constexpr int kLeastSplitUnits = 8;

// Costs are bytes that an SM of an H200 takes in meanwhile; another's takes in `intake` times as
// many. Fitted to 734 launches at 245 shapes. Bytes under way that an SM needs where its memory is
// loaded.
constexpr double kFlight = 62 * 1024;
// A group waits for a stage and multiplies it. A round of stages of fewer bytes waits for that.
constexpr double kRound = 8 * 1024;
constexpr double kRoundToken = 24;
constexpr double kL2 = 0.48;  // of a byte from L2
constexpr double kToken = 0.06;
constexpr double kBlockEnd = 22 * 1024;
constexpr double kFixUp = 76 * 1024;
constexpr double kPartial = 1.5;  // of a byte of partial sums
constexpr double kIdle = 0.09;    // of a stage's rows

int stages_of(const Tiling& base, int smem) noexcept {
  Tiling t = base;
  for (t.stages = kMostStages; t.stages > 0 && smem_bytes(t) > smem;) --t.stages;
  return t.stages;
}

bool divides(const Tiling& t, const Shape& shape) noexcept {
  if (t.split == 1) return true;
  const Shares shares = make_shares(t, shape);
  return shape.sm_count >= t.split && shares.blocks == 1 && shares.columns.each >= kLeastSplitUnits;
}

}  // namespace

double cost(const Shape& shape, const Tiling& t) noexcept {
  const Shares shares = make_shares(t, shape);
  const int rows = shares.units.part(0).size() * (shape.gated ? 2 : 1);
  const double columns = shares.columns.part(0).size() * kUnitColumns;
  const double weights = 2.0 * columns * rows;
  const double tokens = 2.0 * columns * static_cast<double>(shape.m) * shares.blocks;
  const double stage_rows = static_cast<double>(rows) / shares.blocks;
  const double round = t.groups * kUnitColumns * 2 * stage_rows;
  const double flight = (t.stages > 1 ? t.stages - 1 : 0.5) * round;  // one: half is being read
  const double least_round = kRound + kRoundToken * static_cast<double>(shape.m);
  const double fix_up =
      t.split == 1 ? 0.0 : kFixUp + kPartial * t.split * static_cast<double>(partial_bytes(t));
  const double idle = 1.0 + kIdle * (1.0 - stage_rows / t.rows);
  const double wait = shape.intake * std::max(kFlight / flight, least_round / round);
  const double stream =
      std::max(weights * std::max(idle, wait), shape.intake * kL2 * (weights + tokens));
  return stream + shape.intake * (kToken * tokens + kBlockEnd * shares.blocks + fix_up);
}

std::size_t ranked(const Shape& shape, std::span<Tiling> out) noexcept {
  Ranking<Tiling, std::size(kTilings) * std::size(kSplits)> order;
  int tokens = 0;
  for (const Tiling& base : kTilings) {
    if (tokens == 0 && base.tokens >= shape.m) tokens = base.tokens;
    if (base.tokens != tokens) continue;
    for (const int split : kSplits) {
      Tiling tiling = base;
      tiling.split = split;
      tiling.stages = stages_of(base, shape.smem_per_block_bytes);
      if (tiling.stages > 0 && divides(tiling, shape)) order.add(tiling, cost(shape, tiling));
    }
  }
  return order.copy_to(out);
}

void name_tiling(const Tiling& t, std::span<char> out) noexcept {
  const char* const split = t.split == 4 ? "x4" : t.split == 2 ? "x2" : "";
  std::snprintf(out.data(), out.size(), "t%dr%ds%d%s", t.tokens, t.rows, t.stages, split);
}

}  // namespace sluice::cuda::sm80::decode
