// SPDX-License-Identifier: Apache-2.0
#include "harness/oracle.hpp"

#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "harness/uncertain_row.hpp"
#include "math/block_types.hpp"

namespace sluice::harness {
namespace {

// A matrix in host memory, read a row or a column at a time as doubles. Null reads as absent.
class Matrix {
 public:
  Matrix(const OperandSpec& spec, const Operands& operands)
      : spec_(spec),
        base_(spec.access == Access::kUnused
                  ? nullptr
                  : static_cast<const char*>(address(operands, spec.id))) {}

  [[nodiscard]] bool present() const { return base_ != nullptr; }
  [[nodiscard]] std::int64_t rows() const { return spec_.rows; }
  [[nodiscard]] std::int64_t cols() const { return spec_.cols; }

  [[nodiscard]] double at(std::int64_t row, std::int64_t col) const {
    if (!present()) return 0.0;
    return math::load(base_ + offset_bytes(spec_.layout, spec_.dtype, row, col), spec_.dtype, col);
  }

  void read_row(std::int64_t row, std::vector<double>& out) const {
    out.resize(static_cast<std::size_t>(spec_.cols));
    const char* const start = base_ + offset_bytes(spec_.layout, spec_.dtype, row, 0);
    const bool converted = spec_.dtype == DType::kF16 || is_block_type(spec_.dtype);
    if (spec_.layout.block_cols != 0 || converted) {
      for (std::int64_t c = 0; c < spec_.cols; ++c) out[static_cast<std::size_t>(c)] = at(row, c);
    } else if (spec_.dtype == DType::kBF16) {
      widen<math::BF16>(start, out, [](math::BF16 v) { return math::widen(v); });
    } else if (spec_.dtype == DType::kF32) {
      widen<float>(start, out, [](float v) { return v; });
    } else {
      widen<double>(start, out, [](double v) { return v; });
    }
  }

  void read_col(std::int64_t col, std::vector<double>& out) const {
    out.resize(static_cast<std::size_t>(spec_.rows));
    for (std::int64_t r = 0; r < spec_.rows; ++r) out[static_cast<std::size_t>(r)] = at(r, col);
  }

 private:
  template <class T, class Convert>
  static void widen(const char* start, std::vector<double>& out, const Convert& convert) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      T v{};
      std::memcpy(&v, start + i * sizeof(T), sizeof(T));
      out[i] = static_cast<double>(convert(v));
    }
  }

  OperandSpec spec_;
  const char* base_;
};

// h, dg and du along a row (all j of one token) or a column (all tokens of one j).
struct GradLine {
  UncertainRow h, dg, du;
};

}  // namespace

struct Oracle::State {
  Problem p;
  Operands inputs;
  std::array<OperandSpec, kOperandCount> specs;
  Rounding rounding;
  bool exact = false;
  Errors of_tokens = Errors::kIndependent;  // a broadcast token's error comes M times

  State(const Problem& problem, const Operands& operands, Rounds rounds)
      : p(problem), inputs(operands), specs(operand_specs(problem)), rounding(problem, rounds) {
    for (const OperandSpec& spec : specs) {
      const bool broadcast = spec.rows > 1 && spec.layout.row_stride_bytes == 0;
      if (spec.access == Access::kRead && broadcast) of_tokens = Errors::kAlike;
    }
  }

  [[nodiscard]] Matrix matrix(Operand id) const {
    return {specs[static_cast<std::size_t>(id)], inputs};
  }

  // Caches, by row or column. Elements of r and n, of h, and of the gradients.
  struct Prologue {
    UncertainRow r, n;
    std::optional<double> late_scale;  // where a kernel may scale g and u instead of n
  };
  std::map<std::int64_t, Prologue> prologues;
  std::map<std::int64_t, UncertainRow> h_rows;
  std::map<std::int64_t, std::vector<Uncertain>> dh_rows;
  std::map<std::int64_t, GradLine> grad_rows;
  std::map<std::int64_t, GradLine> grad_cols;

