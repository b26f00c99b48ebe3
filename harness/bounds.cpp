// SPDX-License-Identifier: Apache-2.0
#include "harness/bounds.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>

#include "math/float_types.hpp"
#include "math/gate.hpp"

namespace sluice::harness {
namespace {

// A kernel's exp, division and erf may each err by this many ulps, an argument of exp by as many
// relative ones; an ulp is two unit roundoffs. __expf needs 2 + 1.17 |t|, __fdividef 2, Highway's
// Exp 1 (docs/numerics.md).
constexpr double kGateUlps = 4;
constexpr double kGateRoundoffs = 2 * kGateUlps;

// The rounding bounds hold together but for a chance of 2^-40.
constexpr double kLogChance = -40;

constexpr double kSqrt2OverPi = math::detail::kSqrt2OverPi;

// The corners that an input's error spans. What may overflow may be an infinity of either sign,
// which a clamp or a saturated activation brings back to a finite result.
std::pair<std::array<double, 4>, unsigned> corners(const Uncertain& q) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double error = q.error() > 0 ? q.error() : 0.0;
  return {{q.value - error, q.value + error, -kInfinity, kInfinity},
          q.may_overflow ? 4U : (error > 0 ? 2U : 1U)};
}

void widen(Uncertain& q, double value) {
  if (std::isfinite(q.value) && std::isfinite(value)) {
    q.bound = std::max(q.bound, std::fabs(value - q.value));
  } else if (!(value == q.value || (std::isnan(value) && std::isnan(q.value)))) {
    q.may_overflow = true;  // the sign or kind of a special value hangs on the error
  }
}

// Errors of the inputs: the values at the corners of the box they span. A clamp, a kink or a jump
// of the derivative inside the box shows at its corners.
void add_input_errors(const Gate& gate, const Uncertain& g, const Uncertain& u, const Uncertain& dh,
                      GateGradErrors& out) {
  const auto [at_g, count_g] = corners(g);
  const auto [at_u, count_u] = corners(u);
  const auto [at_dh, count_dh] = corners(dh);
  const unsigned corner_count = count_g * count_u * count_dh;
  for (unsigned corner = 0; corner < corner_count && corner_count > 1; ++corner) {
    const auto c =
        math::gate_mul_grad(gate, at_g[corner % count_g], at_u[corner / count_g % count_u],
                            at_dh[corner / (count_g * count_u)]);
    widen(out.h, c.h);
    widen(out.dg, c.dg);
    widen(out.du, c.du);
  }
  // What the norm's scale shifts keeps its sign; the rest keeps its ratio of spread to bound.
  if (g.common != 0 || u.common != 0) {
    const auto slope = math::gate_mul_grad(gate, g.value, u.value, 1.0);
    const double shift = slope.dg * g.common + slope.du * u.common;
    if (std::isfinite(shift)) out.h.common = shift;
    out.h.bound = std::max(0.0, out.h.bound - std::fabs(out.h.common));
  }
  double ratio = 0;
  for (const Uncertain& q : {g, u, dh}) {
    if (q.bound > 0) ratio = std::max(ratio, q.spread / q.bound);
  }
  for (Uncertain* q : {&out.h, &out.dg, &out.du}) q->spread = q->bound * ratio;
}

}  // namespace

double largest(DType dtype) noexcept {
  switch (dtype) {
    case DType::kBF16:
      return 0x1.FEp127;
    case DType::kF16:
      return 65504.0;
    case DType::kF32:
      return static_cast<double>(std::numeric_limits<float>::max());
    case DType::kF64:
      return std::numeric_limits<double>::max();
    default:  // nothing is rounded to a block type
      break;
  }
  return 0;
}

double rounding_error(double magnitude, DType dtype) noexcept {
  double half_smallest = 0;  // half the smallest subnormal
  switch (dtype) {
    case DType::kBF16:
      half_smallest = 0x1p-134;
      break;
    case DType::kF16:
      half_smallest = 0x1p-25;
      break;
    case DType::kF32:
      half_smallest = 0x1p-150;
      break;
    default:
      break;
  }
  return std::max(0.5 * epsilon(dtype) * std::fabs(magnitude), half_smallest);
}

Rounding::Rounding(const Problem& problem)
    : gate_(problem.gate),
      fixed_tokens_((problem.x_dtype == DType::kBF16 || problem.x_dtype == DType::kF16) &&
                    (problem.w_dtype == DType::kQ8_0 || problem.w_dtype == DType::kQ4_0)),
      flushes_bf16_(problem.x_dtype == DType::kBF16 &&
                    (fixed_tokens_ || problem.w_dtype == DType::kBF16)) {
  bool fp64 = false;
  for (const OperandSpec& spec : operand_specs(problem)) {
    fp64 = fp64 || (spec.access != Access::kUnused && spec.dtype == DType::kF64);
  }
  u_ = fp64 ? 0x1p-53 : 0x1p-24;
  max_ = largest(fp64 ? DType::kF64 : DType::kF32);
  tiny_ = fp64 ? std::numeric_limits<double>::min()
               : static_cast<double>(std::numeric_limits<float>::min());
  set_compared_elements(std::int64_t{1} << 32);
}

