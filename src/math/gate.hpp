// SPDX-License-Identifier: Apache-2.0
// The gate and its gradient, once for every backend and the oracle: scalar, host and device.
// Formulas as documented at sluice::Gate. T is float or double.
//
// NaN passes: every clamp is written as "out of range ? bound : v", which is false for NaN.
// silu(-inf) is NaN (-inf · 0), as in PyTorch and in the formula.
#pragma once

#include <cmath>
#include <type_traits>

#include "sluice/types.hpp"

#if defined(__CUDACC__)
#define SLUICE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define SLUICE_HOST_DEVICE inline
#endif

namespace sluice::math {

template <class T>
struct ActValue {
  T value;
  T derivative;
};

#if defined(__CUDA_ARCH__)
namespace detail {
/// 2 to the power of x and 1 / x: 2 ulp and 1 ulp, subnormals are 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y = 0;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y = 0;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
}  // namespace detail
#endif

/// 1 / (1 + exp(-slope·v)). Absolute error below 2 ulp of 1; exp overflows to infinity and the
/// result to 0. On the device float takes the approximate exponential and reciprocal, 2 + 1 ulp,
/// flushing subnormals: exp below 2^-126 is lost in 1 + exp anyway, the result becomes 0. The forms
/// that keep subnormals (__expf, __fdividef) are six instructions longer. NOTE: slope by log2(e)
/// first would save one, and overflow for a large slope where slope·v does not.
template <class T>
SLUICE_HOST_DEVICE T sigmoid(T v, T slope = T(1)) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 4) {
    constexpr float kMinusLog2E = -1.44269504F;
    return detail::reciprocal_fast(1.0F + detail::exp2_fast(v * slope * kMinusLog2E));
  }
#endif
  return T(1) / (T(1) + std::exp(-slope * v));
}

namespace detail {
inline constexpr double kSqrt2OverPi = 0.79788456080286535588;
inline constexpr double kSqrtHalf = 0.70710678118654752440;
inline constexpr double kInvSqrt2Pi = 0.39894228040143267794;
inline constexpr double kMinusHalfLog2E = -0.72134752044448170368;
inline constexpr double kGeluCubic = 0.044715;

/// gelu_tanh(v) is v · sigmoid(gelu_slope(v) · v), since (1 + tanh t) / 2 = sigmoid(2t).
template <class T>
SLUICE_HOST_DEVICE T gelu_slope(T v) {
  constexpr T kAtZero = T(2 * kSqrt2OverPi);
  return kAtZero + kAtZero * T(kGeluCubic) * v * v;
}

/// exp(-v·v / 2).
template <class T>
SLUICE_HOST_DEVICE T bell(T v) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 4) return exp2_fast(v * float(kMinusHalfLog2E) * v);
#endif
  return std::exp(T(-0.5) * v * v);
}

/// The normal distribution at v, (1 + erf(v / sqrt 2)) / 2. On the device float takes t · 2^(P(t) -
/// v·v·log2(e) / 2) with t = 1 / (1 + |v| / sqrt 8) for twice the tail: erfc()'s branches cost an
/// epilogue four times as much. P is a minimax polynomial of log2(erfcx(z) / t), z = |v| / sqrt 2,
/// for |v| up to 14; the absolute error is below 3e-7, the tail's relative one 1e-6 for |v| < 4.
template <class T>
SLUICE_HOST_DEVICE T normal_cdf(T v) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 4) {
    constexpr float kSqrtEighth = 0.35355339F;
    const float t = reciprocal_fast(1.0F + kSqrtEighth * fabsf(v));
    float p = 0.102810077F;
    p = p * t - 0.751639307F;
    p = p * t + 2.03177714F;
    p = p * t - 2.46763611F;
    p = p * t + 1.16394699F;
    p = p * t - 0.315041661F;
    p = p * t + 0.627805173F;
    p = p * t + 1.43330228F;
    p = p * t - 1.82532489F;
    const float tail = 0.5F * t * exp2_fast(v * float(kMinusHalfLog2E) * v + p);
    return v < 0.0F ? tail : 1.0F - tail;
  }
#endif
  return T(0.5) * std::erfc(-v * T(kSqrtHalf));
}
}  // namespace detail

/// Every parameter but the activation is the default: nothing to clamp, to add or to scale.
SLUICE_HOST_DEVICE bool is_plain(const Gate& gate) {
  Gate defaults;
  defaults.activation = gate.activation;
  return gate == defaults;
}

