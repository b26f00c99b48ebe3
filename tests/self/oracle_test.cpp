// SPDX-License-Identifier: Apache-2.0
// The oracle against values worked out by hand, and its bounds against roundings done on purpose.
#include "harness/oracle.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "harness/bounds.hpp"
#include "harness/case.hpp"
#include "harness/fill.hpp"
#include "math/float_types.hpp"
#include "math/gate.hpp"

namespace sluice::harness {
namespace {

Case parsed(const char* text) {
  const auto c = parse_case(text);
  EXPECT_TRUE(c) << text << ": " << (c ? "" : c.error().message);
  return c ? *c : Case{};
}

// x = [1, 2], Wg = [1 0; 1 1], Wu = [2 1; 0 -1], Wd = [1 1; 2 0], identity gate:
// g = [1, 3], u = [4, -2], h = [4, -6], y = [-2, 8].
TEST(OracleTest, ComputesTheMlpByHand) {
  const Problem p = parsed("1x2x2:fp64:identity:bias_down").problem;
  const std::vector<double> x = {1, 2}, wg = {1, 0, 1, 1}, wu = {2, 1, 0, -1}, wd = {1, 1, 2, 0},
                            bd = {0.5, -1};
  Operands in;
  in.x = x.data();
  in.w_gate = wg.data();
  in.w_up = wu.data();
  in.w_down = wd.data();
  in.b_down = bd.data();
  Oracle oracle(p, in);
  EXPECT_EQ(oracle.at(Operand::kY, 0, 0).value, -1.5);
  EXPECT_EQ(oracle.at(Operand::kY, 0, 1).value, 7.0);
}

// The same block backwards with dy = [1, -1]: dh = dy Wd = [-1, 1], dg = u dh = [-4, -2],
// du = g dh = [-1, 3], dx = dg Wg + du Wu = [-6, -2] + [-2, -4].
TEST(OracleTest, ComputesTheGradientsByHand) {
  const Problem p = parsed("1x2x2:fp64:identity:mlp_grad:recompute").problem;
  const std::vector<double> x = {1, 2}, wg = {1, 0, 1, 1}, wu = {2, 1, 0, -1}, wd = {1, 1, 2, 0},
                            dy = {1, -1};
  Operands in;
  in.x = x.data();
  in.w_gate = wg.data();
  in.w_up = wu.data();
  in.w_down = wd.data();
  in.dy = dy.data();
  Oracle oracle(p, in);
  EXPECT_EQ(oracle.at(Operand::kDx, 0, 0).value, -8.0);
  EXPECT_EQ(oracle.at(Operand::kDx, 0, 1).value, -6.0);
  EXPECT_EQ(oracle.at(Operand::kDwGate, 0, 1).value, -8.0);  // dg[0] x[1]
  EXPECT_EQ(oracle.at(Operand::kDwUp, 1, 0).value, 3.0);     // du[1] x[0]
  EXPECT_EQ(oracle.at(Operand::kDwDown, 1, 0).value, -4.0);  // dy[1] h[0]
}

TEST(OracleTest, NormalisesByHand) {
  // r = [3, 4], mean square 12.5; n = r / sqrt(12.5) (eps is far below the tolerance asked for).
  Problem p = parsed("1x2x1:gate_up:fp64:norm:identity").problem;
  const std::vector<double> x = {3, 4}, one = {1, 1}, wg = {1, 0}, wu = {0, 1};
  Operands in;
  in.x = x.data();
  in.norm_weight = one.data();
  in.w_gate = wg.data();
  in.w_up = wu.data();
  Oracle oracle(p, in);
  const double eps = static_cast<double>(p.norm.eps);
  const OracleValue h = oracle.at(Operand::kH, 0, 0);
  EXPECT_LE(std::fabs(h.value - 12.0 / (12.5 + eps)), h.bound);
}

// Squares of 2^70 are no fp32: the scale of their sum is 0.
TEST(OracleTest, ANormOfVastNumbersMayBeZero) {
  for (const auto& [exponent, vanishes] : {std::pair{70, true}, {60, false}}) {
    const std::vector<float> x = {std::ldexp(1.0F, exponent), std::ldexp(1.0F, exponent)};
    const std::vector<float> norm_weight = {3, 3};
    Operands in;
    in.x = x.data();
    in.norm_weight = norm_weight.data();
    const OracleValue y = Oracle(parsed("1x2:norm:fp32").problem, in).at(Operand::kY, 0, 0);
    EXPECT_LE(std::fabs(y.value - 3), y.bound);
    EXPECT_EQ(y.bound >= y.value, vanishes);
    EXPECT_EQ(y.may_overflow, vanishes);
    const std::vector<float> one = {1, 1};
    in.w_gate = in.w_up = one.data();
    const OracleValue h =
        Oracle(parsed("1x2x1:gate_up:norm:fp32:identity").problem, in).at(Operand::kH, 0, 0);
    EXPECT_LE(std::fabs(h.value - 36), h.bound);
    EXPECT_EQ(h.bound >= h.value, vanishes);
  }
}

// r = [2^60, 0] times a weight of 2^70 is out of bf16's range until it is scaled, which a kernel
// may do behind the sum; one of fp32 or of another offset scales n, and a weight of 2^60 fits in
// any order.
TEST(OracleTest, ANormOfBf16MayBeScaledBehindTheSum) {
  const auto h_of = [](const char* text, int weight, const auto& power) {
    const Problem p = parsed(text).problem;
    const std::vector x = {power(60), power(60)}, norm_weight = {power(weight), power(weight)},
                      w = {power(-weight), power(-weight)};
    Operands in;
    in.x = x.data();
    in.norm_weight = norm_weight.data();
    in.w_gate = in.w_up = w.data();
    return Oracle(p, in).at(Operand::kH, 0, 0);
  };
  const auto bf16 = [](int n) { return static_cast<std::uint16_t>((n + 127) << 7); };
  const auto fp32 = [](int n) { return std::ldexp(1.0F, n); };
  for (const auto& [got, overflows] :
       {std::pair{h_of("1x2x1:gate_up:norm:identity", 70, bf16), true},
        std::pair{h_of("1x2x1:gate_up:norm:identity", 60, bf16), false},
        std::pair{h_of("1x2x1:gate_up:norm(weight_offset=0.5):identity", 70, bf16), false},
        std::pair{h_of("1x2x1:gate_up:fp32:norm:identity", 70, fp32), false}}) {
    EXPECT_LE(std::fabs(got.value - 4), got.bound);
    EXPECT_EQ(got.may_overflow, overflows);
  }
}

// The scale behind the sum is one rounding more, allowed where a kernel may have it: the factors of
// both offsets are 2.
TEST(OracleTest, OnlyAScaleBehindTheSumIsARoundingMore) {
  const auto bound = [](const char* text, float norm_weight) {
    const Problem p = parsed(text).problem;
    const math::BF16 one = math::to_bf16(1.0F), weight = math::to_bf16(norm_weight);
    const std::vector x = {one, one}, norm_weights = {weight, weight};
    Operands in;
    in.x = in.w_gate = in.w_up = x.data();
    in.norm_weight = norm_weights.data();
    return Oracle(p, in).at(Operand::kH, 0, 0).bound;
  };
  EXPECT_GT(bound("1x2x1:gate_up:norm(weight_offset=1):identity", 1.0F),
            bound("1x2x1:gate_up:norm(weight_offset=0.5):identity", 1.5F));
}

// fp32 sums in order, backwards and by pairs all stay within the bound, and use some of it.
TEST(Bounds, CoverSumsInAnyOrder) {
  const Problem p = parsed("1x4096x1:gate_up:fp32:identity").problem;
  Rounding rounding(p);
  double largest_ratio = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const FillParams a = fill_params(p, Operand::kX, Fill::kNormal, seed);
    const FillParams b = fill_params(p, Operand::kWGate, Fill::kNormal, seed);
    std::vector<float> products(4096);
    TermSums sums;
    for (std::int64_t i = 0; i < 4096; ++i) {
      const float x = fill_value(a, 0, i);
      const float w = fill_value(b, 0, i);
      const double exact = static_cast<double>(x) * static_cast<double>(w);
      products[static_cast<std::size_t>(i)] = x * w;
      sums.value += exact;
      sums.magnitude += std::fabs(exact);
      sums.terms += 1;
    }
    const Uncertain dot = rounding.dot(sums);
    float forward = 0;
    float backward = 0;
    for (std::size_t i = 0; i < products.size(); ++i) {
      forward += products[i];
      backward += products[products.size() - 1 - i];
    }
    for (std::size_t n = products.size() / 2; n > 0; n /= 2) {
      for (std::size_t i = 0; i < n; ++i) products[i] += products[i + n];
    }
    for (const float got : {forward, backward, products[0]}) {
      const double ratio = std::fabs(static_cast<double>(got) - sums.value) / dot.error();
      EXPECT_LE(ratio, 1.0);
      largest_ratio = std::max(largest_ratio, ratio);
    }
    // Far below the worst case, which would hide a missing term of average size.
    EXPECT_LT(dot.error(), 4096 * rounding.accumulator() * sums.magnitude / 2);
    EXPECT_LT(dot.error(), sums.magnitude / 4096);
  }
  EXPECT_GT(largest_ratio, 0);
}

TEST(Bounds, CoverARoundingToAnyType) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (int i = 0; i < 10000; ++i) {
      const double v =
          std::ldexp(static_cast<double>(detail::draw(7, i, 0, 0) >> 11), -53 - i % 40);
      EXPECT_LE(std::fabs(math::rounded(v, dtype) - v), rounding_error(v, dtype)) << v;
    }
    EXPECT_EQ(math::rounded(largest(dtype), dtype), largest(dtype));
    EXPECT_TRUE(std::isinf(math::rounded(largest(dtype) * (1 + epsilon(dtype)), dtype)));
  }
}

