// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/decode_config.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace sluice::cuda::sm90 {
namespace {

// Weights in flight are stages x rows x depth x 2 bytes: as many as fit beside the activations of
// the stages (tokens, or norm_rows + 1, x depth x 2) and the reduction. See
// docs/kernels/mlp_decode.md, "Tilings".
constexpr DecodeTiling kTilings[] = {
    {.tokens = 8, .rows = 32, .depth = 512, .stages = 5},
    {.tokens = 8, .rows = 32, .depth = 256, .stages = 5, .half = true},
    {.tokens = 8, .rows = 16, .depth = 512, .stages = 4, .half = true},
    {.tokens = 8, .rows = 32, .depth = 512, .stages = 5, .norm_rows = 10},
    {.tokens = 8, .rows = 32, .depth = 512, .stages = 4, .norm_rows = 16},
    {.tokens = 8, .rows = 32, .depth = 256, .stages = 4, .half = true, .norm_rows = 16},
    {.tokens = 16, .rows = 64, .depth = 256, .stages = 5},
    {.tokens = 16, .rows = 32, .depth = 512, .stages = 4},
    {.tokens = 16, .rows = 32, .depth = 256, .stages = 4, .half = true},
    {.tokens = 16, .rows = 16, .depth = 512, .stages = 3, .half = true},
    {.tokens = 16, .rows = 64, .depth = 256, .stages = 5, .boxes = true},
    {.tokens = 16, .rows = 64, .depth = 256, .stages = 5, .boxes = true, .norm_rows = 16},
    {.tokens = 32, .rows = 64, .depth = 128, .stages = 9, .boxes = true},
    {.tokens = 32, .rows = 128, .depth = 128, .stages = 5, .boxes = true},
    {.tokens = 64, .rows = 64, .depth = 128, .stages = 6, .boxes = true},
    {.tokens = 64, .rows = 128, .depth = 128, .stages = 4, .boxes = true},
};
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
constexpr int kSmallPrefetchBytes = 16 << 10;  // in small models, up to kDecodeSpanTokens
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
// Of a chain whose launches are not of one kernel, both by boxes: they share no instructions in the
// caches. Fitted: 0.5 to 0.9 us where models are small.
constexpr double kTwoKernelsUs = 0.8;

double ceil_div(double a, double b) {
  return static_cast<double>(static_cast<std::int64_t>((a + b - 1) / b));
}

// A ring of `t`'s stages through `rows` weight rows of `columns` each, cut into even blocks of up
// to `slots` rows, and the activations of each block.
double stream_us(const DecodeTiling& t, double rows, double slots, double columns, double m) {
  const double blocks = ceil_div(rows, slots);
  const double in_flight = t.stages * (rows / blocks) * std::min<double>(t.depth, columns) * 2;
  const bool two_slices = !t.boxes && t.tokens > kDecodeRowTokens;
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

// Units of what the launch ends with.
int last_units(const DecodeTiling& t, const DecodeShape& s) {
  return units_of(static_cast<int>(s.down ? s.d : s.h), t.boxes, !s.down);
}

// Rows of the largest share of that (of gate_up both of a pair).
double largest_share(const DecodeTiling& t, const DecodeShape& s) {
  const int groups = decode_ctas(t, s) / t.split;
  return ceil_div(last_units(t, s), groups) * unit_size(t.boxes, !s.down) * (s.down ? 1 : 2);
}

// CTAs that share rows and are on the device at once. Of 132 SMs 120 take clusters of four: the
// others are odd ones of their GPC.
int clusters(int split, int sm_count) noexcept {
  const int all = sm_count / split;
  return std::max(1, split <= 2 ? all : all * 10 / 11);
}

// A launch with a grid barrier is cooperative: it starts late in any case, and is not divided.
bool has_grid_barrier(const DecodeShape& s) { return (s.gate_up && s.down) || s.norm; }

// Whether clusters of `split` CTAs can divide K: each cluster's rows must be one block.
bool can_divide(const DecodeTiling& t, int split, const DecodeShape& s) {
  if (!t.boxes || has_grid_barrier(s) || s.sm_count < split) return false;
  if (s.norm_rows > 0) return false;                  // each CTA sums the squares of all columns
  if (split * kSliceTokens > t.tokens) return false;  // slices of tokens are dealt out
  const std::int64_t groups = clusters(split, s.sm_count);
  const std::int64_t boxes = units_of(static_cast<int>(s.down ? s.d : s.h), true, s.gate_up);
  return (boxes + groups - 1) / groups <= t.rows / kMmaRows;
}

// Bytes of a layer's weights.
double layer_bytes(std::int64_t d, std::int64_t h) { return 6.0 * static_cast<double>(d * h); }

bool is_small(const DecodeShape& s) {
  return !has_grid_barrier(s) && layer_bytes(s.d, s.h) <= kSmallModelBytes * s.sm_count;
}

// Rows of down that are more than one block of a half ring bring all of h once more.
bool offers_half(const DecodeShape& s) {
  return is_small(s) && s.d <= std::int64_t{kMmaRows} * s.sm_count;
}

// Whether a CTA's pairs of gate_up are one block of 32 slots.
bool is_narrow(const DecodeShape& s) { return s.h <= std::int64_t{kMmaRows} * s.sm_count; }

// Of few tokens boxes are first where the largest share of whole ones is not much more than the
// mean, for who has less leaves the memory to others; of more they are, and with a deferred norm,
// which by rows is three rows of activations for one.
bool boxes_lead(const DecodeTiling& t, const DecodeShape& s) {
  if (s.m > kDecodeRowTokens || s.norm_rows > 0) return true;
  const int groups = decode_ctas(t, s) / t.split;
  const double mean = static_cast<double>(s.down ? s.d : 2 * s.h) / groups;
  const double columns = static_cast<double>(s.down ? s.h : s.d) / t.split;
  return (largest_share(t, s) - mean) * columns * 2 <= kUnevenBytes;
}

// What should be tried first: boxes, where boxes_lead(). In small models whose weights cannot come
// by boxes: with a CTA's rows of gate_up in one block of 32 slots the half ring of so many, and for
// down that of 16; where they are more, half rings of 16 slots, for blocks of few tokens are small
// ones (with a deferred norm, which has no such ring, the full one).
bool leads(const DecodeTiling& t, const DecodeShape& s) {
  if (!is_small(s) || s.boxes) return t.boxes && boxes_lead(t, s);
  if (t.norm_rows > 0) return t.half == is_narrow(s);
  return t.half && t.rows == (s.gate_up && is_narrow(s) ? 2 * kMmaRows : kMmaRows);
}

}  // namespace

std::span<const DecodeTiling> decode_tilings() noexcept { return kTilings; }

double decode_model_us(const DecodeTiling& t, const DecodeShape& s) noexcept {
  const auto m = static_cast<double>(s.norm_rows > 0 ? s.norm_rows : s.m);
  const auto d = static_cast<double>(s.d);
  const auto h = static_cast<double>(s.h);
  double us = 0;
  if (t.split > 1) us = t.split * (s.down ? kDownExchangeUs : kGateUpExchangeUs);
  if (s.gate_up) {
    // In one launch of both the CTAs are those of down.
    const double rows = s.down ? 2 * ceil_div(h, decode_ctas(t, s)) : largest_share(t, s);
    us += stream_us(t, rows, t.rows, d / t.split, m);
  }
  if (s.down) {
    us += stream_us(t, largest_share(t, s), t.rows, h / t.split, m);
  }
  return us;
}

std::size_t decode_ranked(const DecodeShape& shape, std::span<DecodeTiling> out) noexcept {
  std::array<DecodeTiling, std::size(kTilings) * 3> ranked;
  std::size_t count = 0;
  const bool few = shape.m <= kDecodeRowTokens;
  const int widest = few ? kDecodeRowTokens : shape.m <= 32 ? 32 : 64;
  // Boxes of 16 tokens serve fewer too, in launches of their own.
  const int widest_boxes = !few ? widest : has_grid_barrier(shape) ? 0 : kDecodeSpanTokens;
  for (const DecodeTiling& tiling : kTilings) {
    if (tiling.tokens < shape.m) continue;
    if (tiling.tokens > (tiling.boxes ? widest_boxes : widest)) continue;
    if (tiling.boxes && !shape.boxes) continue;
    if ((tiling.norm_rows > 0) != (shape.norm_rows > 0)) continue;
    if (tiling.norm_rows < shape.norm_rows) continue;
    // By boxes half of the rows are for the residual, used or not.
    if (tiling.boxes && tiling.norm_rows > 0 && tiling.norm_rows / 2 < shape.m) continue;
    if (tiling.half && !offers_half(shape)) continue;
    ranked[count++] = tiling;
    for (int split = 2; split <= kDecodeMaxSplit; split *= 2) {
      if (!can_divide(tiling, split, shape)) continue;
      ranked[count] = tiling;
      ranked[count++].split = split;
    }
  }
  std::stable_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(count),
                   [&](const DecodeTiling& a, const DecodeTiling& b) {
                     if (leads(a, shape) != leads(b, shape)) return leads(a, shape);
                     return decode_model_us(a, shape) < decode_model_us(b, shape);
                   });
  std::copy_n(ranked.begin(), std::min(count, out.size()), out.begin());
  return count;
}

