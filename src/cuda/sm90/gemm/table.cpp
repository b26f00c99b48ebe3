// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/gemm/table.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "cuda/host/workspace.hpp"

namespace sluice::cuda::sm90::gemm {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Rows of the WGMMAs of a tile under stream-K; swapped, each of two consumers has two of 64.
int mma_rows(const Tiling& t) { return t.swaps_ab() ? 256 : t.rows; }

// Sums of a tile, those behind its weight rows included.
std::int64_t tile_sums(const Tiling& t) {
  return std::int64_t{mma_rows(t)} * (t.swaps_ab() ? t.rows : t.tile_n);
}

bool long_k(const GemmShape& shape) { return shape.kind == GemmKind::kGateUp && shape.k > 8192; }

// Share of the best tiling's rate that one reaches when its waves are full;
// docs/kernels/gate_up.md. A CTA without a partner to share weights with has none to wait for, and
// several row tiles read the weights in step: in gate_up, and under 128 columns in down, it is
// worth as much as one in a cluster. But 128 x 128 starves on L2: in gate_up with more than eight
// row tiles, in the backward pass with more than one.
double efficiency(const Tiling& t, const GemmShape& shape) {
  const std::int64_t row_tiles = ceil_div(shape.m, t.rows);
  const bool shared = t.cluster == 2 || row_tiles == 1;
  if (t.tile_n == 224) return 0.95;
  if (shape.kind == GemmKind::kGateUp && !shared) {
    if (t.tile_n == 128) return row_tiles <= 8 ? 0.985 : 0.9;
    // Beyond so many rows or columns of x the bytes that a cluster saves count as watts.
    if (t.tile_n == 160) return row_tiles > 16 ? 0.99 : long_k(shape) ? 0.985 : 0.995;
    return 1.0;
  }
  if (t.tile_n == 160) return 0.99;
  if (t.tile_n == 192) return shared ? 1.0 : 0.97;
  switch (shape.kind) {
    case GemmKind::kDown:
      // There 128 columns ask for more than L2 gives: 6 to 13 % behind 192 in pairs.
      if (shape.narrow_l2 && row_tiles > 1) return 0.93;
      if (t.cluster == 1) return row_tiles <= 8 ? 1.0 : 0.98;
      return 0.99;
    case GemmKind::kGateUp:
      return 0.96;
    case GemmKind::kGateUpGrad:
    case GemmKind::kInputGrad:
    case GemmKind::kWeightGrad:
      break;
  }
  return shared ? 0.955 : 0.5;
}

// What one SM takes, in picoseconds, as measured on an H200 (docs/kernels/gate_up.md): for 128 rows
// of x by one weight row by one of k on the tensor cores (256 FLOPs of 785 TFLOP/s on 132 SMs), for
// a weight from memory (4.60 TB/s), for an element of a stage of whole tiles in waves, and under
// stream-K where SMs walk k in step and where not.
constexpr double kTensorPs = 43.0;
constexpr double kMemoryPs = 57.4;
constexpr double kWavePs = 28.9;
constexpr double kInStepPs = 24.0;
constexpr double kOutOfStepPs = 40.8;
// The same of gate_up with k above 8192 (405B), in waves and out of step: a long k hides a tile's
// start, and takes CTAs out of step further apart.
constexpr double kLongWavePs = 24.5;
constexpr double kLongOutOfStepPs = 47.0;
// The same of down, in waves. Not measured by itself: such that 128 x 128 without a cluster is
// bound by its tensor cores, as it was.
constexpr double kDownWavePs = 21.5;
// An element of a row that splits lines (splits_lines()) takes so much longer, in waves and under
// stream-K, and longer still in an H100's L2; from seven products measured, within 6 % of each (the
// log of gate_up). In waves of more than kFewRowTiles the weights are in L2 already, as in step.
// Of one row tile none was measured: there it counts for nothing.
constexpr double kSplitWave = 1.55;
constexpr double kSplitStreamK = 1.29;
constexpr double kSplitNarrowL2 = 1.25;
constexpr std::int64_t kFewRowTiles = 4;
// Three consumers take this much longer on the tensor cores than two do for as many rows; two with
// the weights' rows as theirs, which have a longer epilogue too.
constexpr double kThreeConsumers = 1.12;
constexpr double kSwapABTensor = 1.1;
// Microseconds of a launch in waves, of one under stream-K, and of each partial sum of a cut tile,
// of pairs of CTAs twice.
constexpr double kWaveUs = 4.0;
constexpr double kStreamKUs = 9.0;
constexpr double kPartialUs = 1.0e-4;
// Of split K, fitted to 86 launches on an H100 (the log of gate_up): a launch, an element of a
// stage where all SMs are busy, the same of split lines, and the exchange of 128 weight rows.
constexpr double kSplitKUs = 2.9;
constexpr double kSplitKPs = 32.8;
constexpr double kSplitKLines = 1.23;
constexpr double kExchangeUs = 3.0;
// Of gate_up's last epilogue under pingpong, beside which nothing multiplies, for each weight row
// of a tile; with a single row tile it is within what the memory takes.
constexpr double kOpenEpilogueUs = 0.013;

std::int64_t tiles_of(const GemmShape& shape, const Tiling& t) {
  return ceil_div(ceil_div(shape.m, t.rows), t.cluster) * ceil_div(shape.n, t.tile_n);
}

int clusters(const GemmShape& shape, const Tiling& t) {
  return std::max(1, shape.sm_count / t.cluster);
}

// A copy of weights stays inside a block of gate or up, or takes whole ones (make_pair_view), and
// many small ones do not feed the tensor cores: five a stage took 2.5 times as long as one. One
// copy of whole blocks took 1.03 of the time under 192 weight rows and 1.25 under 128.
double small_copies(const GemmShape& shape, const Tiling& t) {
  const std::int64_t groups = t.tile_n / 16 / t.cluster;
  if (shape.block_groups <= 1) return 1;
  if (shape.turns && longest_run(t) % shape.block_groups == 0) return 1;  // one plain copy
  if (groups % shape.block_groups == 0) return t.tile_n == 192 ? 1.03 : 1.25;
  const std::int64_t copies = groups / std::gcd(groups, shape.block_groups);
  return std::max(1.0, 0.5 * static_cast<double>(copies));
}

double wave_ps(const GemmShape& shape) {
  if (shape.kind == GemmKind::kDown) return kDownWavePs;
  return long_k(shape) ? kLongWavePs : kWavePs;
}

bool splits(const GemmShape& shape) {
  return shape.m > kTileM && (shape.splits_x || shape.splits_w);
}

// Elements of a stage of so many rows of x and of weights, those of split lines as `factor`.
double stage_elements(const GemmShape& shape, double rows, double weight_rows, double factor) {
  if (!splits(shape)) return rows + weight_rows;
  if (shape.narrow_l2) factor *= kSplitNarrowL2;
  return rows * (shape.splits_x ? factor : 1) + weight_rows * (shape.splits_w ? factor : 1);
}

// Picoseconds of a tile of `cols` weight rows, for one of k.
double tile_ps(const GemmShape& shape, const Tiling& t, int cols) {
  const std::int64_t row_tiles = ceil_div(shape.m, t.rows);
  const double tensor = cols * (static_cast<double>(t.rows) / kTileM) * kTensorPs;
  const double multiply = tensor / efficiency(t, shape);
  // Where row tiles share weights gate_up's stages come in time, but as efficiency() says.
  const bool fed = shape.kind == GemmKind::kGateUp && row_tiles > 1;
  const double ps = fed && row_tiles > kFewRowTiles ? kInStepPs : wave_ps(shape);
  const double stage =
      stage_elements(shape, t.rows, static_cast<double>(cols) / t.cluster, kSplitWave) * ps;
  return (fed && !splits(shape) ? multiply : std::max(multiply, stage)) * small_copies(shape, t);
}

// Picoseconds of all waves, for one of k. Narrow tiles fill the last wave of whole ones first.
double waves_ps(const GemmShape& shape, const Tiling& t, const ColumnCut& cut) {
  const std::int64_t row_tiles = ceil_div(ceil_div(shape.m, t.rows), t.cluster);
  const std::int64_t workers = clusters(shape, t);
  const std::int64_t whole = ceil_div(row_tiles * cut.whole, workers);
  const std::int64_t free = whole * workers - row_tiles * cut.whole;
  const std::int64_t tail =
      ceil_div(std::max<std::int64_t>(row_tiles * cut.tail - free, 0), workers);
  return static_cast<double>(whole) * tile_ps(shape, t, t.tile_n) +
         static_cast<double>(tail) * tile_ps(shape, t, kColumnBox);
}

// What the memory takes for x and the weights: an H100's gives 3.0 TB/s, an H200's 4.6.
double memory_us(const GemmShape& shape) {
  const double bytes = 2 * static_cast<double>(shape.n + shape.m) * static_cast<double>(shape.k);
  return bytes * (shape.narrow_l2 ? 0.333e-6 : 0.217e-6);
}

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

// One wave: a part of k each, behind it the exchange.
double split_k_cost(const GemmShape& shape, const Tiling& t) {
  const auto rows = static_cast<double>(std::min<std::int64_t>(shape.m, t.rows));
  const auto ctas = static_cast<double>(tiles_of(shape, t) * t.split);
  const auto part = static_cast<double>(ceil_div(ceil_div(shape.k, kTileK), t.split) * kTileK);
  const double lines = shape.splits_x || shape.splits_w ? kSplitKLines : 1;
  const double stage = (rows + t.tile_n) * kSplitKPs * lines * std::sqrt(ctas / shape.sm_count);
  const double multiply = std::max(t.tile_n * kTensorPs, stage) * part * 1e-6;
  const double exchange = kExchangeUs * t.tile_n / 128 * (t.split - 1) / t.split;
  return kSplitKUs + std::max(multiply * small_copies(shape, t), memory_us(shape)) + exchange;
}

}  // namespace