// The gate in fp32, as src/math has it, is within the allowance for every activation.
TEST(Bounds, CoverTheGateInFp32) {
  for (int act = 0; act < kActivationCount; ++act) {
    Problem p;
    p.op = Op::kGateMulGrad;
    p.m = p.h = 1;
    p.x_dtype = DType::kF32;
    p.gate.activation = static_cast<Activation>(act);
    p.gate.up_offset = 0.5F;
    p.gate.limit = 30.0F;
    p.gate.gate_multiplier = 1.25F;
    const Rounding rounding(p);
    for (int i = 0; i < 20000; ++i) {
      const float g = 12.0F * detail::standard_normal(1, i, 0);
      const float u = 12.0F * detail::standard_normal(2, i, 0);
      const float dh = detail::standard_normal(3, i, 0);
      const auto got = math::gate_mul_grad(p.gate, g, u, dh);
      const auto want = rounding.gate_mul_grad({.value = static_cast<double>(g)},
                                               {.value = static_cast<double>(u)},
                                               {.value = static_cast<double>(dh)});
      const auto within = [](float value, const Uncertain& q) {
        return std::fabs(static_cast<double>(value) - q.value) <= q.error();
      };
      EXPECT_TRUE(within(got.h, want.h)) << to_string(p.gate.activation) << " " << g << " " << u;
      EXPECT_TRUE(within(got.dg, want.dg)) << to_string(p.gate.activation) << " " << g << " " << u;
      EXPECT_TRUE(within(got.du, want.du)) << to_string(p.gate.activation) << " " << g << " " << u;
    }
  }
}