DecodePair decode_first_pair(std::span<const DecodeTiling> gate_up,
                             const DecodeShape& gate_up_shape, std::span<const DecodeTiling> down,
                             const DecodeShape& down_shape) noexcept {
  const auto one_kernel = [](DecodeTiling a, const DecodeTiling& b) {
    a.split = b.split;
    return a.boxes && a == b;
  };
  const auto us = [&](const DecodePair& pair) {
    return decode_model_us(gate_up[pair.gate_up], gate_up_shape) +
           decode_model_us(down[pair.down], down_shape);
  };
  DecodePair best;
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

bool decode_defers_norm(std::int64_t d, std::int64_t h, int sm_count) noexcept {
  return layer_bytes(d, h) > kDeferBytes * sm_count;
}

int decode_ctas(const DecodeTiling& t, const DecodeShape& s) noexcept {
  const int units = last_units(t, s);
  const int groups = std::clamp(units, 1, clusters(t.split, s.sm_count));
  // Where some groups have one box and some two, and those are soon read, the launch ends no later
  // if all have two, and SMs are free for the next.
  const std::int64_t columns = (s.down ? s.h : s.d) / t.split;
  const bool pairs = t.boxes && !has_grid_barrier(s) && units > groups && units <= 2 * groups &&
                     std::int64_t{2} * kMmaRows * 2 * columns <= kTwoBoxesBytes;
  return (pairs ? (units + 1) / 2 : groups) * t.split;
}

DecodeShares decode_launch_shares(const DecodeTiling& t, bool down, int d, int h,
                                  int ctas) noexcept {
  const int unit = unit_size(t.boxes, !down);
  return decode_shares(units_of(down ? d : h, t.boxes, !down), ctas / t.split,
                       t.rows / (down ? unit : 2 * unit), down ? h : d, t.depth, t.split);
}

WeightPrefetch decode_prefetch(const DecodeTiling& gate_up, const DecodeTiling& down, int d, int h,
                               int sm_count) noexcept {
  if (gate_up.half) return {};
  WeightPrefetch next;
  const DecodeShape shape{.d = d, .h = h, .gate_up = false, .sm_count = sm_count};
  next.ctas = decode_ctas(down, shape);
  next.split = down.split;
  next.depth = down.depth;
  next.unit_rows = unit_size(down.boxes, false);
  next.shares = decode_launch_shares(down, true, d, h, next.ctas);
  const int rows = next.rows(0).size();
  if (rows == 0) return {};
  const bool small = is_small(shape);
  const int widest = std::max(gate_up.tokens, down.tokens);
  if (!small && widest > kPrefetchTokens && down.split < kDecodeMaxSplit) return {};
  const bool few = small && widest <= kDecodeSpanTokens;
  const int bytes = !down.boxes ? kPrefetchBytes : few ? kSmallPrefetchBytes : kBoxesPrefetchBytes;
  // No more than the smallest part of K, so that no CTA asks for another's columns.
  const int own = std::min(next.shares.chunks.part(down.split - 1).size() * down.depth, h);
  next.columns = std::min(bytes / (2 * rows) / kSpanColumns * kSpanColumns, own);
  return next;
}

void name_decode_tiling(const DecodeTiling& t, std::span<char> out) noexcept {
  const char* kind = t.boxes ? t.norm_rows > 0 ? "bn" : "b" : t.norm_rows > 0 ? "n" : "t";
  if (t.split == 1) {
    std::snprintf(out.data(), out.size(), "%s%dr%dk%ds%d", kind, t.tokens, t.rows, t.depth,
                  t.stages);
  } else {
    std::snprintf(out.data(), out.size(), "%s%dr%dk%ds%dx%d", kind, t.tokens, t.rows, t.depth,
                  t.stages, t.split);
  }
}

}  // namespace sluice::cuda::sm90