  const Prologue& prologue(std::int64_t m);
  Uncertain sum(const TermSums& products, std::span<const Uncertain> addends, DType dtype);
  Uncertain project(Operand weight, Operand bias, std::int64_t m, std::int64_t j);
  Uncertain h_at(std::int64_t m, std::int64_t j);
  const UncertainRow& h_row(std::int64_t m);
  Uncertain y_at(std::int64_t m, std::int64_t i);
  GateGradErrors grad_at(std::int64_t m, std::int64_t j, const Uncertain& dh);
  Uncertain dh_at(std::int64_t m, std::int64_t j, const std::vector<double>& w_down_col);
  const std::vector<Uncertain>& dh_row(std::int64_t m);
  const GradLine& grad_row(std::int64_t m);
  const GradLine& grad_col(std::int64_t j);
  Uncertain dx_at(std::int64_t m, std::int64_t i);
  [[nodiscard]] Uncertain dx_of(const TermSums& of_gate, const TermSums& of_up) const;
  Uncertain weight_grad(Operand out, const UncertainRow& left, const std::vector<double>& right,
                        std::int64_t row, std::int64_t col);
  Uncertain mlp_grad_at(Operand out, std::int64_t row, std::int64_t col);
  Uncertain norm_at(Operand out, std::int64_t row, std::int64_t col);
  Uncertain given_grad_at(Operand out, std::int64_t row, std::int64_t col);
  Uncertain element(Operand out, std::int64_t row, std::int64_t col);

 private:
  [[nodiscard]] Uncertain dh_of(const TermSums& sums) const {
    const Uncertain dh = rounding.dot(sums);
    return rounding.unfused() ? rounding.stored(dh, p.x_dtype) : dh;
  }
  void push_grad(GradLine& line, const GateGradErrors& grad) const {
    line.h.push(rounding.stored(grad.h, p.x_dtype));
    line.dg.push(rounding.stored(grad.dg, p.x_dtype));
    line.du.push(rounding.stored(grad.du, p.x_dtype));
  }
};