void Rounding::set_compared_elements(std::int64_t count) noexcept {
  // Hoeffding: P(|sum| > lambda·norm) <= 2 exp(-lambda^2 / 2) for each of `count` elements, each
  // with up to 2^20 sums behind it.
  const double log2_events =
      1 + 20 + std::log2(static_cast<double>(std::max<std::int64_t>(count, 1)));
  lambda_ = std::sqrt(2 * std::log(2.0) * (log2_events - kLogChance));
}

Uncertain Rounding::dot(const TermSums& sums) const noexcept {
  // Each of the terms + 1 roundings errs by a unit roundoff of at most `whole`; the oracle's own
  // fp64 sum adds its share.
  const double whole = sums.magnitude + sums.bound + std::fabs(sums.common);
  const double step = (u_ + 0x1p-53) * whole;
  const double roundings = sums.terms + 1;
  // Gradual underflow costs u of the smallest normal number; a dot product of bf16 may have none,
  // nor read subnormals. Where a block's scale or a norm's comes after the sum, what was flushed is
  // multiplied by it.
  const double largest_scale = std::max(fixed_tokens_ ? largest(DType::kF16) : 1, sums.scale);
  const bool unread = flushes_bf16_ && sums.subnormal > 0;
  const double flushed = roundings * tiny_ * (flushes_bf16_ ? largest_scale : u_) +
                         (unread && std::isfinite(sums.subnormal) ? sums.subnormal : 0);
  Uncertain out{.value = sums.value};
  out.spread = std::sqrt(sums.square + roundings * step * step) + flushed;
  out.bound =
      std::min(sums.bound + std::expm1(roundings * u_) / u_ * step + flushed, likely(out.spread));
  out.common = sums.common;
  // Infinity times a subnormal that is taken as 0 is NaN; so is 0 times a block's sum that has
  // overflown, and an infinite scale is multiplied with a sum in place of its terms.
  constexpr double kLargestInteger = 128;
  const bool scaled =
      fixed_tokens_ && (!std::isfinite(sums.value) || kLargestInteger * sums.tokens > max_);
  out.may_overflow = sums.may_overflow || whole > max_ * std::min(1.0, sums.scale) || scaled ||
                     (unread && !std::isfinite(sums.subnormal));
  return out;
}

double Rounding::fixed_error(double largest) const noexcept {
  if (!fixed_tokens_) return 0;
  // 15 bits below the power of two that the largest reaches; a unit is no less than 2^-126.
  constexpr int kBits = 15;
  constexpr int kLeast = -126;
  const int exponent = largest > 0 ? std::ilogb(largest) : kLeast;
  return std::ldexp(0.5, std::max(exponent - kBits + 1, kLeast));
}

Uncertain Rounding::stored(Uncertain v, DType dtype) const noexcept {
  if (!std::isfinite(v.value)) return v;
  const double most = std::fabs(v.value) + v.error();
  const double step = rounding_error(most, dtype);
  v.bound += step;
  v.spread = std::hypot(v.spread, step);
  v.bound = std::min(v.bound, std::max(likely(v.spread), step));
  v.may_overflow = v.may_overflow || most + step > largest(dtype);
  return v;
}

// Error of act(v) and act'(v) at an exact v, by propagating kGateRoundoffs through the formulas of
// src/math/gate.hpp.
Rounding::ActError Rounding::activation_error(double v) const noexcept {
  const double e = kGateRoundoffs * u_;
  const double alpha = static_cast<double>(gate_.alpha);
  const auto sigmoid_error = [&](double t, double s) {
    const double spread = s < 1 ? std::fabs(t) * (1 - s) : 0.0;  // t may be infinite where s is 1
    return e * s * (1 + spread) + tiny_;
  };
  switch (gate_.activation) {
    case Activation::kSilu: {
      const double t = alpha * v;
      const double s = math::sigmoid(t);
      const double ds = sigmoid_error(t, s);
      return {std::fabs(v) * (ds + e * s),
              ds * (1 + std::fabs(t * (1 - 2 * s))) + e * (s + std::fabs(t) * s * (1 - s))};
    }
    case Activation::kGeluTanh: {
      const double cubic = math::detail::kGeluCubic * v * v;
      const double t = 2 * kSqrt2OverPi * v * (1 + cubic);
      const double s = math::sigmoid(t);
      const double ds = sigmoid_error(t, s);
      const double slope = 2 * kSqrt2OverPi * std::fabs(v) * (1 + 3 * cubic);
      return {std::fabs(v) * (ds + e * s),
              ds * (1 + slope * std::fabs(1 - 2 * s)) + e * (s + slope * s * (1 - s))};
    }
    case Activation::kGeluErf: {
      // erf is allowed an absolute error: kernels compute (1 + erf) / 2.
      const double density = math::detail::kInvSqrt2Pi * std::exp(-0.5 * v * v);
      return {std::fabs(v) * 2 * e, 2 * e + e * std::fabs(v) * density * (1 + v * v)};
    }
    case Activation::kSigmoid: {
      const double t = alpha * v;
      const double s = math::sigmoid(t);
      const double ds = sigmoid_error(t, s);
      return {ds, std::fabs(alpha) * (ds * std::fabs(1 - 2 * s) + e * s * (1 - s) + tiny_)};
    }
    case Activation::kRelu:
    case Activation::kIdentity:
      return {};
  }
  return {};
}

