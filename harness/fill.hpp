// SPDX-License-Identifier: Apache-2.0
// Fill: seeded test data. Every element is a function of (key, row, col) alone, in integer
// arithmetic and at most one fp32 multiplication, so that host and device, any layout and any order
// of filling give the same bits, and an element can be recomputed where it is needed.
// Source of the mixer: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
#pragma once

#include <cstdint>
#include <limits>

#include "math/gate.hpp"  // SLUICE_HOST_DEVICE
#include "sluice/operands.hpp"
#include "sluice/problem.hpp"

namespace sluice::harness {

/// What the inputs of a case hold.
enum class Fill : std::uint8_t {
  kNormal = 0,    ///< normal-random, scaled so that g, u, h and y are of order 1
  kIntegers = 1,  ///< small integers: with the identity gate every result is exact (exact_integers)
  kSpecial = 2,  ///< normal-random with NaN, infinities, subnormals, -0, huge values and the gate's
                 ///< limits placed sparsely
};

/// How the elements of one matrix are drawn. Plain data: goes to a device kernel by value.
struct FillParams {
  Fill fill = Fill::kNormal;
  std::uint64_t key = 0;  ///< of (seed, operand)
  float scale = 1.0F;     ///< kNormal, kSpecial: standard deviation
  float offset = 0.0F;    ///< kNormal, kSpecial: mean; a multiple of 2^-16 · scale keeps it exact
  std::int32_t max_int = 1;          ///< kIntegers: magnitudes are 1 to this
  std::int64_t segment_cols = 1;     ///< kIntegers: one non-zero in each run of this many columns
  std::int64_t segment_rows = 1;     ///< kIntegers: and in each run of this many rows
  std::uint32_t special_period = 0;  ///< kSpecial: one element in this many is special
  float limit = 0.0F;                ///< kSpecial: the gate's clamp
  float largest = 0.0F;              ///< kSpecial: the largest finite number of the type
  float smallest = 0.0F;             ///< kSpecial: the smallest subnormal that fp32 also holds
  float infinity = std::numeric_limits<float>::infinity();
  float nan = std::numeric_limits<float>::quiet_NaN();
};

namespace detail {

SLUICE_HOST_DEVICE std::uint64_t mix(std::uint64_t v) {
  v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9ULL;
  v = (v ^ (v >> 27)) * 0x94D049BB133111EBULL;
  return v ^ (v >> 31);
}

// 64 random bits of one element; `lane` tells several draws for the same element apart.
SLUICE_HOST_DEVICE std::uint64_t draw(std::uint64_t key, std::int64_t row, std::int64_t col,
                                      std::uint64_t lane) {
  const std::uint64_t r = mix(key + static_cast<std::uint64_t>(row) * 0x9E3779B97F4A7C15ULL);
  return mix(r + (4 * static_cast<std::uint64_t>(col) + lane) * 0xD1B54A32D192ED03ULL);
}

SLUICE_HOST_DEVICE std::int32_t sum_of_16_bit_words(std::uint64_t v) {
  return static_cast<std::int32_t>((v & 0xFFFF) + ((v >> 16) & 0xFFFF) + ((v >> 32) & 0xFFFF) +
                                   (v >> 48));
}

// Irwin-Hall: the sum of twelve uniform words has variance 2^32 (1 - 2^-32) and mean 393210.
// The result is exact in fp32, within (-6, 6).
SLUICE_HOST_DEVICE float standard_normal(std::uint64_t key, std::int64_t row, std::int64_t col) {
  const std::int32_t sum = sum_of_16_bit_words(draw(key, row, col, 0)) +
                           sum_of_16_bit_words(draw(key, row, col, 1)) +
                           sum_of_16_bit_words(draw(key, row, col, 2));
  return static_cast<float>(sum - 393210) * 0x1p-16F;
}

SLUICE_HOST_DEVICE float small_integer(const FillParams& p, std::int64_t row, std::int64_t col) {
  // Position of the one non-zero of this segment, in columns and in rows.
  if (p.segment_cols > 1) {
    const std::int64_t segment = col / p.segment_cols;
    const auto at = draw(p.key, row, segment, 2) % static_cast<std::uint64_t>(p.segment_cols);
    if (static_cast<std::uint64_t>(col % p.segment_cols) != at) return 0.0F;
  }
  if (p.segment_rows > 1) {
    const std::int64_t segment = row / p.segment_rows;
    const auto at = draw(p.key, segment, col, 3) % static_cast<std::uint64_t>(p.segment_rows);
    if (static_cast<std::uint64_t>(row % p.segment_rows) != at) return 0.0F;
  }
  const std::uint64_t bits = draw(p.key, row, col, 0);
  const auto magnitude =
      static_cast<float>(1 + (bits >> 1) % static_cast<std::uint64_t>(p.max_int));
  return (bits & 1) != 0 ? -magnitude : magnitude;
}

SLUICE_HOST_DEVICE float special_value(const FillParams& p, std::uint64_t choice) {
  const float sign = (choice & 16) != 0 ? -1.0F : 1.0F;
  switch (choice & 15) {
    case 0:
      return p.nan;
    case 1:
      return sign * p.infinity;
    case 2:
      return sign * p.largest;
    case 3:
      return sign * p.smallest;
    case 4:
    case 5:
      return sign * 0.0F;
    case 6:
    case 7:
    case 8:
      return sign * p.limit;  // on the clamp's boundary, which counts as inside
    case 9:
    case 10:
      return sign * 2.0F * p.limit;
    default:
      return sign * 64.0F;  // saturates every sigmoid
  }
}

}  // namespace detail

/// Element (row, col) before its one rounding, to nearest even, to the operand's type (before its
/// block is quantised, of a block type).
SLUICE_HOST_DEVICE float fill_value(const FillParams& p, std::int64_t row, std::int64_t col) {
  if (p.fill == Fill::kIntegers) return detail::small_integer(p, row, col);
  if (p.fill == Fill::kSpecial) {
    const std::uint64_t bits = detail::draw(p.key, row, col, 3);
    if ((bits >> 8) % p.special_period == 0) return detail::special_value(p, bits & 31);
  }
  const float value = p.scale * detail::standard_normal(p.key, row, col);
#if defined(__CUDA_ARCH__)
  return __fadd_rn(value, p.offset);  // not fused: the host rounds twice
#else
  return value + p.offset;
#endif
}

/// The parameters for one operand of a problem.
///
/// Normal: x ~ N(0, 1); w_gate ~ N(0, 1/D), w_up ~ N(0, 4/D) (twice w_gate's deviation, so that a
/// swap shows), w_down ~ N(0, 1/H), biases ~ N(0, 1/4), norm_weight ~ N(1, 1/16), residual, dy,
/// dh, g ~ N(0, 1), u ~ N(0, 4), gradients that are accumulated into ~ N(0, 1).
/// Integers: counts of non-zeros chosen from D, H and the types so that with the identity gate no
/// result and no partial sum needs rounding; derivation in docs/numerics.md.
[[nodiscard]] FillParams fill_params(const Problem& problem, Operand operand, Fill fill,
                                     std::uint64_t seed);

/// True where a problem filled with Fill::kIntegers has exact results on every path: identity gate
/// with neutral parameters, no norm, and dims and types whose bounds fit (docs/numerics.md).
[[nodiscard]] bool exact_integers(const Problem& problem);

/// Fills a matrix in host memory by calling fill_value for each element. A row stride of 0 holds
/// row 0. Values of a block type are quantised (harness/quantise.hpp), integers held exactly, and
/// of kSpecial the special values are scales of blocks. Uses all hardware threads for large
/// matrices.
void fill_matrix(const OperandSpec& spec, const FillParams& params, void* base);

[[nodiscard]] const char* to_string(Fill fill) noexcept;

}  // namespace sluice::harness