/// act(v) alone.
template <class T>
SLUICE_HOST_DEVICE T activate(Activation activation, T v, T alpha) {
  switch (activation) {
    case Activation::kSilu:
      return v * sigmoid(v, alpha);
    case Activation::kGeluTanh:
      return v * sigmoid(v, detail::gelu_slope(v));
    case Activation::kGeluErf:
      return v * detail::normal_cdf(v);
    case Activation::kRelu:
      return v < T(0) ? T(0) : v;
    case Activation::kSigmoid:
      return sigmoid(v, alpha);
    case Activation::kIdentity:
      return v;
  }
  return v;
}

/// act(v) and act'(v). The derivative of relu at 0 is 0, as in PyTorch.
template <class T>
SLUICE_HOST_DEVICE ActValue<T> activate_grad(Activation activation, T v, T alpha) {
  switch (activation) {
    case Activation::kSilu: {
      const T s = sigmoid(v, alpha);
      const T value = v * s;
      // value·(1 - s) comes first: it is 0 where alpha·v is large enough to overflow.
      return {value, s + alpha * (value * (T(1) - s))};
    }
    case Activation::kGeluTanh: {
      const T k = T(detail::kSqrt2OverPi);
      const T c = T(detail::kGeluCubic);
      const T s = sigmoid(v, detail::gelu_slope(v));
      const T bell = s * (T(1) - s);  // 0 where v·v may overflow; NaN stays NaN
      const T slope = bell == T(0) ? T(0) : v * bell * (T(1) + T(3) * c * v * v);
      return {v * s, s + T(2) * k * slope};
    }
    case Activation::kGeluErf: {
      const T cdf = detail::normal_cdf(v);
      return {v * cdf, cdf + v * T(detail::kInvSqrt2Pi) * detail::bell(v)};
    }
    case Activation::kRelu:
      return {v < T(0) ? T(0) : v, v > T(0) ? T(1) : (v <= T(0) ? T(0) : v)};
    case Activation::kSigmoid: {
      const T s = sigmoid(v, alpha);
      return {s, alpha * s * (T(1) - s)};
    }
    case Activation::kIdentity:
      return {v, T(1)};
  }
  return {v, T(1)};
}

namespace detail {
/// v, or `bound` where v is above it; NaN stays NaN.
template <class T>
SLUICE_HOST_DEVICE T at_most(T v, T bound) {
  return v > bound ? bound : v;
}
}  // namespace detail

/// For gate_mul() and gate_mul_grad(): what eager code stores between its operators stays as it is.
/// With Problem::round_gate they take a function in its place that rounds to x's type.
struct Unrounded {
  template <class T>
  SLUICE_HOST_DEVICE T operator()(T v) const {
    return v;
  }
};

/// h of one element; see sluice::Gate.
template <class T, class Round = Unrounded>
SLUICE_HOST_DEVICE T gate_mul(const Gate& gate, T g, T u, const Round& round = {}) {
  const T limit = T(gate.limit);
  const T v = detail::at_most(T(gate.gate_multiplier) * g, limit);
  u = -detail::at_most(-detail::at_most(u, limit), limit);
  return T(gate.output_multiplier) * round(activate(gate.activation, v, T(gate.alpha))) *
         (u + T(gate.up_offset));
}

template <class T>
struct GateGrad {
  T h;
  T dg;
  T du;
};

/// h and the gradients of one element, given dh. Where a clamp cut, its gradient is 0; on the
/// boundary it passes. NaN in g or u gives NaN in h, and in dg and du as far as their formulas read
/// the one that is NaN (du does not read u, nor does dg of an identity gate read g).
template <class T, class Round = Unrounded>
SLUICE_HOST_DEVICE GateGrad<T> gate_mul_grad(const Gate& gate, T g, T u, T dh,
                                             const Round& round = {}) {
  const T limit = T(gate.limit);
  const T scaled = T(gate.gate_multiplier) * g;
  const bool cut_g = scaled > limit;
  const bool cut_u = u > limit || u < -limit;
  const T v = cut_g ? limit : scaled;
  const T w = (u > limit ? limit : (u < -limit ? -limit : u)) + T(gate.up_offset);
  const ActValue<T> act = activate_grad(gate.activation, v, T(gate.alpha));
  const T out = T(gate.output_multiplier);
  if constexpr (!std::is_same_v<Round, Unrounded>) {
    const T value = round(act.value);
    const T slope = T(gate.gate_multiplier) * act.derivative;
    return {out * value * w, cut_g ? T(0) : out * slope * round(w * dh),
            cut_u ? T(0) : out * value * dh};
  }
  return {out * act.value * w,
          cut_g ? T(0) : out * T(gate.gate_multiplier) * act.derivative * w * dh,
          cut_u ? T(0) : out * act.value * dh};
}

}  // namespace sluice::math
