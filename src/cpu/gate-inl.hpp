// SPDX-License-Identifier: Apache-2.0
// The gate of src/math/gate.hpp on vectors of fp32: the same formulas, rules and order of
// operations, with exp and erfc of its own. Included once per SIMD target.
//
// NaN passes: x86's min and max drop it, so every clamp is a compare and a select.
#if defined(SLUICE_CPU_GATE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_GATE_INL
#undef SLUICE_CPU_GATE_INL
#else
#define SLUICE_CPU_GATE_INL
#endif

#include "cpu/kernels.hpp"
#include "cpu/vector-inl.hpp"
#include "math/gate.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

using Vec = hn::Vec<F32>;

HWY_INLINE Vec constant(double value) { return hn::Set(F32(), static_cast<float>(value)); }

HWY_INLINE Vec cut_above(Vec v, Vec bound) { return hn::IfThenElse(hn::Gt(v, bound), bound, v); }
HWY_INLINE Vec cut_below(Vec v, Vec bound) { return hn::IfThenElse(hn::Lt(v, bound), bound, v); }

// sum over i of c[i] * x^i, c[0] first.
template <std::size_t kCount>
HWY_INLINE Vec polynomial(Vec x, const float (&c)[kCount]) {
  const F32 d;
  Vec sum = hn::Set(d, c[kCount - 1]);
  for (std::size_t i = kCount - 1; i-- > 0;) sum = hn::MulAdd(sum, x, hn::Set(d, c[i]));
  return sum;
}

// e^x within 2 ulp, subnormal results and overflow to infinity included.
// x = n ln 2 + r with |r| <= ln 2 / 2; polynomial of Cephes' expf; 2^n in two factors, since n
// reaches beyond the exponents of fp32 at both ends.
HWY_INLINE Vec exp(Vec x) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  static constexpr float kTaylor[] = {5.0000001201E-1F, 1.6666665459E-1F, 4.1665795894E-2F,
                                      8.3334519073E-3F, 1.3981999507E-3F, 1.9875691500E-4F};
  x = cut_above(cut_below(x, constant(-104.0)), constant(89.0));
  const Vec number = hn::IfThenElseZero(hn::Eq(x, x), x);  // NaN has no integer
  const auto n = hn::NearestInt(hn::Mul(number, constant(1.44269504088896341)));
  const Vec nf = hn::ConvertTo(d, n);
  // ln 2 in two parts, the first of 10 bits so that n times it is exact.
  Vec r = hn::NegMulAdd(nf, constant(0.693359375), x);
  r = hn::NegMulAdd(nf, constant(-2.12194440e-4), r);
  const Vec tail = hn::MulAdd(hn::Mul(r, r), polynomial(r, kTaylor), r);
  const auto half = hn::ShiftRight<1>(n);
  const auto bias = hn::Set(di, 127);
  const Vec low = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const Vec high = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(n, half), bias)));
  return hn::Mul(hn::Mul(hn::Add(tail, constant(1.0)), low), high);
}

struct Sigmoid {
  Vec value;
  Vec complement;  // 1 - value, without cancellation
};

// Both tails keep their relative accuracy: e^-|z| never overflows.
HWY_INLINE Sigmoid sigmoid(Vec z) {
  const F32 d;
  const Vec e = exp(hn::Neg(hn::Abs(z)));
  const Vec large = hn::Div(constant(1.0), hn::Add(constant(1.0), e));
  const Vec small = hn::Mul(e, large);
  const auto negative = hn::Lt(z, hn::Zero(d));
  return {hn::IfThenElse(negative, small, large), hn::IfThenElse(negative, large, small)};
}

// erfc(a) for a >= 0: (1 + p(q)) / (1 + 2a) * exp(-a^2) with q = (a - 4) / (a + 4).
// p interpolates (1 + 2a) exp(a^2) erfc(a) - 1 at 12 Chebyshev points of q in [-1, 13/29]; its own
// error is 0.3 units of 2^-24. Beyond 10.5 the result is 0 in fp32. The form is N. Juffa's.
HWY_INLINE Vec erfc_positive(Vec a) {
  static constexpr float kP[] = {0x1.dd2c8cp-3F,  -0x1.1df1b0p-3F,  0x1.f7f5bep-7F,
                                 0x1.16edeep-4F,  -0x1.9dd9c2p-4F,  0x1.7fe00ep-4F,
                                 -0x1.0fcc76p-4F, 0x1.30f570p-5F,   -0x1.065b18p-6F,
                                 0x1.4ae8a6p-8F,  -0x1.2a7ea2p-10F, -0x1.5185bap-11F};
  a = cut_above(a, constant(10.5));
  const Vec q = hn::Div(hn::Sub(a, constant(4.0)), hn::Add(a, constant(4.0)));
  const Vec p = polynomial(q, kP);
  const Vec ratio = hn::Div(hn::Add(constant(1.0), p), hn::MulAdd(a, constant(2.0), constant(1.0)));
  const Vec square = hn::Mul(a, a);
  const Vec lost = hn::NegMulAdd(a, a, square);  // what rounding a^2 added, where there is FMA
  const Vec e = hn::Mul(ratio, exp(hn::Neg(square)));
  return hn::MulAdd(e, lost, e);
}