// r and n of one token; see sluice::Norm. A kernel may round r, the mean and n on the way.
const Oracle::State::Prologue& Oracle::State::prologue(std::int64_t m) {
  if (const auto it = prologues.find(m); it != prologues.end()) return it->second;
  Prologue out;
  const Matrix x = matrix(Operand::kX);
  const Matrix x_residual = matrix(Operand::kXResidual);
  const Matrix weight = matrix(Operand::kNormWeight);
  const double u = rounding.accumulator();
  const double r_error = p.norm.add ? 0.5 * epsilon(p.x_dtype) : 0.0;
  double squares = 0;
  double fourths = 0;
  for (std::int64_t i = 0; i < p.d; ++i) {
    Uncertain r{.value = x.at(m, i) + x_residual.at(m, i)};
    if (p.norm.add) {
      r.bound = r.spread = u * std::fabs(r.value);
      r = rounding.stored(r, p.x_dtype);
    }
    squares += r.value * r.value;
    fourths += r.value * r.value * r.value * r.value;
    out.r.push(r);
  }
  if (!p.norm.enabled) {
    out.n = out.r;
    round_to_fixed(rounding, out.n);
    return prologues.emplace(m, std::move(out)).first->second;
  }
  const auto d = static_cast<double>(p.d);
  const double scale = 1.0 / std::sqrt(squares / d + static_cast<double>(p.norm.eps));
  // Relative error of the mean square: of its sum (all terms positive), and of the roundings of r
  // behind it; half of it reaches the scale. Two ulps for the reciprocal root, the rest for the
  // products.
  const double of_r =
      squares > 0 && std::isfinite(squares)
          ? std::min(2 * r_error, rounding.likely(2 * r_error * std::sqrt(fourths)) / squares)
          : 0.0;
  const double of_sum = std::min((d + 1) * u, rounding.likely(std::sqrt(d + 1) * u));
  const bool overflow = std::isfinite(squares) && squares > rounding.accumulator_max();
  // The scale of a sum that overflows is 0: it errs by all of itself.
  const double scale_error = overflow ? 1.0 : 0.5 * (of_r + of_sum + 2 * u) + 4 * u;
  // In bf16, with fp32's range, a kernel may round r (w + offset), one fma for these offsets, and
  // multiply g and u by the scale.
  const bool late = p.op != Op::kNorm && p.x_dtype == DType::kBF16 && p.w_dtype == DType::kBF16 &&
                    (p.norm.weight_offset == 0 || p.norm.weight_offset == 1);
  if (late) out.late_scale = scale;
  for (std::int64_t i = 0; i < p.d; ++i) {
    const auto k = static_cast<std::size_t>(i);
    const double unscaled = weight.at(0, i) + static_cast<double>(p.norm.weight_offset);
    const double factor = scale * unscaled;
    Uncertain n{.value = out.r.value[k] * factor};
    n.bound = out.r.bound[k] * std::fabs(factor);
    n.spread = out.r.spread[k] * std::fabs(factor);
    n.bound += 4 * u * std::fabs(n.value);
    n.spread = std::hypot(n.spread, 4 * u * std::fabs(n.value));
    n.common = scale_error * n.value;
    if (rounding.unfused()) {  // the normalised row, before its weights
      const double step = rounding_error(out.r.value[k] * scale, p.x_dtype) * std::fabs(unscaled);
      n.bound += step;
      n.spread = std::hypot(n.spread, step);
    }
    if (p.op == Op::kNorm) {  // of r times the scale, where that is subnormal
      const double subnormal = 2 * u * rounding.flushed() * (1 + std::fabs(unscaled));
      n.bound += subnormal;
      n.spread += subnormal;
    }
    n.may_overflow = overflow || out.r.may_overflow;
    if (late && std::isfinite(n.value)) {
      const Uncertain product = rounding.stored({.value = out.r.value[k] * unscaled}, p.x_dtype);
      n.may_overflow = n.may_overflow || product.may_overflow;
      n.bound += rounding.flushed() * scale;
      n.spread += rounding.flushed() * scale;
    }
    out.n.push(p.op == Op::kNorm ? n : rounding.stored(n, p.x_dtype));  // y is rounded once
  }
  round_to_fixed(rounding, out.n);
  return prologues.emplace(m, std::move(out)).first->second;
}

// A dot product and what is added to it: in one sum, or by an unfused program one after another,
// each time from a result that is stored.
Uncertain Oracle::State::sum(const TermSums& products, std::span<const Uncertain> addends,
                             DType dtype) {
  if (rounding.unfused()) {
    Uncertain out = rounding.dot(products);
    for (const Uncertain& addend : addends) out = rounding.added(out, addend, dtype);
    return out;
  }
  TermSums sums = products;
  for (const Uncertain& addend : addends) {
    add_term(sums, addend.value);
    sums.bound += addend.bound;
    sums.square += addend.spread * addend.spread;
  }
  return rounding.dot(sums);
}

// g or u of one element: n·w^T + b.
Uncertain Oracle::State::project(Operand weight, Operand bias, std::int64_t m, std::int64_t j) {
  static thread_local std::vector<double> row;
  matrix(weight).read_row(j, row);
  const Prologue& head = prologue(m);
  const UncertainRow& n = head.n;
  TermSums sums = p.norm.enabled || rounding.fixed_tokens()
                      ? dot_uncertain(n, row.data())
                      : dot_exact(n.value.data(), row.data(), row.size());
  if (head.late_scale) {
    sums.scale = *head.late_scale;
    sums.terms += 1;  // its rounding
  }
  Uncertain addend;
  std::size_t addends = 0;
  if (const Matrix b = matrix(bias); b.present()) addend.value = b.at(0, j), addends = 1;
  const Uncertain out = sum(sums, {&addend, addends}, p.x_dtype);
  const bool is_stored = p.op == Op::kMlpGrad || rounding.unfused();
  return is_stored ? rounding.stored(out, p.x_dtype) : out;
}