// The slope of gelu_tanh is 0 at -infinity, and u · dh beyond fp32: 0 · infinity is what eager code
// has, 0 what a kernel has that multiplies in another order. Neither is wrong.
TEST(Bounds, AProductBeyondFp32TimesZeroMayBeEitherWithRoundGateToo) {
  Problem p;
  p.op = Op::kGateMulGrad;
  p.m = p.h = 1;
  p.x_dtype = DType::kF32;
  p.round_gate = true;
  p.gate.activation = Activation::kGeluTanh;
  const Uncertain dg = Rounding(p)
                           .gate_mul_grad({.value = -std::numeric_limits<double>::infinity()},
                                          {.value = 3e38}, {.value = -1.9})
                           .dg;
  EXPECT_TRUE(dg.may_overflow);
  EXPECT_EQ(dg.value, 0);
}

// With round_gate the same for x's types, and an evaluation without the rounding is outside: the
// bound is no wider than what lies between the ends of the gate's own error.
TEST(Bounds, CoverARoundedGateAndNoOther) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (int act = 0; act < kActivationCount; ++act) {
      Problem p;
      p.op = Op::kGateMulGrad;
      p.m = p.h = 1;
      p.x_dtype = dtype;
      p.round_gate = true;
      p.gate.activation = static_cast<Activation>(act);
      p.gate.up_offset = 0.5F;
      p.gate.limit = 30.0F;
      p.gate.gate_multiplier = 1.25F;
      const Rounding rounding(p);
      const auto to_x = [&](float v) {
        return static_cast<float>(math::rounded(static_cast<double>(v), dtype));
      };
      constexpr int kCount = 5000;
      int unrounded_outside = 0;
      for (int i = 0; i < kCount; ++i) {
        const float g = to_x(4.0F * detail::standard_normal(1, i, 0));
        const float u = to_x(12.0F * detail::standard_normal(2, i, 0));
        const float dh = to_x(detail::standard_normal(3, i, 0));
        const auto got = math::gate_mul_grad(p.gate, g, u, dh, to_x);
        const auto want = rounding.gate_mul_grad({.value = static_cast<double>(g)},
                                                 {.value = static_cast<double>(u)},
                                                 {.value = static_cast<double>(dh)});
        const auto within = [](float value, const Uncertain& q) {
          return std::fabs(static_cast<double>(value) - q.value) <= q.error();
        };
        SCOPED_TRACE(std::string(to_string(p.gate.activation)) + " " + to_string(dtype));
        EXPECT_TRUE(within(got.h, want.h)) << g << " " << u;
        EXPECT_TRUE(within(got.dg, want.dg)) << g << " " << u << " " << dh;
        EXPECT_TRUE(within(got.du, want.du)) << g << " " << dh;
        const auto plain = math::gate_mul_grad(p.gate, g, u, dh);
        if (!within(plain.dg, want.dg)) ++unrounded_outside;
      }
      if (dtype != DType::kF32) {
        const bool has_slope = p.gate.activation != Activation::kRelu;
        EXPECT_GT(unrounded_outside, has_slope ? kCount / 2 : kCount / 4);
      }
    }
  }
}

