// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/decode/table.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace sluice::cuda::sm80::decode {
namespace {

constexpr int kSplits[] = {1, 2, 4};

// With fewer units of K a CTA, what the exchange costs outweighs what the split saves.
constexpr int kLeastSplitUnits = 8;

// Bytes under way that an SM needs where its memory is loaded: the wait of some microseconds times
// what it takes in. A100 and smaller need half of it, which then costs no tiling anything.
constexpr double kFlight = 64 * 1024;

// What an SM takes in while a group waits for a stage, copies the next and multiplies: 600 cycles
// and 4 a token, at 8 to 20 bytes each. A round of stages of fewer bytes waits for that.
constexpr double kRound = 9 * 1024;
constexpr double kRoundToken = 64;

int stages_of(const Tiling& t, int smem) noexcept {
  return std::min((smem - exchange_bytes(t)) / stage_bytes(t), kMostStages);
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
  const double flight = (t.stages - 1) * round;
  const double least_round = kRound + kRoundToken * static_cast<double>(shape.m);
  // L2 gives an SM 1.3 times what memory gives it on an H200, more where memory is slower; a
  // block's end and a fix-up stop the stream for as long as so many bytes take, a fix-up for twice
  // what the last CTA reads besides.
  constexpr double kL2 = 0.58;
  constexpr double kBlockEnd = 4 * 1024;
  constexpr double kFixUp = 48 * 1024;
  const double fix_up =
      t.split == 1 ? 0.0 : kFixUp + 2.0 * t.split * static_cast<double>(partial_bytes(t));
  // 54 and 62 of 64 rows took 1.8 and 0.5 % longer than 31 of 32, on an H200.
  const double idle = 1.0 + 0.1 * (1.0 - stage_rows / t.rows);
  const double stream = std::max(weights * std::max({idle, kFlight / flight, least_round / round}),
                                 kL2 * (weights + tokens));
  return stream + 0.05 * tokens + kBlockEnd * shares.blocks + fix_up;
}

std::size_t ranked(const Shape& shape, std::span<Tiling> out) noexcept {
  std::array<Tiling, std::size(kTilings) * std::size(kSplits)> order{};
  std::size_t count = 0;
  int tokens = 0;
  for (const Tiling& base : kTilings) {
    if (tokens == 0 && base.tokens >= shape.m) tokens = base.tokens;
    if (base.tokens != tokens) continue;
    for (const int split : kSplits) {
      Tiling tiling = base;
      tiling.split = split;
      tiling.stages = stages_of(base, shape.smem_per_block_bytes);
      if (tiling.stages < kLeastStages || !divides(tiling, shape)) continue;
      // Few elements: insertion sort, which keeps ties in source order and allocates nothing.
      std::size_t at = count++;
      for (; at > 0 && cost(shape, tiling) < cost(shape, order[at - 1]); --at) {
        order[at] = order[at - 1];
      }
      order[at] = tiling;
    }
  }
  std::copy_n(order.begin(), std::min(out.size(), count), out.begin());
  return count;
}

void name_tiling(const Tiling& t, std::span<char> out) noexcept {
  const char* const split = t.split == 4 ? "x4" : t.split == 2 ? "x2" : "";
  std::snprintf(out.data(), out.size(), "t%dr%ds%d%s", t.tokens, t.rows, t.stages, split);
}

}  // namespace sluice::cuda::sm80::decode
