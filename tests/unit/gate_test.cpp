// SPDX-License-Identifier: Apache-2.0
// The gate against its formula in long double, its gradient against finite differences of that
// formula, and the rules for NaN, infinity and the clamp's boundary.
//
// Bounds. Each evaluation does few roundings, each of relative size eps/2 (T's epsilon), but an
// error in an exponent's argument t comes out multiplied by |t|. With |t| the largest argument,
// c · (1 + |t|) · eps times the magnitude of the terms covers them; kRoundings = c counts the
// operations of the longest formula (gelu_tanh's gradient) and its library call's 2 ulp. The long
// double formula itself cancels in gelu_tanh's 1 + tanh: its own eps times |v| comes on top.
#include "math/gate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace sluice::math {
namespace {

constexpr double kRoundings = 24;
constexpr long double kHalf = 0.5L;

const std::vector<Activation> kAll = {Activation::kSilu,    Activation::kGeluTanh,
                                      Activation::kGeluErf, Activation::kRelu,
                                      Activation::kSigmoid, Activation::kIdentity};

// types.hpp's table, as it reads.
long double act(Activation activation, long double v, long double alpha) {
  switch (activation) {
    case Activation::kSilu:
      return v / (1 + std::exp(-alpha * v));
    case Activation::kGeluTanh:
      return v * kHalf *
             (1 + std::tanh(std::sqrt(2.0L / std::acos(-1.0L)) * (v + 0.044715L * v * v * v)));
    case Activation::kGeluErf:
      return v * kHalf * std::erfc(-v / std::sqrt(2.0L));
    case Activation::kRelu:
      return std::max(v, 0.0L);
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-alpha * v));
    case Activation::kIdentity:
      return v;
  }
  return 0;
}

long double formula(const Gate& gate, long double g, long double u) {
  const long double limit = gate.limit;
  const long double v = std::min(gate.gate_multiplier * g, limit);
  const long double w = std::clamp(u, -limit, limit) + gate.up_offset;
  return gate.output_multiplier * act(gate.activation, v, gate.alpha) * w;
}

// The largest argument of a transcendental function at v, in magnitude.
double argument(const Gate& gate, double v) {
  const double a = std::fabs(v);
  switch (gate.activation) {
    case Activation::kSilu:
    case Activation::kSigmoid:
      return std::fabs(gate.alpha) * a;
    case Activation::kGeluTanh:
      return 2 * detail::kSqrt2OverPi * (a + 3 * detail::kGeluCubic * a * a * a);
    case Activation::kGeluErf:
      return a * a;
    case Activation::kRelu:
    case Activation::kIdentity:
      return 0;
  }
  return 0;
}

std::vector<Gate> gates() {
  std::vector<Gate> all;
  for (const Activation a : kAll) {
    all.push_back({.activation = a});
    all.push_back({.activation = a,
                   .limit = 2.5F,
                   .up_offset = 1.0F,
                   .gate_multiplier = 1.25F,
                   .output_multiplier = -2.0F});
  }
  all.push_back(Gate::clamped_swiglu());
  all.push_back({.activation = Activation::kSigmoid, .alpha = -0.75F});
  return all;
}

std::vector<double> points() {
  std::vector<double> all = {0.0, 1e-6, -1e-6, 30.0, -30.0};
  for (int i = -56; i <= 56; ++i) all.push_back(i / 8.0 + 1.0 / 64);
  return all;
}

template <class T>
class GateMaths : public testing::Test {
 protected:
  static constexpr double kEps = std::numeric_limits<T>::epsilon();
  static constexpr double kTiny = std::numeric_limits<T>::min();

