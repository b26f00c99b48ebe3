// SPDX-License-Identifier: Apache-2.0
// The vector gate and its gradient on every target against src/math/gate.hpp in fp64, for every
// bf16 number as g (zeros, subnormals, infinities, NaNs and all magnitudes among them), within
// bounds that count roundings.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpu/kernels.hpp"
#include "math/float_types.hpp"
#include "math/gate.hpp"
#include "targets.hpp"

namespace sluice::cpu {
namespace {

// Unit roundoff and smallest step of fp32.
constexpr double kUnit = 0x1p-24;
constexpr double kTiny = 0x1p-149;
// src/math forms 1 - sigmoid, which fp64 too rounds to a multiple of this (until it is 0).
constexpr double kCancelled = 0x1p-52;

// Roundings between an argument and a result, none of which is amplified: at most 4 units in exp
// (2 ulp), 7 in the ratio of erfc, 1 each for sum, quotient, product, and 4 products of the gate.
constexpr double kRoundings = 18;
// Roundings that change the argument of exp or erfc, and are amplified by its slope: the cubic of
// gelu_tanh has 6 (two constants, four operations), the gate's multiplier 1.
constexpr double kArgumentRoundings = 7;

// What a computed act(v) and act'(v) may be off by. `terms` are the magnitudes that are rounded,
// `slope` is |d terms / d log z| for the argument z of exp or erfc.
struct Bounds {
  double value = 0;
  double derivative = 0;
};

Bounds bounds(const Gate& gate, double v) {
  const auto make = [](double terms, double slope, double scale) {
    return kUnit * (kRoundings * terms + kArgumentRoundings * slope) + kTiny * scale;
  };
  const double alpha = static_cast<double>(gate.alpha);
  const double size = std::fabs(v);
  // sigmoid and its complement as they are, and the argument's size.
  const auto logistic = [&](double z, double inner_slope) -> Bounds {
    const double s = math::sigmoid(z);
    const double c = math::sigmoid(-z);
    const double bend = inner_slope * size * s * c;
    const double wide = std::fabs(z);
    return {make(size * s, size * s * c * wide, size + 1),
            make(s + bend, s * c * wide + bend * (wide + 1), (inner_slope + 1) * (size + 1)) +
                (wide < 64 ? inner_slope * size * kCancelled : 0)};
  };
  switch (gate.activation) {
    case Activation::kSilu:
      return logistic(alpha * v, std::fabs(alpha));
    case Activation::kSigmoid: {
      const double s = math::sigmoid(alpha * v);
      const double sc = s * math::sigmoid(-alpha * v);
      const double wide = std::fabs(alpha * v);
      return {make(s, sc * wide, 1),
              std::fabs(alpha) * (make(sc, sc * wide, 1) + kCancelled) + kTiny};
    }
    case Activation::kGeluTanh: {
      const double k = 2 * math::detail::kSqrt2OverPi;
      const double c = math::detail::kGeluCubic;
      // Beyond this sigmoid is 0 or 1 to any precision; it keeps the slope finite.
      const double near = std::min(size, 1e3);
      return logistic(k * (v + c * v * v * v), k * (1 + 3 * c * near * near));
    }
    case Activation::kGeluErf: {
      const double cdf = 0.5 * std::erfc(-v * math::detail::kSqrtHalf);
      const double bell = size * math::detail::kInvSqrt2Pi * std::exp(-0.5 * v * v);
      const double square = std::min(size * size, 1e6);
      return {make(size * cdf, size * bell, size + 1),
              make(cdf + bell, bell * (2 + square), size + 1)};
    }
    case Activation::kRelu:
    case Activation::kIdentity:
      return {kUnit * size, 0};
  }
  return {};
}

struct Case {
  const char* name;
  Gate gate;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (int i = 0; i < kActivationCount; ++i) {
    const auto activation = static_cast<Activation>(i);
    out.push_back({to_string(activation), {.activation = activation}});
    // Factors of at most 1, so that fp32 overflows only where the result does.
    out.push_back({to_string(activation),
                   {.activation = activation,
                    .limit = 5.5F,
                    .up_offset = 0.75F,
                    .gate_multiplier = -0.8125F,
                    .output_multiplier = 0.6875F}});
  }
  out.push_back({"clamped_swiglu", Gate::clamped_swiglu()});
  out.push_back({"silu alpha", {.activation = Activation::kSilu, .alpha = -0.625F}});
  out.push_back({"sigmoid alpha", {.activation = Activation::kSigmoid, .alpha = 1.702F}});
  return out;
}

std::vector<float> all_bf16() {
  std::vector<float> out;
  for (int i = 0; i < 1 << 16; ++i) {
    out.push_back(math::widen(math::BF16{static_cast<std::uint16_t>(i)}));
  }
  return out;
}

std::vector<float> up_values() {
  const float infinity = std::numeric_limits<float>::infinity();
  return {1.0F,   -0.3F,  0.0F,   5.5F,     -5.5F,     7.0F,
          7.125F, -31.0F, 1e-30F, infinity, -infinity, std::numeric_limits<float>::quiet_NaN()};
}

// NaN for NaN, the same infinity for an infinity, else within the bound. Where the fp64 value is
// beyond fp32, infinity is right.
testing::AssertionResult near(float got, double expected, double bound) {
  // At an infinite v nothing is left but the products.
  if (!std::isfinite(bound)) bound = kUnit * kRoundings * std::fabs(expected);
  if (std::isnan(expected) || std::isnan(got)) {
    if (std::isnan(expected) && std::isnan(got)) return testing::AssertionSuccess();
  } else if (std::isinf(expected) || std::isinf(got)) {
    const auto largest = static_cast<double>(std::numeric_limits<float>::max());
    const bool beyond = std::fabs(expected) + bound > largest;
    if (beyond && std::signbit(got) == std::signbit(expected) &&
        (std::isinf(got) || std::fabs(static_cast<double>(got)) + bound > largest)) {
      return testing::AssertionSuccess();
    }
  } else if (std::fabs(static_cast<double>(got) - expected) <= bound) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure()
         << "got " << got << ", wanted " << expected << " within " << bound;
}

class GateKernel : public testing::TestWithParam<SimdTarget> {};

TEST_P(GateKernel, ValueMatchesScalarMaths) {
  const GateKernels& k = gate_kernels(GetParam());
  const std::vector<float> g = all_bf16();
  std::vector<float> h(g.size());
  for (const Case& c : cases()) {
    for (const float up : up_values()) {
      const std::vector<float> u(g.size(), up);
      k.mul(c.gate, g.data(), u.data(), static_cast<std::int64_t>(g.size()), h.data());
      const auto limit = static_cast<double>(c.gate.limit);
      const double w = std::fmin(std::fmax(static_cast<double>(up), -limit), limit) +
                       static_cast<double>(c.gate.up_offset);
      const double factor = std::fabs(static_cast<double>(c.gate.output_multiplier) * w);
      for (std::size_t i = 0; i < g.size(); ++i) {
        const auto gi = static_cast<double>(g[i]);
        const double v = std::fmin(static_cast<double>(c.gate.gate_multiplier) * gi, limit);
        const double expected = math::gate_mul<double>(c.gate, gi, static_cast<double>(up));
        const Bounds b = bounds(c.gate, v);
        // act(v) of fp32 may be 0 where that of fp64 is not; 0 · infinity is NaN.
        const math::ActValue<double> act =
            math::activate_grad(c.gate.activation, v, static_cast<double>(c.gate.alpha));
        if (std::isinf(w) && std::fabs(act.value) <= b.value) continue;
        const double bound = factor * b.value + kUnit * kRoundings * std::fabs(expected) + kTiny;
        ASSERT_TRUE(near(h[i], expected, bound)) << c.name << " g " << g[i] << " u " << up;
      }
    }
  }
}

TEST_P(GateKernel, GradientMatchesScalarMaths) {
  const GateKernels& k = gate_kernels(GetParam());
  const std::vector<float> g = all_bf16();
  const auto n = static_cast<std::int64_t>(g.size());
  std::vector<float> dg(g.size());
  std::vector<float> du(g.size());
  std::vector<float> h(g.size());
  std::vector<float> h_alone(g.size());
  for (const Case& c : cases()) {
    for (const float up : up_values()) {
      for (const float dh_value : {0.875F, -3.0F}) {
        const std::vector<float> u(g.size(), up);
        const std::vector<float> dh(g.size(), dh_value);
        k.grad(c.gate, g.data(), u.data(), dh.data(), n, dg.data(), du.data(), h.data());
        k.mul(c.gate, g.data(), u.data(), n, h_alone.data());
        const auto limit = static_cast<double>(c.gate.limit);
        const double w = std::fmin(std::fmax(static_cast<double>(up), -limit), limit) +
                         static_cast<double>(c.gate.up_offset);
        const auto out = std::fabs(static_cast<double>(c.gate.output_multiplier));
        const auto slope = std::fabs(static_cast<double>(dh_value));
        const auto scale = std::fabs(static_cast<double>(c.gate.gate_multiplier));
        for (std::size_t i = 0; i < g.size(); ++i) {
          const auto gi = static_cast<double>(g[i]);
          const double v = std::fmin(static_cast<double>(c.gate.gate_multiplier) * gi, limit);
          const auto expected = math::gate_mul_grad<double>(c.gate, gi, static_cast<double>(up),
                                                            static_cast<double>(dh_value));
          const Bounds b = bounds(c.gate, v);
          const math::ActValue<double> act =
              math::activate_grad(c.gate.activation, v, static_cast<double>(c.gate.alpha));
          // act'(v) of fp32 may be 0 where that of fp64 is not; 0 · infinity is NaN.
          const bool vanishes = std::isinf(w) && std::fabs(act.derivative) <= b.derivative;
          // A product on the way may be subnormal before it is multiplied by dh.
          const auto rounding = [&](double x) {
            return kUnit * kRoundings * std::fabs(x) + kTiny * (1 + slope);
          };
          ASSERT_TRUE(vanishes || near(dg[i], expected.dg,
                                       out * scale * std::fabs(w) * slope * b.derivative +
                                           rounding(expected.dg)))
              << c.name << " dg at g " << g[i] << " u " << up;
          ASSERT_TRUE(near(du[i], expected.du, out * slope * b.value + rounding(expected.du)))
              << c.name << " du at g " << g[i] << " u " << up;
          // One h on every path, to the bit.
          const bool same_h = h[i] == h_alone[i] || (std::isnan(h[i]) && std::isnan(h_alone[i]));
          ASSERT_TRUE(same_h) << c.name << " h at g " << g[i] << " u " << up;
        }
      }
    }
  }
}

// With round_gate: act(v) and dh · u are what a store to x's type leaves of them, to the bit.
TEST_P(GateKernel, RoundsWhatEagerCodeStores) {
  const GateKernels& k = gate_kernels(GetParam());
  const std::vector<float> g = all_bf16();
  const auto n = static_cast<std::int64_t>(g.size());
  const std::vector<float> one(g.size(), 1.0F);
  const std::vector<float> u(g.size(), 1.2345678F);
  const std::vector<float> dh(g.size(), -0.7654321F);
  std::vector<float> act(g.size()), slope(g.size()), h(g.size()), dg(g.size()), du(g.size()),
      h_alone(g.size());
  const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  for (int i = 0; i < kActivationCount; ++i) {
    const Gate gate{.activation = static_cast<Activation>(i)};
    k.grad(gate, g.data(), one.data(), one.data(), n, slope.data(), du.data(), act.data());
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      const auto type = static_cast<std::size_t>(dtype);
      const auto to_x = [dtype](float v) {
        return static_cast<float>(math::rounded(static_cast<double>(v), dtype));
      };
      k.rounded_mul[type](gate, g.data(), u.data(), n, h_alone.data());
      k.rounded_grad[type](gate, g.data(), u.data(), dh.data(), n, dg.data(), du.data(), h.data());
      const float by_u = to_x(u[0] * dh[0]);
      for (std::size_t j = 0; j < g.size(); ++j) {
        const float value = to_x(act[j]);
        const float dg_wanted = dtype == DType::kF32 ? slope[j] * u[0] * dh[0] : slope[j] * by_u;
        ASSERT_TRUE(same(h[j], value * u[0]) && same(h_alone[j], h[j]))
            << to_string(gate.activation) << " " << to_string(dtype) << " g " << g[j];
        ASSERT_TRUE(same(du[j], value * dh[0])) << to_string(dtype) << " g " << g[j];
        ASSERT_TRUE(same(dg[j], dg_wanted)) << to_string(dtype) << " g " << g[j];
      }
    }
  }
}

// The clamp's edge counts as inside; one step beyond, the gradient is 0.
TEST_P(GateKernel, ClampBoundary) {
  const GateKernels& k = gate_kernels(GetParam());
  const Gate gate{.activation = Activation::kIdentity, .limit = 2.0F};
  const float beyond = std::nextafter(2.0F, 3.0F);
  const std::vector<float> g = {2.0F, beyond, -9.0F, 1.0F, 1.0F, 1.0F};
  const std::vector<float> u = {1.0F, 1.0F, 1.0F, 2.0F, beyond, -beyond};
  const std::vector<float> dh(g.size(), 1.0F);
  std::vector<float> dg(g.size());
  std::vector<float> du(g.size());
  std::vector<float> h(g.size());
  k.grad(gate, g.data(), u.data(), dh.data(), static_cast<std::int64_t>(g.size()), dg.data(),
         du.data(), h.data());
  EXPECT_EQ(dg, (std::vector<float>{1, 0, 1, 2, 2, -2}));
  EXPECT_EQ(du, (std::vector<float>{2, 2, -9, 1, 0, 0}));
  EXPECT_EQ(h, (std::vector<float>{2, 2, -9, 2, 2, -2}));
}

// In place, for every tail length; bits do not depend on the position in a vector.
TEST_P(GateKernel, InPlaceAndTails) {
  const GateKernels& k = gate_kernels(GetParam());
  const Gate gate = Gate::clamped_swiglu();
  for (std::size_t n = 1; n <= 3 * kMaxLanes; ++n) {
    std::vector<float> g(n, 0.7F);
    std::vector<float> u(n, -1.3F);
    std::vector<float> dh(n, 0.4F);
    k.grad(gate, g.data(), u.data(), dh.data(), static_cast<std::int64_t>(n), g.data(), u.data(),
           dh.data());
    std::vector<float> h(n, 0.7F);
    const std::vector<float> up(n, -1.3F);
    k.mul(gate, h.data(), up.data(), static_cast<std::int64_t>(n), h.data());
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_EQ(g[i], g[0]);
      ASSERT_EQ(u[i], u[0]);
      ASSERT_EQ(dh[i], h[0]);
      ASSERT_EQ(h[i], h[0]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, GateKernel, testing::ValuesIn(test::targets()),
                         [](const auto& info_of) { return std::string(to_string(info_of.param)); });

}  // namespace
}  // namespace sluice::cpu
