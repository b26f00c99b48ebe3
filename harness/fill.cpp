// SPDX-License-Identifier: Apache-2.0
#include "harness/fill.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "harness/quantise.hpp"
#include "math/float_types.hpp"

namespace sluice::harness {
namespace {

// Every integer up to this is a number of the type, and of the fp32 accumulator.
std::int64_t largest_exact_integer(DType dtype) {
  const auto steps = static_cast<std::int64_t>(2.0 / epsilon(dtype));
  return std::min(steps, std::int64_t{1} << 24);
}

std::int64_t root(std::int64_t value, int degree) {
  auto r = static_cast<std::int64_t>(
      std::pow(static_cast<double>(value), 1.0 / static_cast<double>(degree)));
  const auto power = [degree](std::int64_t v) { return degree == 2 ? v * v : v * v * v; };
  while (power(r + 1) <= value) ++r;
  while (power(r) > value) --r;
  return r;
}

// Bounds of docs/numerics.md, "integers": magnitudes of entries and counts of non-zeros. Entries
// that are not named are -1 or 1.
struct IntegerPlan {
  bool exact = false;
  std::int64_t x_nonzeros = 1;       // in a row of x
  std::int64_t dy_nonzeros = 1;      // in a row of dy
  std::int64_t h_nonzeros = 1;       // in a row of h that is read
  std::int64_t w_down_nonzeros = 0;  // in a row of w_down; 0 for all
  std::int64_t w_in_nonzeros = 0;    // in a column of w_gate and w_up; 0 for all
  std::int64_t entry = 1;            // magnitude of g, u and dh that are read
};

IntegerPlan integer_plan(const Problem& p) {
  IntegerPlan plan;
  const std::int64_t x_most = largest_exact_integer(p.x_dtype);
  const std::int64_t y_most = largest_exact_integer(p.y_dtype);
  plan.exact = p.gate == Gate{.activation = Activation::kIdentity} && !p.norm.enabled;
  switch (p.op) {
    case Op::kGateUp:  // |g| <= nonzeros + bias, h = g u
      plan.x_nonzeros = root(x_most, 2) - 1;
      break;
    case Op::kMlp: {  // |y| <= pair^2 w_down_nonzeros + bias + residual
      const std::int64_t pair = std::min(root(x_most, 2), root(y_most, 3));
      plan.x_nonzeros = pair - 1;
      plan.w_down_nonzeros = (y_most - 2) / (pair * pair);
      break;
    }
    case Op::kDown:  // |y| <= nonzeros + bias + residual
      plan.h_nonzeros = y_most - 2;
      break;
    case Op::kGateMul:
    case Op::kGateMulGrad:
      plan.entry = root(x_most, 2);
      break;
    case Op::kGateUpGrad:  // |dh| <= dy_nonzeros
      plan.entry = plan.dy_nonzeros = root(x_most, 2);
      break;
    case Op::kNorm:
    case Op::kInputGrad:
    case Op::kWeightGrad:
    case Op::kColumnSum:
    case Op::kAllReduce:
      plan.exact = false;  // sums of as many terms as there are
      plan.x_nonzeros = p.d;
      break;
    case Op::kMlpGrad: {
      // |h|, |dg|, |du| <= pair^2; |dx| <= 2 w_in_nonzeros pair^2; |dw| <= m pair^2 + 1.
      const std::int64_t dw_most = largest_exact_integer(p.dw_dtype);
      const std::int64_t tokens = std::max<std::int64_t>(p.m, 1);
      const std::int64_t pair = std::min(root(x_most / 2, 3), root((dw_most - 1) / tokens, 2));
      plan.exact = plan.exact && pair >= 2;
      plan.entry = std::max<std::int64_t>(pair, 1);
      plan.dy_nonzeros = plan.entry;
      plan.x_nonzeros = std::max<std::int64_t>(pair - 1, 1);
      plan.w_in_nonzeros = std::max<std::int64_t>(x_most / (2 * plan.entry * plan.entry), 1);
      break;
    }
  }
  return plan;
}

// Length of the runs that hold one non-zero each, so that `count` runs cover `total`.
std::int64_t segment(std::int64_t total, std::int64_t count) {
  return count == 0 || total <= count ? 1 : (total + count - 1) / count;
}

void set_integers(const Problem& p, Operand operand, FillParams& out) {
  const IntegerPlan plan = integer_plan(p);
  const auto entry = static_cast<std::int32_t>(plan.entry);
  switch (operand) {
    case Operand::kX:
    case Operand::kXResidual:
      out.segment_cols = segment(p.d, plan.x_nonzeros);
      break;
    case Operand::kDy:
      out.segment_cols = segment(p.d, plan.dy_nonzeros);
      break;
    case Operand::kWGate:
    case Operand::kWUp:
      out.segment_rows = segment(p.h, plan.w_in_nonzeros);
      break;
    case Operand::kWDown:
      out.segment_cols = segment(p.h, plan.w_down_nonzeros);
      break;
    case Operand::kH:
      out.segment_cols = segment(p.h, plan.h_nonzeros);
      break;
    case Operand::kG:
    case Operand::kU:
    case Operand::kDh:
      out.max_int = entry;
      break;
    default:
      break;
  }
}

void set_normal(const Problem& p, Operand operand, FillParams& out) {
  const auto inverse_root = [](std::int64_t n) {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(std::max<std::int64_t>(n, 1))));
  };
  switch (operand) {
    case Operand::kWGate:
      out.scale = inverse_root(p.d);
      break;
    case Operand::kWUp:
      out.scale = 2.0F * inverse_root(p.d);
      break;
    case Operand::kWDown:
      out.scale = inverse_root(p.h);
      break;
    case Operand::kU:
      out.scale = 2.0F;
      break;
    case Operand::kBGate:
    case Operand::kBUp:
    case Operand::kBDown:
      out.scale = 0.5F;
      break;
    case Operand::kNormWeight:
      out.scale = 0.25F;
      out.offset = 1.0F;
      break;
    default:
      break;
  }
}

