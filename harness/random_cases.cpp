// SPDX-License-Identifier: Apache-2.0
#include "harness/random_cases.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "harness/fill.hpp"

namespace sluice::harness {
namespace {

// 64 random bits for each thing that is drawn of a problem.
class Draw {
 public:
  Draw(std::uint64_t seed, std::size_t index)
      : key_(detail::mix(seed + 0x9E3779B97F4A7C15ULL)), index_(static_cast<std::int64_t>(index)) {}

  std::uint64_t bits() { return detail::draw(key_, index_, 0, ++lane_); }
  bool one_in(std::uint64_t count) { return bits() % count == 0; }
  template <class T, std::size_t kCount>
  T of(const T (&list)[kCount]) {
    return list[bits() % kCount];
  }

 private:
  std::uint64_t key_;
  std::int64_t index_;
  std::uint64_t lane_ = 0;
};

// The largest integer whose square is at most `value`, which is below 2^64 - 2^33.
std::uint64_t square_root(std::uint64_t value) {
  std::uint64_t root = 0;
  for (std::uint64_t bit = std::uint64_t{1} << 31; bit != 0; bit >>= 1) {
    if ((root + bit) * (root + bit) <= value) root += bit;
  }
  return root;
}

// An integer from least to most, its logarithm uniform: each bit halves what is left at the
// geometric mean of its ends. In integers, because logarithms are rounded as a platform likes.
std::int64_t log_uniform(std::uint64_t bits, std::int64_t least, std::int64_t most) {
  constexpr int kFraction = 11;  // bits behind the point
  // 2^20 : 1 takes 36 halvings down to one unit.
  constexpr int kHalvings = 40;
  std::uint64_t low = static_cast<std::uint64_t>(least) << kFraction;
  std::uint64_t high = static_cast<std::uint64_t>(most + 1) << kFraction;
  for (int i = 0; i < kHalvings; ++i, bits >>= 1) {
    const std::uint64_t middle = square_root(low * high);
    ((bits & 1) != 0 ? low : high) = middle;
  }
  return static_cast<std::int64_t>(low >> kFraction);
}

// H/D of models: gpt-oss, Llama-3.2-3B, Qwen2.5-14B, Qwen3-0.6B, Llama-3.1-405B, Llama-3.1-8B,
// Gemma, Qwen2.5-7B, Qwen2.5-32B, Gemma-2-27B.
struct Ratio {
  std::int64_t h, d;
};
constexpr Ratio kRatios[] = {{1, 1}, {8, 3}, {27, 10}, {3, 1},  {13, 4},
                             {7, 2}, {4, 1}, {37, 7},  {27, 5}, {8, 1}};
constexpr std::int64_t kTp[] = {1, 2, 4, 8};
constexpr const char* kGates[] = {"silu",    "gelu_tanh", "gelu_erf",      "relu",
                                  "sigmoid", "identity",  "clamped_swiglu"};

constexpr std::int64_t kLeastD = 1024, kMostD = 16384;
constexpr std::int64_t kLeastH = 512, kMostH = 65536;

std::int64_t draw_h(Draw& draw, std::int64_t d, std::int64_t step) {
  const Ratio ratio = draw.of(kRatios);
  const std::int64_t tp = draw.of(kTp);
  const std::int64_t odd = step * log_uniform(draw.bits(), kLeastH / step, kMostH / step);
  if (draw.one_in(2)) return odd;
  const std::int64_t h = d * ratio.h / ratio.d / tp;
  return std::clamp((h + step / 2) / step * step, kLeastH, kMostH);
}

std::string draw_placement(Draw& draw, std::int64_t step) {
  const std::uint64_t kind = draw.bits() % 3;
  const std::string order = draw.one_in(2) ? "+up_first" : "";
  const std::int64_t blocks[] = {1, 8, step};
  const std::int64_t block = draw.of(blocks);
  if (kind == 0) return "separate";
  return (kind == 1 ? "concat" : fmt::format("interleaved{}", block)) + order;
}

}  // namespace

std::string random_case(std::uint64_t seed, std::size_t index, const TokenRange& tokens) {
  Draw draw(seed, index);
  const std::int64_t m = log_uniform(draw.bits(), tokens.least, tokens.most);
  const std::int64_t step = draw.one_in(4) ? 128 : 8;
  const std::int64_t d = step * log_uniform(draw.bits(), kLeastD / step, kMostD / step);
  const std::int64_t h = draw_h(draw, d, step);
  const std::string gate = draw.of(kGates);
  return fmt::format("{}x{}x{}:{}:{}", m, d, h, gate, draw_placement(draw, step));
}

}  // namespace sluice::harness
