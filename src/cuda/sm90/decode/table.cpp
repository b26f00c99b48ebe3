// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/decode/table.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <utility>

#include "cuda/host/ranking.hpp"
#include "cuda/sm90/gemm/table.hpp"

namespace sluice::cuda::sm90::decode {
namespace {

constexpr double kMemoryBytesPerUs = 34e3;  // of an SM: 4.5 TB/s over 132
constexpr double kMemoryLatencyUs = 2.8;    // 79 KB in flight stream 8 % slower than 155 KB
// Of an SM, weights and activations together: log of the kernel's page.
constexpr double kRowsBytesPerUs = 50e3;
constexpr double kBoxesBytesPerUs = 62e3;
// Rows beside 9 to 16 tokens, of memory and together: what consumers hold is not in flight.
constexpr double kTwoSlicesMemoryBytesPerUs = 31e3;
constexpr double kTwoSlicesBytesPerUs = 40e3;
// Of an SM, a layer: below it what a launch costs beside its bytes weighs more than a deep ring.
constexpr double kSmallModelBytes = 800e3;
// The same, up to which a launch of the norm costs less than to defer it: 4 to 10 % less at 110 to
// 200 KB, -3 to 4 % at 360 to 380.
constexpr double kDeferBytes = 300e3;
// Of an SM, of the largest share over the mean: fitted, boxes were ahead at 260 KB, rows at 360.
constexpr double kUnevenBytes = 300e3;
// Of an SM, up to which two boxes for each are ahead of one or two: 1 to 6 % at 37 to 131 KB; from
// 500 KB on each SM's rate counts, and up to 3 % are lost.
constexpr std::int64_t kTwoBoxesBytes = 160 << 10;
// Of an SM, of down behind gate_up: what memory gives it until the next CTA's first bytes come.
constexpr int kPrefetchBytes = 64 << 10;
constexpr int kBoxesPrefetchBytes = 32 << 10;
constexpr int kSmallPrefetchBytes = 16 << 10;  // in small models, up to kSpanTokens
// Of more tokens in large ones the copies of activations want what it takes, but where four SMs
// must be free for a cluster of down.
constexpr int kPrefetchTokens = 32;
// Of boxes, fitted to 165 shapes' chains (the choice costs 0.33 % more than the best in the mean,
// 4.2 at most): what a stage costs beside its bytes; a wgmma of 64 rows and tokens; an exchange of
// sums and the clusters that it needs, for each CTA of one (gate_up divided was ahead in two
// chains, by 2 %); the gate and stores of a block of both warpgroups, beside which nobody
// multiplies, of 64 tokens; activations that memory hides.
constexpr double kStageUs = 0.05;
constexpr double kWgmmaUs = 0.01;
constexpr double kDownExchangeUs = 0.4;
constexpr double kGateUpExchangeUs = 2;
constexpr double kBothFinishUs = 2.4;
constexpr double kHiddenBytesPerUs = 260e3;
// The same of more than 64 tokens, fitted to 3,000 launches and chains on an H200: 4 to 6 % off in
// the mean; of 130 shapes that it was not fitted to the choice costs 0.6 % more than the best. Of
// its device's bandwidth an SM has its share.
namespace many {
constexpr std::int64_t kTokens = 64;
constexpr double kPower = 4;  // of longer_us(), copies beside products
constexpr double kLaunchUs = 1.84;
constexpr double kBandwidth = 1.056;
constexpr double kActivationBytesPerUs = 231e3;
// Of activations whose rows begin inside a line of L2, or a sector.
constexpr double kSplitLines = 1.63;
constexpr double kSplitSectors = 4;  // too long for a copy
constexpr double kWgmmaUs = 0.0186;
constexpr double kFinishUs = 0.29;
constexpr double kExchangeUs = 0.22;
// Of what cuda.sm90 chooses, at 120 shapes of 97 to 160 tokens: 5 % off. Deep sums of few rows take
// as long as their steps.
constexpr double kTilesLaunchUs = 4.5;
constexpr double kTilesColumnUs = 3.2e-4;
constexpr double kTilesBandwidth = 0.926;
constexpr double kTilesFlopsPerUs = 4.18e6;  // of an SM
// By what that falls short at 129 to 144 tokens, and of rows that split sectors.
constexpr double kTilesOfFewRows = 1.07;
constexpr double kTilesOfSplitSectors = 1.15;
}  // namespace many
// Each CTA reads all activations. Rows that begin inside sectors take several times as long from L2
// and are copied first beyond so many tokens: 1.02 to 1.07 at 24, 1.1 to 1.7 at 64 to 160, where
// the copy is ahead of tiles too but in the largest layers. Rows of whole sectors inside lines are
// not: 0.92 to 1.03.
constexpr std::int64_t kCopyTokens = 16;
constexpr double kCopyUs = 2;
// Of a chain whose launches are not of one kernel, both by boxes: they share no instructions in the
// caches. Fitted: 0.5 to 0.9 us where models are small.
constexpr double kTwoKernelsUs = 0.8;

double ceil_div(double a, double b) {
  return static_cast<double>(static_cast<std::int64_t>((a + b - 1) / b));
}

// A ring of `t`'s stages through `rows` weight rows of `columns` each, cut into even blocks of up
// to `slots` rows, and the activations of each block.
double stream_us(const Tiling& t, double rows, double slots, double columns, double m) {
  const double blocks = ceil_div(rows, slots);
  const double in_flight = t.stages * (rows / blocks) * std::min<double>(t.depth, columns) * 2;
  const bool two_slices = !t.boxes && t.tokens > kRowTokens;
  const double most = two_slices ? kTwoSlicesMemoryBytesPerUs : kMemoryBytesPerUs;
  const double memory = std::min(most, in_flight / kMemoryLatencyUs);
  const double weights = rows * columns * 2;
  const double activations = blocks * columns * m * 2;
  const double ingest = t.boxes      ? kBoxesBytesPerUs
                        : two_slices ? kTwoSlicesBytesPerUs
                                     : kRowsBytesPerUs;
  const double us = std::max(weights / memory, (weights + activations) / ingest);
  if (!t.boxes) return us;
  const double tokens = t.tokens / 64.0;
  const double wgmma = t.depth / 16.0 * (t.rows / 64.0) * tokens * kWgmmaUs;
  const double finish = t.rows > 64 ? tokens * kBothFinishUs : 0;
  const double stages = blocks * ceil_div(columns, t.depth);
  return std::max(us + activations / kHiddenBytesPerUs, stages * (wgmma + kStageUs)) +
         blocks * finish;
}

// Bytes a microsecond that memory has for an SM.
double memory_share(const Shape& s) {
  return static_cast<double>(s.memory_bytes_per_second) * 1e-6 / s.sm_count;
}

// stream_us() of many tokens and all of a launch: copies of weights and activations, or products.
double many_us(const Tiling& t, const Shape& s, double rows, double columns) {
  const double blocks = ceil_div(rows, t.rows);
  const bool whole = s.pitch == gemm::Pitch::kWholeLines || copies_input(s);
  const double lines = whole                                   ? 1
                       : s.pitch == gemm::Pitch::kWholeSectors ? many::kSplitLines
                                                               : many::kSplitSectors;
  const double activations = blocks * columns * static_cast<double>(s.m) * 2 * lines;
  const double copies = rows * columns * 2 / (many::kBandwidth * memory_share(s)) +
                        activations / many::kActivationBytesPerUs;
  const double tokens = t.tokens / 64.0;
  const double products = blocks * ceil_div(columns, t.depth) * (t.depth / 16.0) * (t.rows / 64.0) *
                          tokens * many::kWgmmaUs;
  const double finish = t.rows > 64 ? blocks * tokens * many::kFinishUs : 0;
  const double exchange = t.split == 1 ? 0 : t.split * many::kExchangeUs;
  return many::kLaunchUs + (copies_input(s) ? kCopyUs : 0) +
         gemm::longer_us(copies, products, many::kPower) + finish + exchange;
}

// Units of the launch.
int all_units(const Tiling& t, const Shape& s) {
  return units_of(static_cast<int>(s.down ? s.d : s.h), t.boxes, !s.down);
}

// Rows of the largest share of those (of gate_up both of a pair).
double largest_share(const Tiling& t, const Shape& s) {
  const int groups = ctas_of(t, s) / t.split;
  return ceil_div(all_units(t, s), groups) * unit_size(t.boxes, !s.down) * (s.down ? 1 : 2);
}

// CTAs that share rows and are on the device at once. Of 132 SMs 120 take clusters of four: the
// others are odd ones of their GPC.
int clusters(int split, int sm_count) noexcept {
  const int all = sm_count / split;
  return std::max(1, split <= 2 ? all : all * 10 / 11);
}

// Whether clusters of `split` CTAs can divide K: each cluster's rows must be one block.
bool can_divide(const Tiling& t, int split, const Shape& s) {
  if (!divides(t) || !deals_slices(t, split) || s.sm_count < split) return false;
  const std::int64_t groups = clusters(split, s.sm_count);
  const std::int64_t boxes = all_units(t, s);
  return (boxes + groups - 1) / groups <= t.rows / kMmaRows;
}

// Bytes of a layer's weights.
double layer_bytes(std::int64_t d, std::int64_t h) { return 6.0 * static_cast<double>(d * h); }

bool is_small(const Shape& s) { return layer_bytes(s.d, s.h) <= kSmallModelBytes * s.sm_count; }

// Rows of down that are more than one block of a half ring bring all of h once more.
bool offers_half(const Shape& s) {
  return is_small(s) && s.d <= std::int64_t{kMmaRows} * s.sm_count;
}

// Whether a CTA's pairs of gate_up are one block of 32 slots.
bool is_narrow(const Shape& s) { return s.h <= std::int64_t{kMmaRows} * s.sm_count; }

// Of few tokens boxes are first where the largest share of whole ones is not much more than the
// mean, for who has less leaves the memory to others; of more they are.
bool boxes_lead(const Tiling& t, const Shape& s) {
  if (s.m > kRowTokens) return true;
  const int groups = ctas_of(t, s) / t.split;
  const double mean = static_cast<double>(s.down ? s.d : 2 * s.h) / groups;
  const double columns = static_cast<double>(s.down ? s.h : s.d) / t.split;
  return (largest_share(t, s) - mean) * columns * 2 <= kUnevenBytes;
}

// What should be tried first: boxes, where boxes_lead(). In small models whose weights cannot come
// by boxes: with a CTA's rows of gate_up in one block of 32 slots the half ring of so many, and for
// down that of 16; where they are more, half rings of 16 slots, for blocks of few tokens are small
// ones.
bool leads(const Tiling& t, const Shape& s) {
  if (!is_small(s) || s.boxes) return t.boxes && boxes_lead(t, s);
  return t.half && t.rows == (!s.down && is_narrow(s) ? 2 * kMmaRows : kMmaRows);
}

}  // namespace

bool copies_input(const Shape& s) noexcept {
  if (s.copy_input != gemm::CopyRows::kMay) return s.copy_input == gemm::CopyRows::kMust;
  return !s.norm && s.m > kCopyTokens && s.pitch == gemm::Pitch::kSplitSectors;
}

double model_us(const Tiling& t, const Shape& s) noexcept {
  const double rows = largest_share(t, s);
  const double columns = static_cast<double>(s.down ? s.h : s.d) / t.split;
  if (s.m > many::kTokens) return many_us(t, s, rows, columns);
  const double exchange =
      t.split == 1 ? 0 : t.split * (s.down ? kDownExchangeUs : kGateUpExchangeUs);
  return exchange + stream_us(t, rows, t.rows, columns, static_cast<double>(s.m));
}

double tiles_us(const Shape& s) noexcept {
  const double weights = static_cast<double>(s.d * s.h) * (s.down ? 1 : 2) / s.sm_count;
  const double copies = 2 * weights / (many::kTilesBandwidth * memory_share(s));
  const double products = 2 * weights * static_cast<double>(s.m) / many::kTilesFlopsPerUs;
  const auto columns = static_cast<double>(s.down ? s.h : s.d);
  const double us = many::kTilesLaunchUs + columns * many::kTilesColumnUs +
                    gemm::longer_us(copies, products, many::kPower);
  const bool few_rows = s.m > gemm::kTileM && s.m <= gemm::kTileM + 16;  // of the second row tile
  return us * (few_rows ? many::kTilesOfFewRows : 1) *
         (s.pitch == gemm::Pitch::kSplitSectors ? many::kTilesOfSplitSectors : 1);
}

std::size_t ranked(const Shape& shape, std::span<Tiling> out) noexcept {
  // What leads, then by time.
  Ranking<Tiling, std::size(kTilings) * 3, std::pair<bool, double>> order;
  const auto add = [&](const Tiling& t) { order.add(t, {!leads(t, shape), model_us(t, shape)}); };
  const bool few = shape.m <= kRowTokens;
  constexpr int kWidths[] = {kRowTokens, 32, 64, 96, 128, kMaxTokens};
  if (shape.m > kMaxTokens) return 0;
  const int widest = *std::lower_bound(std::begin(kWidths), std::end(kWidths), shape.m);
  const int widest_boxes = few ? kSpanTokens : widest;  // boxes of 16 tokens serve fewer too
  for (const Tiling& tiling : kTilings) {
    if (tiling.tokens < shape.m) continue;
    if (tiling.tokens > (tiling.boxes ? widest_boxes : widest)) continue;
    if (tiling.boxes && !shape.boxes) continue;
    if (tiling.norm != shape.norm) continue;
    if (tiling.norm && tiling.tokens / 2 < shape.m) continue;  // the residual has the other half
    if (tiling.half && !offers_half(shape)) continue;
    add(tiling);
    for (int split = 2; split <= kMaxSplit; split *= 2) {
      if (!can_divide(tiling, split, shape)) continue;
      Tiling divided = tiling;
      divided.split = split;
      add(divided);
    }
  }
  return order.copy_to(out);
}

TilingPair first_pair(std::span<const Tiling> gate_up, const Shape& gate_up_shape,
                      std::span<const Tiling> down, const Shape& down_shape) noexcept {
  const auto one_kernel = [](Tiling a, const Tiling& b) {
    a.split = b.split;
    return a.boxes && a == b;
  };
  const auto us = [&](const TilingPair& pair) {
    return model_us(gate_up[pair.gate_up], gate_up_shape) + model_us(down[pair.down], down_shape);
  };
  TilingPair best;
  const bool both_boxes = gate_up[0].boxes && down[0].boxes;
  if (!both_boxes || one_kernel(gate_up[0], down[0])) return best;
  double least = us(best) + kTwoKernelsUs;
  for (std::size_t i = 0; i < gate_up.size(); ++i) {
    for (std::size_t j = 0; j < down.size(); ++j) {
      if (!one_kernel(gate_up[i], down[j]) || us({i, j}) >= least) continue;
      best = {i, j};
      least = us(best);
    }
  }
  return best;
}

bool defers_norm(std::int64_t d, std::int64_t h, int sm_count) noexcept {
  return layer_bytes(d, h) > kDeferBytes * sm_count;
}

int ctas_of(const Tiling& t, const Shape& s) noexcept {
  const int units = all_units(t, s);
  const int groups = std::clamp(units, 1, clusters(t.split, s.sm_count));
  // Where some groups have one box and some two, and those are soon read, the launch ends no later
  // if all have two, and SMs are free for the next.
  const std::int64_t columns = (s.down ? s.h : s.d) / t.split;
  const bool pairs = t.boxes && units > groups && units <= 2 * groups &&
                     std::int64_t{2} * kMmaRows * 2 * columns <= kTwoBoxesBytes;
  return (pairs ? (units + 1) / 2 : groups) * t.split;
}

Shares launch_shares(const Tiling& t, bool down, int d, int h, int ctas) noexcept {
  const int unit = unit_size(t.boxes, !down);
  return make_shares(units_of(down ? d : h, t.boxes, !down), ctas / t.split,
                     t.rows / (down ? unit : 2 * unit), down ? h : d, t.depth, t.split);
}

WeightPrefetch prefetch_of(const Tiling& gate_up, const Tiling& down, int d, int h,
                           int sm_count) noexcept {
  if (gate_up.half) return {};
  WeightPrefetch next;
  const Shape shape{.d = d, .h = h, .down = true, .sm_count = sm_count};
  next.ctas = ctas_of(down, shape);
  next.split = down.split;
  next.depth = down.depth;
  next.unit_rows = unit_size(down.boxes, false);
  next.shares = launch_shares(down, true, d, h, next.ctas);
  const int rows = next.rows(0).size();
  if (rows == 0) return {};
  const bool small = is_small(shape);
  const int widest = std::max(gate_up.tokens, down.tokens);
  if (!small && widest > kPrefetchTokens && down.split < kMaxSplit) return {};
  const bool few = small && widest <= kSpanTokens;
  const int bytes = !down.boxes ? kPrefetchBytes : few ? kSmallPrefetchBytes : kBoxesPrefetchBytes;
  // No more than the smallest part of K, so that no CTA asks for another's columns.
  const int own = std::min(next.shares.chunks.part(down.split - 1).size() * down.depth, h);
  next.columns = std::min(bytes / (2 * rows) / kSpanColumns * kSpanColumns, own);
  return next;
}

void name_tiling(const Tiling& t, std::span<char> out) noexcept {
  const char* kind = t.norm ? "bn" : t.boxes ? "b" : "t";
  char split[16] = "";
  if (t.split > 1) std::snprintf(split, sizeof(split), "x%d", t.split);
  std::snprintf(out.data(), out.size(), "%s%dr%dk%ds%d%s", kind, t.tokens, t.rows, t.depth,
                t.stages, split);
}

}  // namespace sluice::cuda::sm90::decode