Uncertain Oracle::State::h_at(std::int64_t m, std::int64_t j) {
  if (p.op == Op::kGateMul) {
    return rounding.gate_mul({.value = matrix(Operand::kG).at(m, j)},
                             {.value = matrix(Operand::kU).at(m, j)});
  }
  return rounding.gate_mul(project(Operand::kWGate, Operand::kBGate, m, j),
                           project(Operand::kWUp, Operand::kBUp, m, j));
}

// The row that the down projection reads: exact for kDown; for kMlp a kernel may round it.
const UncertainRow& Oracle::State::h_row(std::int64_t m) {
  if (const auto it = h_rows.find(m); it != h_rows.end()) return it->second;
  UncertainRow row;
  if (p.op == Op::kDown) {
    const Matrix h = matrix(Operand::kH);
    for (std::int64_t j = 0; j < p.h; ++j) row.push({.value = h.at(m, j)});
  } else {
    for (std::int64_t j = 0; j < p.h; ++j) row.push(rounding.stored(h_at(m, j), p.x_dtype));
  }
  round_to_fixed(rounding, row);
  return h_rows.emplace(m, std::move(row)).first->second;
}

Uncertain Oracle::State::y_at(std::int64_t m, std::int64_t i) {
  static thread_local std::vector<double> row;
  matrix(Operand::kWDown).read_row(i, row);
  const TermSums products = dot_uncertain(h_row(m), row.data());
  std::vector<Uncertain> addends;
  if (const Matrix b = matrix(Operand::kBDown); b.present()) addends.push_back({b.at(0, i)});
  if (const Matrix r = matrix(Operand::kResidual); r.present()) addends.push_back({r.at(m, i)});
  if (p.residual == Residual::kNormInput) {
    const UncertainRow& r = prologue(m).r;
    const auto k = static_cast<std::size_t>(i);
    addends.push_back({.value = r.value[k], .bound = r.bound[k], .spread = r.spread[k]});
  }
  return sum(products, addends, p.y_dtype);
}

Uncertain Oracle::State::dh_at(std::int64_t m, std::int64_t j,
                               const std::vector<double>& w_down_col) {
  if (p.op == Op::kGateMulGrad) return {.value = matrix(Operand::kDh).at(m, j)};
  static thread_local std::vector<double> dy;
  matrix(Operand::kDy).read_row(m, dy);
  return dh_of(dot_exact(dy.data(), w_down_col.data(), dy.size()));
}

GateGradErrors Oracle::State::grad_at(std::int64_t m, std::int64_t j, const Uncertain& dh) {
  if (p.recompute) {
    return rounding.gate_mul_grad(project(Operand::kWGate, Operand::kBGate, m, j),
                                  project(Operand::kWUp, Operand::kBUp, m, j), dh);
  }
  return rounding.gate_mul_grad({.value = matrix(Operand::kG).at(m, j)},
                                {.value = matrix(Operand::kU).at(m, j)}, dh);
}

// dh of one token, by rows of w_down, which lie in memory that way.
const std::vector<Uncertain>& Oracle::State::dh_row(std::int64_t m) {
  if (const auto it = dh_rows.find(m); it != dh_rows.end()) return it->second;
  const auto h = static_cast<std::size_t>(p.h);
  std::vector<double> value(h, 0.0);
  std::vector<double> magnitude(h, 0.0);
  std::vector<double> subnormal(h, 0.0);
  std::vector<double> w;
  const Matrix dy = matrix(Operand::kDy);
  const Matrix w_down = matrix(Operand::kWDown);
  for (std::int64_t i = 0; i < p.d; ++i) {
    const double factor = dy.at(m, i);
    w_down.read_row(i, w);
    for (std::size_t j = 0; j < h; ++j) {
      value[j] += factor * w[j];
      magnitude[j] += std::fabs(factor * w[j]);
      if (is_subnormal(factor) || is_subnormal(w[j])) subnormal[j] += std::fabs(factor * w[j]);
    }
  }
  std::vector<Uncertain> row(h);
  for (std::size_t j = 0; j < h; ++j) {
    if (std::isfinite(magnitude[j])) {
      TermSums sums{.value = value[j], .magnitude = magnitude[j]};
      sums.subnormal = subnormal[j];
      sums.terms = static_cast<double>(p.d);
      row[j] = dh_of(sums);
    } else {
      w_down.read_col(static_cast<std::int64_t>(j), w);
      row[j] = dh_at(m, static_cast<std::int64_t>(j), w);
    }
  }
  return dh_rows.emplace(m, std::move(row)).first->second;
}