// An error of g that straddles the clamp may cut the gradient or not: both are within the bound.
TEST(Bounds, CoverTheJumpAtAClamp) {
  Problem p;
  p.op = Op::kGateUpGrad;
  p.m = p.d = p.h = 1;
  p.gate.limit = 1.0F;
  const Rounding rounding(p);
  const Uncertain g{.value = 0.999, .bound = 0.01, .spread = 0.001};
  const auto got = rounding.gate_mul_grad(g, {.value = 0.5}, {.value = 2.0});
  EXPECT_GE(got.dg.error(), std::fabs(got.dg.value));
  const auto sure = rounding.gate_mul_grad({.value = 0.9}, {.value = 0.5}, {.value = 2.0});
  EXPECT_LT(sure.dg.error(), std::fabs(sure.dg.value));
}

// What leaves the accumulator's range is an infinity, of a sign that the order of the sum decides;
// through a clamp it gives a finite result, and both are right.
TEST(Bounds, CoverAnOverflowThatAClampHides) {
  Problem p;
  p.m = p.d = p.h = 1;
  p.gate = {.activation = Activation::kIdentity, .limit = 2.0F};
  const Rounding rounding(p);
  const auto got = rounding.gate_mul({.value = 1}, {.value = 3e38, .may_overflow = true});
  EXPECT_EQ(got.value, 2);
  EXPECT_GE(got.error(), 4);
  EXPECT_TRUE(got.may_overflow);  // it may also be NaN
  EXPECT_LT(rounding.gate_mul({.value = 1}, {.value = 3e38}).error(), 1e-5);
}

// A dot product of bf16 may read a subnormal as 0, however large what it meets.
TEST(Bounds, CoverASubnormalOfBf16ReadAsZero) {
  const auto y_of = [](const char* text, std::uint16_t weight) {
    const Case c = parsed(text);
    std::uint16_t h16 = 0x0008;  // 2^-130
    float h32 = 0x1p-130F;
    Operands in;
    in.h = c.problem.x_dtype == DType::kBF16 ? static_cast<void*>(&h16) : &h32;
    in.w_down = &weight;
    return Oracle(c.problem, in).at(Operand::kY, 0, 0);
  };
  constexpr std::uint16_t kLarge = 0x7B80;  // 2^120
  constexpr std::uint16_t kInfinity = 0x7F80;
  EXPECT_EQ(y_of("1x1x1:down:bf16", kLarge).value, 0x1p-10);
  EXPECT_GE(y_of("1x1x1:down:bf16", kLarge).bound, 0x1p-10);
  EXPECT_LT(y_of("1x1x1:down:fp32/bf16/fp32", kLarge).bound, 0x1p-20);
  EXPECT_TRUE(y_of("1x1x1:down:bf16", kInfinity).may_overflow);  // 0 times infinity is NaN
  EXPECT_FALSE(y_of("1x1x1:down:fp32/bf16/fp32", kInfinity).may_overflow);
}

// Tokens that are one row in memory err alike: their errors add up over tokens.
TEST(Bounds, OfABroadcastTokenAddUp) {
  const auto bound_of = [](const char* text) {
    Case c = parsed(text);
    EXPECT_TRUE(place(c));
    const std::vector<std::uint16_t> bf16(4096, 0x3F81);  // 1.0078125 everywhere
    Operands in;
    for (std::size_t id = 0; id < kOperandCount; ++id) {
      set_address(in, static_cast<Operand>(id), const_cast<std::uint16_t*>(bf16.data()));
    }
    return Oracle(c.problem, in).at(Operand::kDwUp, 0, 0).bound;
  };
  EXPECT_GT(bound_of("400x1x1:mlp_grad:recompute:broadcast"),
            1.5 * bound_of("400x1x1:mlp_grad:recompute"));
}

}  // namespace
}  // namespace sluice::harness
