// SPDX-License-Identifier: Apache-2.0
#include "harness/bounds.hpp"

#include <algorithm>
#include <array>
#include <cmath>
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

Rounding::Rounding(const Problem& problem, Rounds rounds)
    : gate_(problem.gate),
      x_dtype_(problem.x_dtype),
      round_gate_(problem.round_gate),
      unfused_(rounds == Rounds::kUnfused),
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

Uncertain Rounding::added(Uncertain q, const Uncertain& addend, DType dtype) const noexcept {
  if (unfused_) q = stored(q, dtype);
  q.value += addend.value;
  const double step = u_ * (std::fabs(q.value) + q.error() + addend.error());
  q.bound += addend.bound + step;
  q.spread = std::hypot(q.spread, addend.spread, step);
  q.common += addend.common;
  q.may_overflow = q.may_overflow || addend.may_overflow;
  return q;
}

// Error of act(v) and act'(v) at an exact v, by propagating kGateRoundoffs through the formulas of
// src/math/gate.hpp.
Rounding::ActError Rounding::activation_error(double v) const noexcept {
  const double alpha = static_cast<double>(gate_.alpha);
  // An unfused program has no operator with an alpha: it stores alpha v, its sigmoid and,
  // backwards, each of four products.
  const bool composed = unfused_ && alpha != 1;
  const double e = (composed ? 2 * epsilon(x_dtype_) : 0) + kGateRoundoffs * u_;
  const double least = composed ? std::max(tiny_, rounding_error(0, x_dtype_)) : tiny_;
  const auto sigmoid_error = [&](double t, double s) {
    const double spread = s < 1 ? std::fabs(t) * (1 - s) : 0.0;  // t may be infinite where s is 1
    return e * s * (1 + spread) + least;
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
      // PyTorch computes (1 + tanh) / 2, whose error is absolute as erf's below.
      const double of_tanh = unfused_ ? 2 * e : 0;
      return {std::fabs(v) * (ds + e * s + of_tanh), ds * (1 + slope * std::fabs(1 - 2 * s)) +
                                                         e * (s + slope * s * (1 - s)) +
                                                         of_tanh * (1 + slope)};
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
    const double multiplier = std::fabs(static_cast<double>(gate_.gate_multiplier));
    double step = u_ * (std::fabs(g.value) + g.error()) + tiny_ / multiplier;
    if (unfused_) {
      step += rounding_error(multiplier * (std::fabs(g.value) + g.error()), x_dtype_) / multiplier;
    }
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
  // What fp32 and wider types round is an error like any other's, in whatever order.
  const bool rounds = round_gate_ && size_bytes(x_dtype_) == 2;
  if (rounds) return rounded_gate_grad(g, u.value, dh.value);
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
  const auto act = math::activate_grad(gate_.activation, v, static_cast<double>(gate_.alpha));
  const ActError act_error = activation_error(v);
  add_evaluation(out.h, {om, act.value, w}, product_error(om * w, act.value, act_error.value));
  const bool cut_g = gm * g.value > limit;
  const bool cut_u = std::fabs(u.value) > limit;
  add_evaluation(
      out.dg, {om, gm, act.derivative, w, dh.value},
      cut_g ? 0 : product_error(om * gm * w * dh.value, act.derivative, act_error.derivative));
  add_evaluation(out.du, {om, act.value, dh.value},
                 cut_u ? 0 : product_error(om * dh.value, act.value, act_error.value));
  if (unfused_) add_gate_stores(g, u, dh.value, out);
  return out;
}

// What an unfused program stores between its products: act(v); w, if it has an offset; what a
// multiplier is still to multiply; backwards dh · w. `g` is scaled().
void Rounding::add_gate_stores(const Uncertain& g, const Uncertain& u, double dh,
                               GateGradErrors& out) const noexcept {
  const auto limit = static_cast<double>(gate_.limit);
  const double gm = std::fabs(static_cast<double>(gate_.gate_multiplier));
  const double om = std::fabs(static_cast<double>(gate_.output_multiplier));
  const double offset = static_cast<double>(gate_.up_offset);
  const double scaled_g = static_cast<double>(gate_.gate_multiplier) * g.value;
  const double v = std::min(scaled_g, limit);
  const auto at = math::activate_grad(gate_.activation, v, static_cast<double>(gate_.alpha));
  // The clamp cuts for sure.
  const bool cut_g = scaled_g - gm * g.error() > limit;
  const bool cut_u = std::fabs(u.value) - u.error() > limit;
  const double slope = cut_g ? 0.0 : std::fabs(at.derivative);
  const double act = std::fabs(at.value) + slope * gm * g.error();
  const double w = std::fabs(std::clamp(u.value, -limit, limit) + offset) + u.error();
  const auto store = [this](bool is_stored, double size) {
    return is_stored ? rounding_error(size, x_dtype_) : 0.0;
  };
  const double act_step = store(true, act);
  const double w_step = store(offset != 0, w);
  const double h = (act + act_step) * (w + w_step);
  const double product = (w + w_step) * std::fabs(dh);
  const auto add = [this](Uncertain& q, std::initializer_list<double> parts, double step) {
    for (const double part : parts) {
      if (std::isfinite(part) && part > largest(x_dtype_)) q.may_overflow = true;
    }
    if (!std::isfinite(step) || !std::isfinite(q.value)) return;
    q.bound += step;
    q.spread = std::hypot(q.spread, step);
  };
  add(out.h, {act, w, h, std::fabs(scaled_g)}, om * (h - act * w + store(om != 1, h)));
  // What is stored as 0 before an infinity multiplies it.
  const bool lost = act - activation_error(v).value <= act_step;
  if (lost && std::isinf(w)) out.h.may_overflow = true;
  if (lost && std::isinf(dh)) out.du.may_overflow = true;
  const double grad = om * slope * product;
  const double alpha = std::fabs(static_cast<double>(gate_.alpha));
  const double subnormal = 4 * std::max(alpha, 1.0) * om * store(alpha != 1, 0);
  add(out.dg, {w, product, om * product, grad, std::fabs(scaled_g)},
      gm * slope *
              (om * (w_step * std::fabs(dh) + store(true, product)) +
               store(om != 1, om * product)) +
          gm * (store(gm != 1, grad) + subnormal));
  if (cut_u) return;
  add(out.du, {act, om * std::fabs(dh), om * act * std::fabs(dh)},
      om * std::fabs(dh) * act_step + act * store(om != 1, om * std::fabs(dh)));
}

// Of |outer| (|factor| + its error): the error, and a rounding for each product.
double Rounding::product_error(double outer, double factor, double error) const noexcept {
  return std::fabs(outer) * (error + 8 * u_ * std::fabs(factor));
}

// Errors of the evaluation. The order of a product is free, so a part of it may be flushed to 0
// before the rest multiplies it, or leave the range.
void Rounding::add_evaluation(Uncertain& q, std::initializer_list<double> factors,
                              double error) const noexcept {
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
}

// Problem::round_gate. Rounding is monotone: what a kernel makes of act(v) or dh · w lies between
// the roundings of both ends of its error, which nearly always are one number. So the products are
// taken at both ends and in the middle.
GateGradErrors Rounding::rounded_gate_grad(const Uncertain& g, double u, double dh) const noexcept {
  const auto alpha = static_cast<double>(gate_.alpha);
  const auto limit = static_cast<double>(gate_.limit);
  const auto gm = static_cast<double>(gate_.gate_multiplier);
  const auto om = static_cast<double>(gate_.output_multiplier);
  const double w = std::clamp(u, -limit, limit) + static_cast<double>(gate_.up_offset);
  const bool cut_u = std::fabs(u) > limit;
  const auto beyond = [this](double size) { return std::isfinite(size) && std::fabs(size) > max_; };
  const double product = w * dh;
  const double product_end = 4 * u_ * std::fabs(product) + tiny_;
  GateGradErrors out;
  const auto [corner, count] = corners(g);
  for (unsigned i = 0; i <= count; ++i) {
    const double scaled = gm * (i == 0 ? g.value : corner[i - 1]);
    const double v = math::detail::at_most(scaled, limit);
    const auto act = math::activate_grad(gate_.activation, v, alpha);
    const ActError error = activation_error(v);
    for (const double end : {0.0, -1.0, 1.0}) {
      const auto rounded_end = [&](double value, double distance) {
        // An infinite value has no ends, nor a finite one with an error that is NaN.
        const double at = value + end * distance;
        return math::rounded(end == 0 || std::isnan(at) ? value : at, x_dtype_);
      };
      const double value = om * rounded_end(act.value, error.value);
      const double slope = om * gm * act.derivative;
      const double dg = scaled > limit ? 0 : slope * rounded_end(product, product_end);
      const double du = cut_u ? 0 : value * dh;
      if (i == 0 && end == 0) {
        out.h.value = value * w, out.dg.value = dg, out.du.value = du;
        if (beyond(scaled) || beyond(alpha * v)) out.h.may_overflow = true;
        if (gate_.activation == Activation::kGeluTanh && std::isinf(v)) out.dg.may_overflow = true;
      }
      widen(out.h, value * w);
      widen(out.dg, dg);
      widen(out.du, du);
    }
  }
  out.dg.may_overflow = out.dg.may_overflow || out.h.may_overflow;
  out.du.may_overflow = out.du.may_overflow || out.h.may_overflow;
  const double v = math::detail::at_most(gm * g.value, limit);
  const auto act = math::activate_grad(gate_.activation, v, alpha);
  const double value = math::rounded(act.value, x_dtype_);
  const double factor = math::rounded(product, x_dtype_);
  const double slope_error = activation_error(v).derivative;
  if (std::isinf(factor) && std::fabs(act.derivative) <= slope_error) out.dg.may_overflow = true;
  const bool cut_g = gm * g.value > limit;
  add_evaluation(out.h, {om, value, w}, product_error(om * w, value, 0));
  add_evaluation(out.dg, {om, gm, act.derivative, factor},
                 cut_g ? 0 : product_error(om * gm * factor, act.derivative, slope_error));
  add_evaluation(out.du, {om, value, dh}, cut_u ? 0 : product_error(om * dh, value, 0));
  return out;
}

}  // namespace sluice::harness