const GradLine& Oracle::State::grad_row(std::int64_t m) {
  if (const auto it = grad_rows.find(m); it != grad_rows.end()) return it->second;
  GradLine line;
  const std::vector<Uncertain>& dh = dh_row(m);
  for (std::int64_t j = 0; j < p.h; ++j) {
    push_grad(line, grad_at(m, j, dh[static_cast<std::size_t>(j)]));
  }
  return grad_rows.emplace(m, std::move(line)).first->second;
}

const GradLine& Oracle::State::grad_col(std::int64_t j) {
  if (const auto it = grad_cols.find(j); it != grad_cols.end()) return it->second;
  GradLine line;
  std::vector<double> w;
  matrix(Operand::kWDown).read_col(j, w);
  for (std::int64_t m = 0; m < p.m; ++m) push_grad(line, grad_at(m, j, dh_at(m, j, w)));
  return grad_cols.emplace(j, std::move(line)).first->second;
}

Uncertain Oracle::State::dx_at(std::int64_t m, std::int64_t i) {
  static thread_local std::vector<double> w;
  const GradLine& line = grad_row(m);
  matrix(Operand::kWGate).read_col(i, w);
  const TermSums of_gate = dot_uncertain(line.dg, w.data());
  matrix(Operand::kWUp).read_col(i, w);
  return dx_of(of_gate, dot_uncertain(line.du, w.data()));
}

Uncertain Oracle::State::dx_of(const TermSums& of_gate, const TermSums& of_up) const {
  if (rounding.unfused()) {
    const Uncertain up = rounding.stored(rounding.dot(of_up), p.x_dtype);
    return rounding.added(rounding.dot(of_gate), up, p.x_dtype);
  }
  TermSums sums = of_gate;
  merge(sums, of_up);
  return rounding.dot(sums);
}

// Sum over tokens of left[m]·right[m], added to what out[row, col] held if the problem says so.
Uncertain Oracle::State::weight_grad(Operand out, const UncertainRow& left,
                                     const std::vector<double>& right, std::int64_t row,
                                     std::int64_t col) {
  Uncertain held;
  if (p.accumulate_dw) held.value = matrix(out).at(row, col);
  const std::size_t addends = p.accumulate_dw ? 1 : 0;
  return sum(dot_uncertain(left, right.data(), of_tokens), {&held, addends}, p.dw_dtype);
}

Uncertain Oracle::State::mlp_grad_at(Operand out, std::int64_t row, std::int64_t col) {
  static thread_local std::vector<double> right;
  switch (out) {
    case Operand::kDx:
      return dx_at(row, col);
    case Operand::kDwGate:
      matrix(Operand::kX).read_col(col, right);
      return weight_grad(out, grad_col(row).dg, right, row, col);
    case Operand::kDwUp:
      matrix(Operand::kX).read_col(col, right);
      return weight_grad(out, grad_col(row).du, right, row, col);
    case Operand::kDwDown:
      matrix(Operand::kDy).read_col(row, right);
      return weight_grad(out, grad_col(col).h, right, row, col);
    case Operand::kDbGate:
      right.assign(static_cast<std::size_t>(p.m), 1.0);
      return weight_grad(out, grad_col(col).dg, right, row, col);
    case Operand::kDbUp:
      right.assign(static_cast<std::size_t>(p.m), 1.0);
      return weight_grad(out, grad_col(col).du, right, row, col);
    case Operand::kDbDown: {
      UncertainRow ones;
      for (std::int64_t m = 0; m < p.m; ++m) ones.push({.value = 1.0});
      matrix(Operand::kDy).read_col(col, right);
      return weight_grad(out, ones, right, row, col);
    }
    default:
      return {};
  }
}