double cost(const GemmShape& shape, const Tiling& t) noexcept {
  if (shape.m == 0) return 0;
  const std::int64_t row_tiles = ceil_div(shape.m, t.rows);
  const std::int64_t tiles = tiles_of(shape, t);
  const double column_us = static_cast<double>(shape.k) * 1e-6;  // times picoseconds
  // Every weight crosses the memory bus once.
  const double memory = static_cast<double>(shape.n) / std::max(1, shape.sm_count) * kMemoryPs;
  if (t.is_split_k()) return split_k_cost(shape, t);
  if (!t.is_stream_k()) {
    const bool open =
        shape.kind == GemmKind::kGateUp && row_tiles > 1 && t.schedule == Schedule::kPingpong;
    return std::max(waves_ps(shape, t, column_cut(shape, t)), memory) * column_us + kWaveUs +
           (open ? kOpenEpilogueUs * t.tile_n : 0);
  }
  const double tensor = static_cast<double>(tile_sums(t)) / kTileM * kTensorPs;
  const auto rows = static_cast<double>(std::min<std::int64_t>(shape.m, t.rows));
  const StreamK s = stream_k_schedule(shape, t);
  const bool three = !t.swaps_ab() && t.rows == 192;
  const double multiply = t.swaps_ab() ? kSwapABTensor * tensor
                          : three      ? kThreeConsumers * tensor
                                       : tensor;
  const bool in_step = s.workers % tiles == 0 || tiles % s.workers == 0;
  const double apart = long_k(shape) ? kLongOutOfStepPs : kOutOfStepPs;
  const double stage =
      stage_elements(shape, rows, static_cast<double>(t.tile_n) / t.cluster, kSplitStreamK) *
      (in_step ? kInStepPs : apart);
  const double share = static_cast<double>(tiles) / s.workers;
  const bool whole = tiles % s.workers == 0;
  const double pieces = whole ? 0 : static_cast<double>(s.k_units) / s.each + (in_step ? 0 : 1);
  // The row tiles of a column are neighbours: a worker that has several reads its weights again,
  // from memory, and a tenth slower (121 us for 8B's gate_up, 192 tokens and 128 rows).
  const double tiles_a_column = static_cast<double>(ceil_div(row_tiles, t.cluster));
  const double reads = 1.1 * std::min(tiles_a_column, std::ceil(share)) - 0.1;
  // Three consumers of 224 columns have no registers to spare for the fix-up: 125 us for the
  // gate_up of 3584 x 18944 and 192 tokens, whose tiles are cut. Swapped, its pieces of all tokens
  // are larger than the tokens ask for: 92 to 99 us there for 136.
  const double fix_up = t.swaps_ab() || (three && t.tile_n == 224) ? 3.0 : 1.0;
  const double unit = std::max(multiply, stage) * small_copies(shape, t);
  return std::max(share * unit, reads * memory) * column_us + kStreamKUs +
         fix_up * pieces * t.cluster * static_cast<double>(tile_sums(t)) * kPartialUs;
}

