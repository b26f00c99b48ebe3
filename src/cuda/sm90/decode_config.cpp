// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/decode_config.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "cuda/sm90/decode_schedule.hpp"

namespace sluice::cuda::sm90 {
namespace {

// Weights in flight are stages x rows x depth x 2 bytes: as many as fit beside the activations of
// the stages (tokens x depth x 2) and the reduction. See docs/kernels/mlp_decode.md, "Tilings".
constexpr DecodeTiling kTilings[] = {
    {.tokens = 8, .rows = 32, .depth = 512, .stages = 5},
    {.tokens = 8, .rows = 32, .depth = 256, .stages = 5, .half = true},
    {.tokens = 8, .rows = 16, .depth = 512, .stages = 4, .half = true},
    {.tokens = 16, .rows = 64, .depth = 256, .stages = 5},
    {.tokens = 16, .rows = 32, .depth = 512, .stages = 4},
    {.tokens = 16, .rows = 32, .depth = 256, .stages = 4, .half = true},
    {.tokens = 16, .rows = 16, .depth = 512, .stages = 3, .half = true},
    {.tokens = 32, .rows = 64, .depth = 128, .stages = 9, .boxes = true},
    {.tokens = 64, .rows = 64, .depth = 256, .stages = 3, .boxes = true},
    {.tokens = 64, .rows = 64, .depth = 128, .stages = 7, .boxes = true},
};
constexpr double kMemoryBytesPerUs = 34e3;  // of an SM: 4.5 TB/s over 132
constexpr double kMemoryLatencyUs = 2.5;    // 79 KB in flight stream 8 % slower than 155 KB
// Of an SM, weights and activations together: log of the kernel's page.
constexpr double kRowsBytesPerUs = 50e3;
constexpr double kBoxesBytesPerUs = 70e3;
// Of an SM, a layer: below it what a launch costs beside its bytes weighs more than a deep ring.
constexpr double kSmallModelBytes = 800e3;
constexpr double kStageUs = 0.02;    // of boxes: what a stage costs beside its bytes
constexpr double kExchangeUs = 1.0;  // two cluster barriers

double ceil_div(double a, double b) {
  return static_cast<double>(static_cast<std::int64_t>((a + b - 1) / b));
}

// A ring of `t`'s stages through `rows` weight rows of `columns` each, cut into even blocks of up
// to `slots` rows, and the activations of each block.
double stream_us(const DecodeTiling& t, double rows, double slots, double columns, double m) {
  const double blocks = ceil_div(rows, slots);
  const double in_flight = t.stages * (rows / blocks) * std::min<double>(t.depth, columns) * 2;
  const double memory = std::min(kMemoryBytesPerUs, in_flight / kMemoryLatencyUs);
  const double weights = rows * columns * 2;
  const double activations = blocks * columns * m * 2;
  const double ingest = t.boxes ? kBoxesBytesPerUs : kRowsBytesPerUs;
  const double us = std::max(weights / memory, (weights + activations) / ingest);
  if (!t.boxes) return us;
  // The first stage comes before any work.
  const double depth = std::min<double>(t.depth, columns);
  return us + blocks * ceil_div(columns, depth) * kStageUs +
         (rows / blocks + m) * depth * 2 / kMemoryBytesPerUs;
}

// Whether clusters of two CTAs can divide K of down: each cluster's rows must be one block.
bool can_divide(const DecodeTiling& t, const DecodeShape& s) {
  if (!t.boxes || !s.down || s.gate_up || s.sm_count < kDecodeMaxSplit) return false;
  const std::int64_t groups = s.sm_count / kDecodeMaxSplit;
  const std::int64_t boxes = units_of(static_cast<int>(s.d), true, false);
  return (boxes + groups - 1) / groups <= t.rows / kMmaRows;
}

bool offers_half(const DecodeShape& s) {
  if (s.gate_up == s.down) return false;  // a cooperative launch starts late in any case
  // Rows of down that are more than one block of a half ring bring all of h once more.
  return 6.0 * static_cast<double>(s.d * s.h) <= kSmallModelBytes * s.sm_count &&
         s.d <= std::int64_t{kMmaRows} * s.sm_count;
}

// Of half rings the one to try first: in gate_up the wider one where a CTA's rows are one block of
// it; where they are more, its blocks of few tokens are small ones, of more tokens no half rings.
bool leads(const DecodeTiling& t, const DecodeShape& s) {
  if (!t.half) return false;
  if (s.down) return t.rows == kMmaRows;
  const double rows = 2 * ceil_div(static_cast<double>(s.h), s.sm_count);
  if (rows <= 2 * kMmaRows) return t.rows == 2 * kMmaRows;
  return t.tokens == kDecodeRowTokens && t.rows == kMmaRows;
}

}  // namespace

std::span<const DecodeTiling> decode_tilings() noexcept { return kTilings; }

double decode_model_us(const DecodeTiling& t, const DecodeShape& s) noexcept {
  const auto m = static_cast<double>(s.m);
  const auto d = static_cast<double>(s.d);
  const auto h = static_cast<double>(s.h);
  const int ctas = decode_ctas(t, s.down, s.down ? s.d : s.h, s.sm_count);
  double us = 0;
  if (s.gate_up) {
    const double pairs = ceil_div(h, ctas);
    us += stream_us(t, 2 * pairs, t.rows, d, m);
  }
  if (s.down) {
    const double rows = ceil_div(d * t.split, ctas);
    us += stream_us(t, rows, t.rows, h / t.split, m);
    if (t.split > 1) us += kExchangeUs;
  }
  return us;
}

std::size_t decode_ranked(const DecodeShape& shape, std::span<DecodeTiling> out) noexcept {
  std::array<DecodeTiling, std::size(kTilings) * kDecodeMaxSplit> ranked;
  std::size_t count = 0;
  int tokens = 0;  // of the narrowest tilings that hold m
  for (const DecodeTiling& tiling : kTilings) {
    if (tiling.tokens < shape.m) continue;
    if (tokens == 0) tokens = tiling.tokens;
    if (tiling.tokens != tokens) break;
    if (tiling.half && !offers_half(shape)) continue;
    ranked[count++] = tiling;
    if (can_divide(tiling, shape)) {
      ranked[count] = tiling;
      ranked[count++].split = kDecodeMaxSplit;
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

int decode_ctas(const DecodeTiling& t, bool down, std::int64_t rows, int sm_count) noexcept {
  const int units = units_of(static_cast<int>(rows), t.boxes, !down);
  return std::clamp(units, 1, std::max(1, sm_count / t.split)) * t.split;
}

void name_decode_tiling(const DecodeTiling& t, std::span<char> out) noexcept {
  if (t.split == 1) {
    std::snprintf(out.data(), out.size(), "%c%dr%dk%ds%d", t.boxes ? 'b' : 't', t.tokens, t.rows,
                  t.depth, t.stages);
  } else {
    std::snprintf(out.data(), out.size(), "%c%dr%dk%ds%dx%d", t.boxes ? 'b' : 't', t.tokens, t.rows,
                  t.depth, t.stages, t.split);
  }
}

}  // namespace sluice::cuda::sm90