// g with the rounding of gate_multiplier · g, which may also carry it over the clamp's edge.
Uncertain Rounding::scaled(const Uncertain& g) const noexcept {
  Uncertain out = g;
  if (gate_.gate_multiplier != 1.0F && gate_.gate_multiplier != 0.0F) {
    const double flushed = tiny_ / std::fabs(static_cast<double>(gate_.gate_multiplier));
    const double step = u_ * (std::fabs(g.value) + g.error()) + flushed;
    out.bound += step;
    out.spread = std::hypot(g.spread, step);
  }
  return out;
}

Uncertain Rounding::gate_mul(const Uncertain& g_in, const Uncertain& u) const noexcept {
  const GateGradErrors all = gate_mul_grad(g_in, u, Uncertain{});
  return all.h;
}

GateGradErrors Rounding::gate_mul_grad(const Uncertain& g_in, const Uncertain& u,
                                       const Uncertain& dh) const noexcept {
  const Uncertain g = scaled(g_in);
  const auto center = math::gate_mul_grad(gate_, g.value, u.value, dh.value);
  GateGradErrors out;
  out.h.value = math::gate_mul(gate_, g.value, u.value);
  out.dg.value = center.dg;
  out.du.value = center.du;
  const double limit = static_cast<double>(gate_.limit);
  const double gm = static_cast<double>(gate_.gate_multiplier);
  const double om = static_cast<double>(gate_.output_multiplier);
  const double v = std::min(gm * g.value, limit);
  const double w = std::clamp(u.value, -limit, limit) + static_cast<double>(gate_.up_offset);
  const auto beyond = [this](double size) { return std::isfinite(size) && std::fabs(size) > max_; };
  // Parts that may leave the range even where another order of the products would not.
  const bool wide = beyond(gm * g.value) || beyond(static_cast<double>(gate_.alpha) * v);
  out.h.may_overflow = g.may_overflow || u.may_overflow || wide;
  out.dg.may_overflow = out.du.may_overflow = out.h.may_overflow || dh.may_overflow;
  // At an infinite v the derivative of gelu_tanh is its limit, or the NaN of infinity times 0.
  if (gate_.activation == Activation::kGeluTanh && std::isinf(v)) out.dg.may_overflow = true;
  add_input_errors(gate_, g, u, dh, out);
  // Errors of the evaluation. The order of a product is free, so a part of it may be flushed to 0
  // before the rest multiplies it, or leave the range.
  const auto evaluated = [this](Uncertain& q, std::initializer_list<double> factors, double error) {
    double above = 1;
    double below = 1;
    bool infinite = false;
    for (const double factor : factors) {
      const double size = std::fabs(factor);
      infinite = infinite || std::isinf(size);
      if (std::isfinite(size)) (size > 1 ? above : below) *= size;
    }
    if (above > max_ || (infinite && below < tiny_)) q.may_overflow = true;
    if (!std::isfinite(q.value) || !std::isfinite(error)) return;
    const double own = error + tiny_ * above;
    q.bound += own;
    q.spread = std::hypot(q.spread, own);
  };
  const auto act = math::activate_grad(gate_.activation, v, static_cast<double>(gate_.alpha));
  const ActError act_error = activation_error(v);
  // Of |outer| (|factor| + its error): the error, and a rounding for each product.
  const auto product_error = [this](double outer, double factor, double error) {
    return std::fabs(outer) * (error + 8 * u_ * std::fabs(factor));
  };
  evaluated(out.h, {om, act.value, w}, product_error(om * w, act.value, act_error.value));
  const bool cut_g = gm * g.value > limit;
  const bool cut_u = std::fabs(u.value) > limit;
  evaluated(
      out.dg, {om, gm, act.derivative, w, dh.value},
      cut_g ? 0 : product_error(om * gm * w * dh.value, act.derivative, act_error.derivative));
  evaluated(out.du, {om, act.value, dh.value},
            cut_u ? 0 : product_error(om * dh.value, act.value, act_error.value));
  return out;
}

}  // namespace sluice::harness