  // `magnitude` is that of the result's terms, `factor` what act(v) is multiplied by.
  static double bound(const Gate& gate, double g, double magnitude, double factor) {
    const double v = std::min(double{gate.gate_multiplier} * g, double{gate.limit});
    constexpr auto kFormulaEps = static_cast<double>(std::numeric_limits<long double>::epsilon());
    return kRoundings * ((1 + argument(gate, v)) * kEps * magnitude + kTiny +
                         kFormulaEps * std::fabs(v * factor));
  }
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(GateMaths, Types);

TYPED_TEST(GateMaths, ValueIsTheFormula) {
  for (const Gate& gate : gates()) {
    for (const double g : points()) {
      for (const double u : {-3.25, -0.5, 0.0, 0.75, 3.0}) {
        const auto got = gate_mul(gate, static_cast<TypeParam>(g), static_cast<TypeParam>(u));
        const double factor = gate.output_multiplier * (std::fabs(u) + gate.up_offset);
        const long double want =
            formula(gate, static_cast<TypeParam>(g), static_cast<TypeParam>(u));
        ASSERT_LE(std::fabs(static_cast<double>(got - want)),
                  this->bound(gate, g, static_cast<double>(std::fabs(want)), factor))
            << to_string(gate.activation) << " g " << g << " u " << u;
      }
    }
  }
}

// A central difference of f at x, and how far it may be off: halving the step divides its
// truncation error by 4, so that the change is three times what is left; plus rounding.
struct Difference {
  long double value;
  long double error;
};
template <class F>
Difference difference(const F& f, long double x) {
  const auto central = [&](long double step) { return (f(x + step) - f(x - step)) / (2 * step); };
  constexpr long double kStep = 0x1p-14L;
  const long double half = central(kStep / 2);
  const long double largest = std::max(std::fabs(f(x + kStep)), std::fabs(f(x - kStep)));
  const long double rounding =
      8 * std::numeric_limits<long double>::epsilon() * largest / (kStep / 2);
  return {half, std::fabs(half - central(kStep)) + rounding};
}

TYPED_TEST(GateMaths, GradientIsTheDifferenceQuotient) {
  constexpr double kDh = 1.5;
  for (const Gate& gate : gates()) {
    for (const double point : points()) {
      // Kinks have no difference quotient; the rules there are tested by themselves.
      const bool at_kink = gate.activation == Activation::kRelu && std::fabs(point) < 1e-3;
      if (at_kink) continue;
      for (const double u : {-3.25, -0.5, 0.75, 3.0}) {
        const auto g = static_cast<TypeParam>(point);
        const auto got =
            gate_mul_grad(gate, g, static_cast<TypeParam>(u), static_cast<TypeParam>(kDh));
        const auto by_g = difference([&](long double x) { return kDh * formula(gate, x, u); }, g);
        const auto by_u = difference([&](long double x) { return kDh * formula(gate, g, x); }, u);
        // The terms of the derivative, without their cancellation: |act'| <= 1 + |v| · alpha.
        const double v = std::min(std::fabs(double{gate.gate_multiplier} * point),
                                  std::fabs(double{gate.limit}));
        const double terms = std::fabs(kDh * gate.output_multiplier * gate.gate_multiplier *
                                       (std::fabs(u) + std::fabs(gate.up_offset))) *
                             (1 + std::max(1.0, argument(gate, v)));
        ASSERT_LE(std::fabs(static_cast<double>(got.dg - by_g.value)),
                  this->bound(gate, point, terms, 0) + static_cast<double>(by_g.error))
            << to_string(gate.activation) << " dg at g " << point << " u " << u;
        const double value = static_cast<double>(std::fabs(by_u.value));
        ASSERT_LE(std::fabs(static_cast<double>(got.du - by_u.value)),
                  this->bound(gate, point, value, kDh * gate.output_multiplier) +
                      static_cast<double>(by_u.error))
            << to_string(gate.activation) << " du at g " << point << " u " << u;
        ASSERT_EQ(got.h, gate_mul(gate, g, static_cast<TypeParam>(u)));
      }
    }
  }
}

TYPED_TEST(GateMaths, NanPasses) {
  constexpr TypeParam kNan = std::numeric_limits<TypeParam>::quiet_NaN();
  for (Gate gate : gates()) {
    for (const float limit : {7.0F, std::numeric_limits<float>::infinity()}) {
      gate.limit = limit;
      const char* name = to_string(gate.activation);
      EXPECT_TRUE(std::isnan(gate_mul(gate, kNan, TypeParam(2)))) << name;
      EXPECT_TRUE(std::isnan(gate_mul(gate, TypeParam(2), kNan))) << name;
      const auto in_u = gate_mul_grad(gate, TypeParam(2), kNan, TypeParam(1));
      EXPECT_TRUE(std::isnan(in_u.h) && std::isnan(in_u.dg)) << name;
      const auto in_g = gate_mul_grad(gate, kNan, TypeParam(2), TypeParam(1));
      EXPECT_TRUE(std::isnan(in_g.h) && std::isnan(in_g.du)) << name;
      if (gate.activation != Activation::kIdentity) {
        EXPECT_TRUE(std::isnan(in_g.dg)) << name;
      }
    }
  }
}

// Finite but huge: the value saturates, and no derivative turns into NaN by overflow inside.
TYPED_TEST(GateMaths, HugeValuesSaturate) {
  constexpr TypeParam kMax = std::numeric_limits<TypeParam>::max();
  for (const Activation a : kAll) {
    for (const float alpha : {1.0F, 1.702F}) {
      const bool has_alpha = a == Activation::kSilu || a == Activation::kSigmoid;
      const Gate gate{.activation = a, .alpha = has_alpha ? alpha : 1.0F};
      for (const TypeParam v : {kMax, kMax / 2, std::sqrt(kMax) * 4, TypeParam(1e10)}) {
        const auto high = gate_mul_grad(gate, v, TypeParam(1), TypeParam(1));
        EXPECT_EQ(high.h, a == Activation::kSigmoid ? TypeParam(1) : v) << to_string(a);
        EXPECT_EQ(high.dg, a == Activation::kSigmoid ? TypeParam(0) : TypeParam(1)) << to_string(a);
        const auto low = gate_mul_grad(gate, -v, TypeParam(1), TypeParam(1));
        EXPECT_EQ(low.h, a == Activation::kIdentity ? -v : TypeParam(0)) << to_string(a);
        EXPECT_EQ(low.dg, a == Activation::kIdentity ? TypeParam(1) : TypeParam(0)) << to_string(a);
      }
    }
  }
}

TYPED_TEST(GateMaths, InfinityThroughAClampIsTheLimit) {
  constexpr TypeParam kInf = std::numeric_limits<TypeParam>::infinity();
  const Gate gate{.activation = Activation::kIdentity, .limit = 7.0F, .up_offset = 1.0F};
  EXPECT_EQ(gate_mul(gate, kInf, TypeParam(0)), TypeParam(7));
  EXPECT_EQ(gate_mul(gate, TypeParam(1), kInf), TypeParam(8));
  EXPECT_EQ(gate_mul(gate, TypeParam(1), -kInf), TypeParam(-6));
  EXPECT_EQ(gate_mul(gate, -kInf, TypeParam(0)), -kInf) << "g has no lower limit";
}

// On the boundary the gradient passes; one step outside it is cut.
TYPED_TEST(GateMaths, TheBoundaryOfTheClampIsInside) {
  const Gate gate{.activation = Activation::kIdentity, .limit = 7.0F, .up_offset = 1.0F};
  const TypeParam limit = 7;
  const TypeParam outside = std::nextafter(limit, TypeParam(8));
  const auto grad = [&](TypeParam g, TypeParam u) {
    return gate_mul_grad(gate, g, u, TypeParam(1));
  };
  EXPECT_EQ(grad(limit, 1).dg, TypeParam(2));
  EXPECT_EQ(grad(outside, 1).dg, TypeParam(0));
  EXPECT_EQ(grad(-outside, 1).dg, TypeParam(2));
  EXPECT_EQ(grad(3, limit).du, TypeParam(3));
  EXPECT_EQ(grad(3, -limit).du, TypeParam(3));
  EXPECT_EQ(grad(3, outside).du, TypeParam(0));
  EXPECT_EQ(grad(3, -outside).du, TypeParam(0));
  EXPECT_EQ(grad(outside, outside).h, TypeParam(7 * 8));
}

TYPED_TEST(GateMaths, ReluAtZeroHasNoSlope) {
  EXPECT_EQ(activate_grad(Activation::kRelu, TypeParam(0), TypeParam(1)).derivative, TypeParam(0));
  EXPECT_EQ(activate_grad(Activation::kRelu, TypeParam(-0.0), TypeParam(1)).derivative,
            TypeParam(0));
}

}  // namespace
}  // namespace sluice::math