// Elementwise operands hold many special values. One of them in a matrix that is multiplied spreads
// over a row or column of the result, so there only about three are placed.
std::uint32_t special_period(const OperandSpec& spec) {
  constexpr std::int64_t kDense = 7;
  const bool elementwise =
      spec.id == Operand::kG || spec.id == Operand::kU || spec.id == Operand::kDh;
  if (elementwise) return kDense;
  const std::int64_t period = std::max(kDense, spec.rows * spec.cols / 3);
  return static_cast<std::uint32_t>(std::min<std::int64_t>(period, 1 << 24));
}

void set_range(DType dtype, FillParams& out) {
  switch (dtype) {
    case DType::kBF16:
      out.largest = 0x1.FEp127F;
      out.smallest = 0x1p-133F;
      break;
    case DType::kF16:
    case DType::kQ8_0:  // of a block's scale
    case DType::kQ4_0:
    case DType::kQ4_1:
      out.largest = 65504.0F;
      out.smallest = 0x1p-24F;
      break;
    case DType::kF32:
    case DType::kF64:
      out.largest = std::numeric_limits<float>::max();
      out.smallest = std::numeric_limits<float>::denorm_min();
      break;
  }
}

void write(void* to, DType dtype, float value) {
  if (dtype == DType::kBF16) {
    const math::BF16 v = math::to_bf16(value);
    std::memcpy(to, &v, sizeof(v));
  } else {
    math::store(to, dtype, static_cast<double>(value));
  }
}