struct Act {
  Vec value;
  Vec derivative;
};

// One activation; kGrad false leaves the derivative out.
template <Activation kAct, bool kGrad>
HWY_INLINE Act activate(Vec v, Vec alpha) {
  const F32 d;
  const Vec zero = hn::Zero(d);
  const Vec one = constant(1.0);
  if constexpr (kAct == Activation::kSilu) {
    const Sigmoid s = sigmoid(hn::Mul(alpha, v));
    const Vec value = hn::Mul(v, s.value);
    if constexpr (!kGrad) return {value, zero};
    return {value, hn::MulAdd(hn::Mul(value, s.complement), alpha, s.value)};
  } else if constexpr (kAct == Activation::kGeluTanh) {
    const Vec k = constant(2 * math::detail::kSqrt2OverPi);
    const Vec cubic = constant(math::detail::kGeluCubic);
    const Vec square = hn::Mul(v, v);
    const Sigmoid s = sigmoid(hn::Mul(k, hn::MulAdd(hn::Mul(cubic, square), v, v)));
    const Vec value = hn::Mul(v, s.value);
    if constexpr (!kGrad) return {value, zero};
    const Vec bell = hn::Mul(s.value, s.complement);  // 0 where v^2 may overflow; NaN stays NaN
    const Vec slope = hn::MulAdd(hn::Mul(constant(3.0), cubic), square, one);
    const Vec product = hn::Mul(hn::Mul(hn::Mul(v, bell), k), slope);
    return {value, hn::Add(s.value, hn::IfThenZeroElse(hn::Eq(bell, zero), product))};
  } else if constexpr (kAct == Activation::kGeluErf) {
    const Vec tail = erfc_positive(hn::Mul(hn::Abs(v), constant(math::detail::kSqrtHalf)));
    const Vec twice =
        hn::IfThenElse(hn::Lt(v, zero), tail, hn::Sub(constant(2.0), tail));  // 2 cdf(v)
    const Vec half = constant(0.5);
    const Vec value = hn::Mul(hn::Mul(half, v), twice);
    if constexpr (!kGrad) return {value, zero};
    const Vec density =
        hn::Mul(constant(math::detail::kInvSqrt2Pi), exp(hn::Mul(hn::Mul(constant(-0.5), v), v)));
    return {value, hn::MulAdd(half, twice, hn::Mul(v, density))};
  } else if constexpr (kAct == Activation::kRelu) {
    const auto negative = hn::Lt(v, zero);
    const Vec value = hn::IfThenElse(negative, zero, v);
    const Vec derivative =
        hn::IfThenElse(hn::Gt(v, zero), one, hn::IfThenElse(hn::Le(v, zero), zero, v));
    return {value, derivative};
  } else if constexpr (kAct == Activation::kSigmoid) {
    const Sigmoid s = sigmoid(hn::Mul(alpha, v));
    return {s.value, hn::Mul(hn::Mul(alpha, s.value), s.complement)};
  } else {
    return {v, one};
  }
}

// Calls f(std::integral_constant<Activation, ...>) for a run-time activation.
template <class F>
HWY_INLINE void with_activation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::kSilu:
      return f(std::integral_constant<Activation, Activation::kSilu>());
    case Activation::kGeluTanh:
      return f(std::integral_constant<Activation, Activation::kGeluTanh>());
    case Activation::kGeluErf:
      return f(std::integral_constant<Activation, Activation::kGeluErf>());
    case Activation::kRelu:
      return f(std::integral_constant<Activation, Activation::kRelu>());
    case Activation::kSigmoid:
      return f(std::integral_constant<Activation, Activation::kSigmoid>());
    case Activation::kIdentity:
      return f(std::integral_constant<Activation, Activation::kIdentity>());
  }
}

// `v` as it would come back from a store to T: Problem::round_gate's rounding. T is float for none.
template <class T>
HWY_INLINE Vec rounded(Vec v) {
  const F32 d;
  if constexpr (std::is_same_v<T, math::BF16>) {
    return hn::BitCast(
        d, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<F32>(), narrow_bf16(d, v))));
  } else if constexpr (std::is_same_v<T, math::F16>) {
    return widen_f16(d, narrow_f16(d, v));
  } else {
    return v;
  }
}

