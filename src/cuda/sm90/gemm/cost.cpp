// SPDX-License-Identifier: Apache-2.0
// How long a tiling takes a shape, by a model: docs/kernels/gate_up.md, section 9.
#include <algorithm>
#include <cmath>

#include "cuda/sm90/gemm/table.hpp"

namespace sluice::cuda::sm90::gemm {
namespace {

// What one SM takes, in picoseconds, for 128 rows of x by one weight row by one of k on the tensor
// cores (256 FLOPs of 785 TFLOP/s on 132 SMs).
constexpr double kTensorPs = 43.0;

// What gate_up and down take on a chip, fitted to all tilings of gate_up at 440 shapes of each (the
// log of gate_up); under stream-K to 12 shapes of an H200, from which an H100's out_of_step_ps
// follows.
struct Chip {
  double element_ps;       // an element of a stage in waves, where all SMs read
  double split_line;       // the factor of one whose row splits lines of L2
  double split_sector;     // and sectors
  double out_of_step_ps;   // an element of a stage under stream-K, where SMs walk k out of step
  double weight_ps;        // a weight from memory under stream-K
  double megabytes_an_us;  // from memory
};
constexpr Chip kH100{17.1, 1.42, 2.16, 47.9, 95.8, 3.0};
constexpr Chip kH200{15.0, 1.30, 2.27, 36.3, 68.5, 4.6};

const Chip& chip_of(const GemmShape& shape) { return shape.narrow_l2 ? kH100 : kH200; }

// A copy of weights stays inside a block of gate or up, or takes whole ones (make_pair_view). Three
// to seven copies a stage took 1.0 to 1.16 of the time of one, six tilings of 1024 tokens.
double small_copies(const GemmShape& shape, const Tiling& t) {
  constexpr double kSeveral = 1.08;
  const std::int64_t groups = t.tile_n / 16 / t.weight_parts();
  if (shape.block_groups <= 1) return 1;
  if (shape.turns && longest_run(t) % shape.block_groups == 0) return 1;  // one plain copy
  return groups % shape.block_groups == 0 || shape.block_groups % groups == 0 ? 1 : kSeveral;
}

double factor_of(Pitch pitch, double split_line, double split_sector) {
  switch (pitch) {
    case Pitch::kWholeLines:
      return 1;
    case Pitch::kWholeSectors:
      return split_line;
    case Pitch::kSplitSectors:
      break;
  }
  return split_sector;
}

// Elements of a stage of so many rows of x and of weights, weighted by what their pitches cost.
double stage_elements(const GemmShape& shape, double rows, double weight_rows, double split_line,
                      double split_sector) {
  return rows * factor_of(shape.x_pitch, split_line, split_sector) +
         weight_rows * factor_of(shape.w_pitch, split_line, split_sector);
}

// What the memory takes for x and the weights.
double memory_us(const GemmShape& shape) {
  const double bytes = 2 * static_cast<double>(shape.n + shape.m) * static_cast<double>(shape.k);
  return bytes * 1e-6 / chip_of(shape).megabytes_an_us;
}

// One wave: a part of k each, behind it the exchange.
double split_k_us(const GemmShape& shape, const Tiling& t) {
  constexpr double kLaunchUs = 2.9;
  constexpr double kMemoryUs = 3.0;
  constexpr double kElementPs = 22.7;  // where all SMs are busy
  constexpr double kBusyPower = 0.391;
  constexpr double kSplitSector = 1.58;
  constexpr double kExchangeUs = 3.0;  // of 128 weight rows
  const auto rows = static_cast<double>(std::min<std::int64_t>(shape.m, t.rows));
  const auto ctas = static_cast<double>(tiles_of(shape, t) * t.split);
  const auto part = static_cast<double>(ceil_div(ceil_div(shape.k, kTileK), t.split) * kTileK);
  const double stage = stage_elements(shape, rows, t.tile_n, 1, kSplitSector) * kElementPs *
                       std::pow(ctas / shape.sm_count, kBusyPower);
  const double multiply = std::max(t.tile_n * kTensorPs, stage) * small_copies(shape, t);
  const double exchange = kExchangeUs * t.tile_n / 128 * (t.split - 1) / t.split;
  return longer_us(kLaunchUs + multiply * part * 1e-6, kMemoryUs + memory_us(shape), 4) + exchange;
}

// Equal shares of bytes, or whole tiles: the longest of what the tensor cores, L2 and the memory
// take, and the fix-up of cut tiles. Fitted to 144 launches on an H200, each behind another: 3 %
// off, at most 9; with the launch as it is 4 %, at most 11. Of an H100's none were measured since.
double stream_k_us(const GemmShape& shape, const Tiling& t) {
  constexpr double kInStepPs = 30.1;  // an element of a stage where all SMs walk k in step
  constexpr double kBusyPower = 0.63;
  constexpr double kSplitLine = 1.25;
  constexpr double kSplitSector = 1.69;
  constexpr double kSwapABTensor = 0.77;    // the factor of weight rows as the tensor cores' rows
  constexpr double kThreeConsumers = 0.81;  // of three consumers
  constexpr double kPair = 1.18;            // and of a stage that waits for a partner
  constexpr double kLaunchUs = 8.4;         // 6.4 behind another such launch, which mlp has none of
  constexpr double kPartialUs = 1.01e-4;    // a partial sum of a cut tile
  const Chip& chip = chip_of(shape);
  const std::int64_t tiles = tiles_of(shape, t);
  const StreamK s = stream_k_schedule(shape, t);
  const double tensor = static_cast<double>(tile_sums(t)) / kTileM * kTensorPs *
                        (t.swaps_ab() ? kSwapABTensor : kThreeConsumers);
  const double rows =
      static_cast<double>(std::min<std::int64_t>(shape.m, t.rows)) / t.input_parts();
  // Of one row tile weights come from memory: there their pitch counts for nothing.
  const double elements = shape.m > kTileM
                              ? stage_elements(shape, rows, t.tile_n, kSplitLine, kSplitSector)
                              : rows + t.tile_n;
  const bool in_step = s.workers % tiles == 0 || tiles % s.workers == 0;
  const double busy =
      static_cast<double>(s.workers) * t.cluster / std::max(shape.sm_count, s.workers * t.cluster);
  const double stage =
      elements * (in_step ? kInStepPs : chip.out_of_step_ps) * std::pow(busy, kBusyPower);
  const double share = static_cast<double>(tiles) / s.workers;
  const bool whole = tiles % s.workers == 0;
  const double pieces = whole ? 0 : static_cast<double>(s.k_units) / s.each + (in_step ? 0 : 1);
  // The row tiles of a column are neighbours: a worker that has several reads its weights again,
  // from memory, and a tenth slower.
  const auto tiles_a_column = static_cast<double>(ceil_div(shape.m, t.rows));
  const double reads = 1.1 * std::min(tiles_a_column, std::ceil(share)) - 0.1;
  const double memory =
      reads * static_cast<double>(shape.n) / std::max(1, shape.sm_count) * chip.weight_ps;
  const double unit =
      longer_us(tensor, stage, 4) * (t.cluster > 1 ? kPair : 1) * small_copies(shape, t);
  return longer_us(share * unit, memory, 8) * static_cast<double>(shape.k) * 1e-6 + kLaunchUs +
         pieces * static_cast<double>(tile_sums(t)) * kPartialUs;
}

// gate_up and down by whole tiles in waves.
double waves_us(const GemmShape& shape, const Tiling& t) {
  constexpr double kColumnPs = 31.4;             // a weight row on the tensor cores
  constexpr double kStepPs = 678;                // a tile's step of k
  constexpr double kPairStep = 1.041;            // the factor of a step that waits for a partner
  constexpr double kPairStepOfFewRows = 0.99;    // and shares a weight's only trips to L2
  constexpr double kCooperativePairStep = 1.10;  // at it 20 measured linears are chosen right
  constexpr double kBusyPower = 0.369;
  constexpr double kManyRowTiles = 0.105;  // more of an element's time, of 16 row tiles and more
  // An element's watts: beyond a TFLOP the clock falls with what a tile reads.
  constexpr double kPowerPs = 10.8;
  constexpr double kStartUs = 1.75;
  constexpr double kEpilogueUs = 2.37;  // of 128 weight rows
  constexpr double kLongEpilogueUs = 1.66;
  constexpr double kPairsUs = 1.2;  // a launch of pairs that leaves SMs idle
  constexpr double kMemoryUs = 4.23;
  const Chip& chip = chip_of(shape);
  const std::int64_t row_tiles = ceil_div(shape.m, t.rows);
  const std::int64_t tiles = tiles_of(shape, t);
  const double waves = static_cast<double>(ceil_div(tiles, clusters(shape, t)));
  const double busy =
      std::min(1.0, static_cast<double>(tiles * t.cluster) / std::max(1, shape.sm_count));
  // Rows of x beyond the matrix are not read.
  const double x_rows = static_cast<double>(shape.m) /
                        static_cast<double>(ceil_div(row_tiles, t.cluster) * t.cluster);
  const double elements = stage_elements(shape, x_rows, static_cast<double>(t.tile_n) / t.cluster,
                                         chip.split_line, chip.split_sector);
  const double read = elements * chip.element_ps * std::pow(busy, kBusyPower) *
                      (1 + kManyRowTiles * std::min(1.0, static_cast<double>(row_tiles) / 16));
  const double pair = t.schedule == Schedule::kCooperative ? kCooperativePairStep
                      : row_tiles <= 2                     ? kPairStepOfFewRows
                                                           : kPairStep;
  const double tensor = (t.tile_n * kColumnPs + kStepPs) * (t.cluster == 2 ? pair : 1);
  const double teraflops = 2e-12 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
                           static_cast<double>(shape.k);
  const double ps = longer_us(tensor, read, 8) + elements * kPowerPs * teraflops / (teraflops + 1);
  const auto k = static_cast<double>(ceil_div(shape.k, kTileK) * kTileK);
  const double tile = ps * small_copies(shape, t) * k * 1e-6 + kStartUs;
  const double epilogue =
      (kEpilogueUs + (shape.long_epilogue ? kLongEpilogueUs : 0)) * t.tile_n / 128;
  // Pingpong: an epilogue runs beside the next tile, if that takes as long.
  const double multiply =
      t.schedule == Schedule::kPingpong
          ? std::max(waves * tile + epilogue, std::ceil(waves / 2) * (tile + epilogue))
          : waves * (tile + epilogue);
  const double pairs = t.cluster == 2 && busy < 15.0 / 16 ? kPairsUs : 0;
  return longer_us(multiply + pairs, kMemoryUs + memory_us(shape), 4);
}

// Picoseconds of a tile of `cols` weight rows of the backward pass, for one of k. A CTA without a
// partner starves on L2, but with one row tile.
double grad_tile_ps(const GemmShape& shape, const Tiling& t, int cols) {
  constexpr double kElementPs = 28.9;
  const bool shared = t.cluster == 2 || ceil_div(shape.m, t.rows) == 1;
  constexpr double kCooperative = 1.02;  // beside its open epilogues: ten measured dx
  const double efficiency = t.schedule == Schedule::kCooperative ? kCooperative
                            : t.tile_n == 192                    ? (shared ? 1.0 : 0.97)
                                                                 : (shared ? 0.955 : 0.5);
  const double multiply = cols * kTensorPs / efficiency;
  const double stage = (t.rows + static_cast<double>(cols) / t.cluster) * kElementPs;
  return std::max(multiply, stage);
}

// Picoseconds of all waves, for one of k. Narrow tiles fill the last wave of whole ones first.
double grad_waves_ps(const GemmShape& shape, const Tiling& t, const ColumnCut& cut) {
  const std::int64_t row_tiles = ceil_div(ceil_div(shape.m, t.rows), t.cluster);
  const std::int64_t workers = clusters(shape, t);
  const std::int64_t whole = ceil_div(row_tiles * cut.whole, workers);
  const std::int64_t free = whole * workers - row_tiles * cut.whole;
  const std::int64_t tail =
      ceil_div(std::max<std::int64_t>(row_tiles * cut.tail - free, 0), workers);
  return static_cast<double>(whole) * grad_tile_ps(shape, t, t.tile_n) +
         static_cast<double>(tail) * grad_tile_ps(shape, t, kColumnBox);
}

// Whole tiles in waves of the backward pass.
double grad_waves_us(const GemmShape& shape, const Tiling& t) {
  constexpr double kWeightPs = 57.4;  // from memory
  constexpr double kLaunchUs = 4.0;
  constexpr double kEpilogueUs = 2.37;  // of 128 weight rows, as forward
  const double memory = static_cast<double>(shape.n) / std::max(1, shape.sm_count) * kWeightPs;
  // Cooperative: each tile's epilogue runs beside nothing.
  const auto waves = static_cast<double>(ceil_div(tiles_of(shape, t), clusters(shape, t)));
  const double epilogues =
      t.schedule == Schedule::kCooperative ? waves * kEpilogueUs * t.tile_n / 128 : 0;
  return epilogues +
         std::max(grad_waves_ps(shape, t, column_cut(shape, t)), memory) *
             static_cast<double>(shape.k) * 1e-6 +
         kLaunchUs;
}

double tiling_us(const GemmShape& shape, const Tiling& t) {
  if (t.is_split_k()) return split_k_us(shape, t);
  if (t.is_stream_k()) return stream_k_us(shape, t);
  const bool forward = shape.kind == GemmKind::kGateUp || shape.kind == GemmKind::kDown;
  return forward ? waves_us(shape, t) : grad_waves_us(shape, t);
}

double with_copy_us(GemmShape shape, const Tiling& t) {
  constexpr double kCopyUs = 4;
  constexpr double kOfMemory = 0.55;  // of its rate; with 0.8, and 2 us, no better choice
  const double bytes = 4 * static_cast<double>(shape.m) * static_cast<double>(shape.k);
  shape.x_pitch = Pitch::kWholeLines;
  return tiling_us(shape, t) + kCopyUs +
         bytes * 1e-6 / (kOfMemory * chip_of(shape).megabytes_an_us);
}

struct ReadX {
  bool copied;
  double us;
};

ReadX read_x(const GemmShape& shape, const Tiling& t) {
  if (shape.copy_x == CopyRows::kMust) return {true, with_copy_us(shape, t)};
  const double in_place = tiling_us(shape, t);
  // Of one row any stride will do.
  if (shape.m <= 1 || shape.copy_x == CopyRows::kNever || t.is_stream_k() ||
      shape.x_pitch == Pitch::kWholeLines) {
    return {false, in_place};
  }
  constexpr double kWorthwhile = 0.97;  // of the time: copies take scratch
  const double by_copy = with_copy_us(shape, t);
  return by_copy < kWorthwhile * in_place ? ReadX{true, by_copy} : ReadX{false, in_place};
}

}  // namespace

double longer_us(double a, double b, double power) noexcept {
  return std::pow(std::pow(a, power) + std::pow(b, power), 1 / power);
}

double cost(const GemmShape& shape, const Tiling& t) noexcept {
  return shape.m == 0 ? 0 : read_x(shape, t).us;
}

bool copies_x(const GemmShape& shape, const Tiling& t) noexcept { return read_x(shape, t).copied; }

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
    if (grad_waves_ps(shape, t, cut) < grad_waves_ps(shape, t, best)) best = cut;
  }
  return best;
}

}  // namespace sluice::cuda::sm90::gemm
