// SPDX-License-Identifier: Apache-2.0
#include "core/overlap.hpp"

#include <algorithm>

namespace sluice::detail {
namespace {

// A matrix as units (rows, or blocks of rows) at a fixed period, and each unit as parts (blocks of
// columns, or the rows of a block) at a fixed period: contiguous runs of bytes. Validation makes
// them nest: a unit ends before the next one begins, a part too. A period is 0 where there is one.
struct Pattern {
  std::int64_t units = 1;
  std::int64_t unit_period = 0;
  std::int64_t unit_length = 0;
  std::int64_t parts = 1;       // of a unit
  std::int64_t last_parts = 1;  // of the last unit
  std::int64_t part_period = 0;
  std::int64_t part_length = 0;
  std::int64_t last_length = 0;  // of a unit's last part

  [[nodiscard]] std::int64_t runs() const { return (units - 1) * parts + last_parts; }
  [[nodiscard]] std::int64_t parts_of(std::int64_t unit) const {
    return unit + 1 == units ? last_parts : parts;
  }
  [[nodiscard]] std::int64_t length_of(std::int64_t part) const {
    return part + 1 == parts ? last_length : part_length;
  }
};

Pattern pattern_of(const OperandSpec& spec) {
  const Layout& l = spec.layout;
  Pattern p;
  p.part_length = p.last_length = p.unit_length = bytes_of(spec.dtype, spec.cols);
  // A stride of 0 is one row, repeated.
  const std::int64_t rows = l.row_stride_bytes == 0 ? 1 : spec.rows;
  if (l.block_rows > 0) {
    p.parts = std::min(l.block_rows, rows);
    p.part_period = p.parts > 1 ? l.row_stride_bytes : 0;
    p.units = spec.rows == 0 ? 0 : (spec.rows - 1) / l.block_rows + 1;  // a block may be endless
    p.unit_period = p.units > 1 ? l.block_stride_bytes : 0;
    p.unit_length += (p.parts - 1) * p.part_period;
    p.last_parts = std::min(p.parts, spec.rows - (p.units - 1) * l.block_rows);
    return p;
  }
  p.units = rows;
  p.unit_period = rows > 1 ? l.row_stride_bytes : 0;
  if (l.block_cols > 0 && spec.cols > l.block_cols) {
    p.parts = p.last_parts = (spec.cols + l.block_cols - 1) / l.block_cols;
    p.part_period = l.col_block_stride_bytes;
    p.part_length = l.block_cols * size_bytes(spec.dtype);
    p.last_length = bytes_of(spec.dtype, spec.cols - (p.parts - 1) * l.block_cols);
    p.unit_length = (p.parts - 1) * p.part_period + p.last_length;
  }
  return p;
}

// The first of things of `length` at multiples of `period` that ends behind `begin`.
std::int64_t first_behind(std::int64_t begin, std::int64_t length, std::int64_t period) {
  return begin < length || period == 0 ? 0 : (begin - length) / period + 1;
}

// The last of `count` things at multiples of `period` that begins before `end`, which is above 0.
std::int64_t last_before(std::int64_t end, std::int64_t count, std::int64_t period) {
  return period == 0 ? count - 1 : std::min(count - 1, (end - 1) / period);
}

// Does a run of `p` have a byte in [begin, end)? At most two units and two parts are looked at: one
// that begins inside has.
bool meets(const Pattern& p, std::int64_t begin, std::int64_t end) {
  if (end <= 0) return false;
  const std::int64_t last_unit = last_before(end, p.units, p.unit_period);
  for (std::int64_t i = first_behind(begin, p.unit_length, p.unit_period); i <= last_unit; ++i) {
    const std::int64_t from = begin - i * p.unit_period;
    const std::int64_t to = end - i * p.unit_period;
    if (from <= 0) return true;
    const std::int64_t last_part = last_before(to, p.parts_of(i), p.part_period);
    for (std::int64_t j = first_behind(from, p.part_length, p.part_period); j <= last_part; ++j) {
      if (j * p.part_period + p.length_of(j) > from) return true;
    }
  }
  return false;
}

// Does no run of `few`, which begins `distance` bytes behind `many`, meet one of `many`?
bool runs_clear(const Pattern& few, const Pattern& many, std::int64_t distance) {
  for (std::int64_t i = 0; i < few.units; ++i) {
    for (std::int64_t j = 0; j < few.parts_of(i); ++j) {
      const std::int64_t begin = distance + i * few.unit_period + j * few.part_period;
      if (meets(many, begin, begin + few.length_of(j))) return false;
    }
  }
  return true;
}

// Do the parts of a unit of `later`, which begins `distance` bytes after a unit of `earlier`, all
// fall behind it or into the gaps between its parts?
bool units_clear(const Pattern& earlier, const Pattern& later, std::int64_t distance) {
  if (distance >= earlier.unit_length) return true;
  if (earlier.part_period <= 0) return false;
  const std::int64_t phase = distance % earlier.part_period;
  return phase >= earlier.part_length && phase + later.part_length <= earlier.part_period;
}

// Two matrices of one Layout: do they interleave without touching? A unit of the higher one meets
// two of the lower one: the last that begins before it and the next.
bool interleave(const Pattern& low, const Pattern& high, std::int64_t distance_bytes) {
  const std::int64_t period = std::max(low.unit_period, high.unit_period);
  if (period <= 0) return units_clear(low, high, distance_bytes);
  const std::int64_t distance = distance_bytes % period;
  return units_clear(low, high, distance) && units_clear(high, low, period - distance);
}

}  // namespace

bool share_no_byte(const OperandSpec& low, const OperandSpec& high,
                   std::int64_t distance_bytes) noexcept {
  const Pattern a = pattern_of(low);
  const Pattern b = pattern_of(high);
  if (low.layout == high.layout && interleave(a, b, distance_bytes)) return true;
  if (std::min(a.runs(), b.runs()) > kMostRuns) return false;
  return a.runs() < b.runs() ? runs_clear(a, b, -distance_bytes) : runs_clear(b, a, distance_bytes);
}

}  // namespace sluice::detail