// r, which may be stored, and y of the norm by itself.
Uncertain Oracle::State::norm_at(Operand out, std::int64_t row, std::int64_t col) {
  const Prologue& head = prologue(row);
  const auto k = static_cast<std::size_t>(col);
  if (out == Operand::kXSum) {
    return {.value = head.r.value[k], .bound = rounding.accumulator() * std::fabs(head.r.value[k])};
  }
  return {.value = head.n.value[k],
          .bound = head.n.bound[k],
          .spread = head.n.spread[k],
          .common = head.n.common[k],
          .may_overflow = head.n.may_overflow};
}

// What the steps behind gate_up_grad make of dg and du as they are given.
Uncertain Oracle::State::given_grad_at(Operand out, std::int64_t row, std::int64_t col) {
  static thread_local std::vector<double> left;
  static thread_local std::vector<double> right;
  if (out == Operand::kDx) {
    const auto product = [&](Operand grad, Operand weight) {
      matrix(grad).read_row(row, left);
      matrix(weight).read_col(col, right);
      return dot_exact(left.data(), right.data(), left.size());
    };
    const TermSums of_gate = product(Operand::kDg, Operand::kWGate);
    return dx_of(of_gate, product(Operand::kDu, Operand::kWUp));
  }
  const bool sum = out == Operand::kDbGate;
  matrix(out == Operand::kDwUp ? Operand::kDu : Operand::kDg).read_col(sum ? col : row, left);
  UncertainRow given;
  for (const double value : left) given.push({.value = value});
  if (sum) {
    right.assign(left.size(), 1.0);
  } else {
    matrix(Operand::kX).read_col(col, right);
  }
  return weight_grad(out, given, right, row, col);
}

Uncertain Oracle::State::element(Operand out, std::int64_t row, std::int64_t col) {
  const bool hidden = out == Operand::kDg || out == Operand::kDu;
  if (p.op == Op::kNorm) return norm_at(out, row, col);
  if (p.op == Op::kInputGrad || p.op == Op::kWeightGrad || p.op == Op::kColumnSum) {
    return given_grad_at(out, row, col);
  }
  if (p.op == Op::kMlpGrad && !hidden) return mlp_grad_at(out, row, col);
  switch (out) {
    case Operand::kG:
      return project(Operand::kWGate, Operand::kBGate, row, col);
    case Operand::kU:
      return project(Operand::kWUp, Operand::kBUp, row, col);
    case Operand::kY:
      return y_at(row, col);
    case Operand::kXSum:
      return norm_at(out, row, col);
    case Operand::kH:
    case Operand::kDg:
    case Operand::kDu: {
      if (p.op == Op::kGateUp || p.op == Op::kGateMul) return h_at(row, col);
      const Uncertain dh = p.op == Op::kGateMulGrad ? dh_at(row, col, {})
                                                    : dh_row(row)[static_cast<std::size_t>(col)];
      const GateGradErrors grad = grad_at(row, col, dh);
      return out == Operand::kH ? grad.h : (out == Operand::kDg ? grad.dg : grad.du);
    }
    default:
      return {};
  }
}

Oracle::Oracle(const Problem& problem, const Operands& inputs, Rounds rounds)
    : state_(std::make_unique<State>(problem, inputs, rounds)) {}
Oracle::~Oracle() = default;

void Oracle::set_exact(bool exact) noexcept { state_->exact = exact; }
void Oracle::set_compared_elements(std::int64_t count) noexcept {
  state_->rounding.set_compared_elements(count);
}

OracleValue Oracle::at(Operand output, std::int64_t row, std::int64_t col) {
  const Uncertain q = state_->element(output, row, col);
  if (state_->exact) return {.value = q.value};
  if (!std::isfinite(q.value)) return {.value = q.value, .may_overflow = q.may_overflow};
  const DType dtype = state_->specs[static_cast<std::size_t>(output)].dtype;
  const double bound = q.error() + rounding_error(std::fabs(q.value) + q.error(), dtype);
  return {.value = q.value, .bound = bound, .may_overflow = q.may_overflow};
}

}  // namespace sluice::harness