// Blocks of one row. Integers are held exactly; what is special about a block is its scale.
void fill_blocks(const OperandSpec& spec, const FillParams& params, std::int64_t row, char* start) {
  FillParams plain = params;
  if (params.fill == Fill::kSpecial) plain.fill = Fill::kNormal;
  const auto period = std::max<std::uint64_t>(params.special_period / kBlockElems, 1);
  std::array<float, kBlockElems> values{};
  for (std::int64_t col = 0; col < spec.cols; col += kBlockElems) {
    char* const block = start + bytes_of(spec.dtype, col);
    for (std::size_t j = 0; j < values.size(); ++j) {
      values[j] = fill_value(plain, row, col + static_cast<std::int64_t>(j));
    }
    if (params.fill == Fill::kIntegers) {
      encode_units(spec.dtype, values, static_cast<int>((row + col / kBlockElems) % 3), block);
      continue;
    }
    quantise_block(spec.dtype, values, block);
    const std::uint64_t bits = detail::draw(params.key, row, col, 3);
    if (params.fill == Fill::kSpecial && (bits >> 8) % period == 0) {
      set_block_scale(block, detail::special_value(params, bits & 31));
    }
  }
}

void fill_rows(const OperandSpec& spec, const FillParams& params, char* base, std::int64_t first,
               std::int64_t last) {
  const std::int64_t elem = size_bytes(spec.dtype);
  for (std::int64_t row = first; row < last; ++row) {
    char* const start = base + offset_bytes(spec.layout, spec.dtype, row, 0);
    if (is_block_type(spec.dtype)) {
      fill_blocks(spec, params, row, start);
      continue;
    }
    for (std::int64_t col = 0; col < spec.cols; ++col) {
      char* const to = spec.layout.block_cols == 0
                           ? start + col * elem
                           : base + offset_bytes(spec.layout, spec.dtype, row, col);
      write(to, spec.dtype, fill_value(params, row, col));
    }
  }
}

}  // namespace

FillParams fill_params(const Problem& problem, Operand operand, Fill fill, std::uint64_t seed) {
  const OperandSpec spec = operand_specs(problem)[static_cast<std::size_t>(operand)];
  FillParams out;
  out.fill = fill;
  out.key = detail::mix(detail::mix(seed + 0x9E3779B97F4A7C15ULL) +
                        static_cast<std::uint64_t>(operand) + 1);
  if (fill == Fill::kIntegers) {
    set_integers(problem, operand, out);
    return out;
  }
  set_normal(problem, operand, out);
  if (fill == Fill::kSpecial) {
    out.special_period = special_period(spec);
    set_range(spec.dtype, out);
    out.limit = std::isfinite(problem.gate.limit) ? problem.gate.limit : 1.0F;
  }
  return out;
}

bool exact_integers(const Problem& problem) { return integer_plan(problem).exact; }

void fill_matrix(const OperandSpec& spec, const FillParams& params, void* base) {
  auto* const bytes = static_cast<char*>(base);
  const std::int64_t rows = spec.layout.row_stride_bytes == 0 && spec.layout.block_rows == 0
                                ? std::min<std::int64_t>(spec.rows, 1)
                                : spec.rows;
  constexpr std::int64_t kElemsPerThread = 1 << 20;
  const std::int64_t threads =
      std::min({static_cast<std::int64_t>(std::max(1U, std::thread::hardware_concurrency())), rows,
                1 + rows * spec.cols / kElemsPerThread});
  if (threads <= 1) return fill_rows(spec, params, bytes, 0, rows);
  std::vector<std::jthread> workers;
  for (std::int64_t t = 0; t < threads; ++t) {
    workers.emplace_back(
        [&spec, &params, bytes, first = rows * t / threads, last = rows * (t + 1) / threads] {
          fill_rows(spec, params, bytes, first, last);
        });
  }
}

const char* to_string(Fill fill) noexcept {
  switch (fill) {
    case Fill::kNormal:
      return "normal";
    case Fill::kIntegers:
      return "integers";
    case Fill::kSpecial:
      return "special";
  }
  return "invalid fill";
}

}  // namespace sluice::harness
