// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/decode_config.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace sluice::cuda::sm90 {
namespace {

// Weights in flight are stages x rows x depth x 2 bytes: as many as fit beside the activations of
// the stages (tokens x depth x 2) and the reduction. See docs/kernels/mlp_decode.md, "Tilings".
constexpr DecodeTiling kTilings[] = {
    {.tokens = 8, .rows = 32, .depth = 512, .stages = 5},
    {.tokens = 16, .rows = 64, .depth = 256, .stages = 5},
    {.tokens = 16, .rows = 32, .depth = 512, .stages = 4},
    {.tokens = 32, .rows = 64, .depth = 256, .stages = 4},
    {.tokens = 64, .rows = 64, .depth = 256, .stages = 3},
};
constexpr int kSplits[] = {1, kDecodeMaxSplit};

constexpr double kMemoryBytesPerUs = 34e3;  // of an SM: 4.5 TB/s over 132
constexpr double kMemoryLatencyUs = 2.5;    // 79 KB in flight stream 8 % slower than 155 KB
constexpr double kIngestBytesPerUs = 50e3;  // of an SM: 32 and 64 tokens, log of the kernel's page
constexpr double kPartsUs = 2.5;            // partial sums: a fence, an atomic and two trips to L2

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
  return std::max(weights / memory, (weights + activations) / kIngestBytesPerUs);
}

}  // namespace

std::span<const DecodeTiling> decode_tilings() noexcept { return kTilings; }

double decode_model_us(const DecodeTiling& t, const DecodeShape& s) noexcept {
  const auto m = static_cast<double>(s.m);
  const auto d = static_cast<double>(s.d);
  const auto h = static_cast<double>(s.h);
  const int ctas = decode_ctas(s.down ? s.d : s.h, s.sm_count, t.split);
  double us = 0;
  if (s.gate_up) {
    const double pairs = ceil_div(h, ctas);
    us += stream_us(t, 2 * pairs, t.rows, d, m);
  }
  if (s.down) {
    const double rows = ceil_div(d * t.split, ctas);
    us += stream_us(t, rows, t.rows, h / t.split, m);
    // Each CTA writes its sums, and the last of a group reads all.
    if (t.split > 1) us += kPartsUs + (1 + t.split) * rows * m * 4 / kIngestBytesPerUs;
  }
  return us;
}

std::size_t decode_ranked(const DecodeShape& shape, std::span<DecodeTiling> out) noexcept {
  std::array<DecodeTiling, std::size(kTilings) * std::size(kSplits)> ranked;
  std::size_t count = 0;
  int tokens = 0;  // of the narrowest tilings that hold m
  for (const int split : kSplits) {
    if (split > 1 && (!shape.down || shape.sm_count < split)) break;
    for (DecodeTiling tiling : kTilings) {
      if (tiling.tokens < shape.m) continue;
      if (tokens == 0) tokens = tiling.tokens;
      if (tiling.tokens != tokens) break;
      tiling.split = split;
      ranked[count++] = tiling;
    }
  }
  std::stable_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(count),
                   [&](const DecodeTiling& a, const DecodeTiling& b) {
                     return decode_model_us(a, shape) < decode_model_us(b, shape);
                   });
  std::copy_n(ranked.begin(), std::min(count, out.size()), out.begin());
  return count;
}

int decode_ctas(std::int64_t units, int sm_count, int split) noexcept {
  const int limit = split > 1 ? kDecodeMaxGroups : sm_count;
  const std::int64_t most = std::max(1, std::min(sm_count / split, limit));
  return static_cast<int>(std::clamp<std::int64_t>(units, 1, most)) * split;
}

void name_decode_tiling(const DecodeTiling& t, std::span<char> out) noexcept {
  if (t.split == 1) {
    std::snprintf(out.data(), out.size(), "t%dr%dk%ds%d", t.tokens, t.rows, t.depth, t.stages);
  } else {
    std::snprintf(out.data(), out.size(), "t%dr%dk%ds%dx%d", t.tokens, t.rows, t.depth, t.stages,
                  t.split);
  }
}

}  // namespace sluice::cuda::sm90