double gate_up_us(const GemmShape& shape, const Tiling& t) noexcept {
  if (shape.m == 0 || t.is_split_k() || t.is_stream_k()) return cost(shape, t);
  // Picoseconds of an element where all SMs read; microseconds of a tile's start, of the epilogue
  // of 128 weight rows, and of a launch that waits for memory.
  constexpr double kElementPs = 22.8;
  constexpr double kStartUs = 0.9;
  constexpr double kEpilogueUs = 1.2;
  constexpr double kMemoryUs = 10.2;
  const std::int64_t tiles = tiles_of(shape, t);
  const auto waves = static_cast<double>(ceil_div(tiles, clusters(shape, t)));
  const double busy =
      std::min(1.0, static_cast<double>(tiles * t.cluster) / std::max(1, shape.sm_count));
  const std::int64_t row_tiles = ceil_div(ceil_div(shape.m, t.rows), t.cluster) * t.cluster;
  const double elements = (static_cast<double>(shape.m) / static_cast<double>(row_tiles) +
                           static_cast<double>(t.tile_n) / t.cluster) *
                          (shape.splits_x || shape.splits_w ? kSplitWave : 1);
  const double ps = std::max(t.tile_n * kTensorPs, elements * kElementPs * std::pow(busy, 0.36));
  const auto k = static_cast<double>(ceil_div(shape.k, kTileK) * kTileK);
  const double tile = ps * small_copies(shape, t) * k * 1e-6 + kStartUs;
  const double epilogue = kEpilogueUs * t.tile_n / 128;
  // Pingpong: an epilogue runs beside the next tile, if that takes as long.
  const double multiply =
      t.schedule == Schedule::kPingpong
          ? std::max(waves * tile + epilogue, std::ceil(waves / 2) * (tile + epilogue))
          : waves * (tile + epilogue / 2);
  const double memory = kMemoryUs + memory_us(shape);
  return std::pow(std::pow(multiply, 4) + std::pow(memory, 4), 0.25);  // neither hides the other
}