template <Activation kAct, class T>
HWY_NOINLINE void gate_mul_as(const Gate& gate, const float* g, const float* u, std::int64_t n,
                              float* h) {
  const F32 d;
  const Vec alpha = hn::Set(d, gate.alpha);
  const Vec limit = hn::Set(d, gate.limit);
  const Vec offset = hn::Set(d, gate.up_offset);
  const Vec g_scale = hn::Set(d, gate.gate_multiplier);
  const Vec h_scale = hn::Set(d, gate.output_multiplier);
  const auto one = [&](Vec vg, Vec vu) HWY_ATTR {
    const Vec v = cut_above(hn::Mul(g_scale, vg), limit);
    const Vec w = hn::Add(cut_below(cut_above(vu, limit), hn::Neg(limit)), offset);
    return hn::Mul(hn::Mul(h_scale, rounded<T>(activate<kAct, false>(v, alpha).value)), w);
  };
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(one(hn::LoadU(d, g + i), hn::LoadU(d, u + i)), d, h + i);
  }
  if (i < n) {
    const Vec vg = load_n<float>(d, g + i, n - i);
    const Vec vu = load_n<float>(d, u + i, n - i);
    store_n<float>(d, one(vg, vu), h + i, n - i);
  }
}

template <Activation kAct, class T>
HWY_NOINLINE void gate_grad_as(const Gate& gate, const float* g, const float* u, const float* dh,
                               std::int64_t n, float* dg, float* du, float* h) {
  const F32 d;
  const Vec alpha = hn::Set(d, gate.alpha);
  const Vec limit = hn::Set(d, gate.limit);
  const Vec offset = hn::Set(d, gate.up_offset);
  const Vec g_scale = hn::Set(d, gate.gate_multiplier);
  const Vec h_scale = hn::Set(d, gate.output_multiplier);
  const Vec dg_scale = hn::Mul(h_scale, g_scale);
  const auto one = [&](std::int64_t i, Vec vg, Vec vu, Vec vdh, const auto& put) HWY_ATTR {
    const Vec scaled = hn::Mul(g_scale, vg);
    const auto cut_g = hn::Gt(scaled, limit);
    const auto cut_u = hn::Or(hn::Gt(vu, limit), hn::Lt(vu, hn::Neg(limit)));
    const Vec v = cut_above(scaled, limit);
    const Vec w = hn::Add(cut_below(cut_above(vu, limit), hn::Neg(limit)), offset);
    const Act act = activate<kAct, true>(v, alpha);
    const Vec scaled_act = hn::Mul(h_scale, rounded<T>(act.value));
    const Vec scaled_slope = hn::Mul(dg_scale, act.derivative);
    const Vec slope = std::is_same_v<T, float> ? hn::Mul(hn::Mul(scaled_slope, w), vdh)
                                               : hn::Mul(scaled_slope, rounded<T>(hn::Mul(w, vdh)));
    put(hn::IfThenZeroElse(cut_g, slope), dg + i);
    put(hn::IfThenZeroElse(cut_u, hn::Mul(scaled_act, vdh)), du + i);
    put(hn::Mul(scaled_act, w), h + i);
  };
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    one(i, hn::LoadU(d, g + i), hn::LoadU(d, u + i), hn::LoadU(d, dh + i),
        [&](Vec v, float* out) HWY_ATTR { hn::StoreU(v, d, out); });
  }
  if (i < n) {
    const std::int64_t rest = n - i;
    const Vec vg = load_n<float>(d, g + i, rest);
    const Vec vu = load_n<float>(d, u + i, rest);
    const Vec vdh = load_n<float>(d, dh + i, rest);
    one(i, vg, vu, vdh, [&](Vec v, float* out) HWY_ATTR { store_n<float>(d, v, out, rest); });
  }
}

template <class T>
void gate_mul(const Gate& gate, const float* g, const float* u, std::int64_t n, float* h) {
  with_activation(gate.activation, [&](auto act) { gate_mul_as<act.value, T>(gate, g, u, n, h); });
}

template <class T>
void gate_grad(const Gate& gate, const float* g, const float* u, const float* dh, std::int64_t n,
               float* dg, float* du, float* h) {
  with_activation(gate.activation,
                  [&](auto act) { gate_grad_as<act.value, T>(gate, g, u, dh, n, dg, du, h); });
}

inline const GateKernels& gate_table() {
  static constexpr GateKernels kTable = {
      gate_mul<float>,
      gate_grad<float>,
      {gate_mul<math::BF16>, gate_mul<math::F16>, gate_mul<float>},
      {gate_grad<math::BF16>, gate_grad<math::F16>, gate_grad<float>},
  };
  return kTable;
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