ColumnCut column_cut(const GemmShape& shape, const Tiling& t) noexcept {
  const auto columns = static_cast<int>(ceil_div(shape.n, t.tile_n));
  ColumnCut best{columns, 0};
  if (shape.kind != GemmKind::kGateUpGrad && shape.kind != GemmKind::kWeightGrad) return best;
  const std::int64_t row_tiles =
      std::max<std::int64_t>(1, ceil_div(ceil_div(shape.m, t.rows), t.cluster));
  const std::int64_t workers = clusters(shape, t);
  const std::int64_t boxes = ceil_div(shape.n, kColumnBox);
  const std::int64_t fitting = shape.n / t.tile_n;
  // As many whole tiles as fit the matrix, or as fill waves and no more.
  for (const std::int64_t whole : {fitting, row_tiles * fitting / workers * workers / row_tiles}) {
    const ColumnCut cut{static_cast<int>(whole),
                        static_cast<int>(boxes - whole * (t.tile_n / kColumnBox))};
    if (waves_ps(shape, t, cut) < waves_ps(shape, t, best)) best = cut;
  }
  return best;
}

bool keeps_lockstep(const GemmShape& shape, const Tiling& t) noexcept {
  // Of an H200's 60 MB, an H100's 50. With 30 MB a wave (8B's gate_up) step is worth nothing, with
  // 60 (70B's) 2 %, with 119 (405B's) 6 to 8 % (docs/kernels/gate_up.md).
  constexpr std::int64_t kHeldBytes = 40'000'000;
  const std::int64_t row_tiles = ceil_div(ceil_div(shape.m, t.rows), t.cluster);
  const std::int64_t rows = std::min<std::int64_t>(t.group, row_tiles);
  const std::int64_t columns = ceil_div(clusters(shape, t), rows);
  const std::int64_t read = (rows * t.rows * t.cluster + columns * t.tile_n) * shape.k * 2;
  // Of few tokens the weights' bytes are the limit, and they are read once or twice in any step.
  return shape.m > kStreamKMaxTokens && tiles_of(shape, t) > clusters(shape, t) &&
         read > kHeldBytes;
}

StreamK stream_k_schedule(const GemmShape& shape, const Tiling& t) noexcept {
  // A worker has a ticket for each consumer.
  const int tickets = WorkspaceHeader::kTickets / ((t.swaps_ab() ? 2 : t.rows / 64) * t.cluster);
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
  const auto source = tilings(shape.kind);
  // By cost, ties in source order: insertion sort, which allocates nothing.
  std::array<std::size_t, std::size(kGateUpTilings)> order{};
  std::size_t count = 0;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i].is_stream_k() && !stream_k_serves(shape, source[i])) continue;
    if (!split_k_serves(shape, source[i])) continue;
    std::size_t at = count++;
    while (at > 0 && cost(shape, source[i]) < cost(shape, source[order[at - 1]])) {
      order[at] = order[at - 1];
      --at;
    }
    order[at] = i;
  }
  for (std::size_t i = 0; i < std::min(out.size(), count); ++i) out[i] = source[order[i]];
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

Box out_box(const Tiling& t, GemmKind kind) noexcept {
  if (t.swaps_ab()) return {16, kPassTokens};
  const int cols = kind == GemmKind::kGateUp ? t.tile_n / 2 : t.tile_n;
  return {cols % 64 == 0 ? 64 : cols % 32 == 0 ? 32 : 16, kOutRows};
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
