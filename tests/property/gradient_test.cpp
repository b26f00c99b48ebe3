// SPDX-License-Identifier: Apache-2.0
// Gradients against central finite differences of the forward operators, in fp64 through the
// reference, for every gate.
//
// The bound is computed: D(s) - D(s/2) measures the truncation error of D(s/2) three times over
// (Richardson), and what the function's own rounding makes of a division by the step is added.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <string>
#include <vector>

#include "harness/fill.hpp"
#include "random_case.hpp"

namespace sluice::property {
namespace {

using harness::Case;

struct Difference {
  double value = 0;
  double bound = 0;
};

// The derivative of f at 0. `roundings` of the largest magnitude that f adds up.
template <class F>
Difference differentiate(const F& f, double roundings, double magnitude) {
  constexpr double kStep = 0x1p-14;
  const double coarse = (f(kStep) - f(-kStep)) / (2 * kStep);
  const double fine = (f(kStep / 2) - f(-kStep / 2)) / kStep;
  const double noise = roundings * 0x1p-53 * magnitude / (kStep / 2);
  return {fine, std::fabs(coarse - fine) + noise};
}

double random_entry(std::uint64_t seed, Operand id, std::int64_t row, std::int64_t col) {
  return static_cast<double>(
      harness::detail::standard_normal(seed + static_cast<std::uint64_t>(id), row, col));
}

Case smooth_case(Op op) {
  Case c = random_case(op, {.max_dim = 12, .flags = false});
  Problem& p = c.problem;
  p.x_dtype = p.w_dtype = p.y_dtype = p.dw_dtype = DType::kF64;
  p.alignment_bytes = 16;
  c.align = 0;
  c.seed = *rc::gen::arbitrary<std::uint32_t>();
  RC_PRE(harness::place(c).has_value());
  return c;
}

TEST(GateMulGrad, IsTheDerivativeOfGateMul) {
  EXPECT_TRUE(rc::check([] {
    const Case backward = smooth_case(Op::kGateMulGrad);
    Case forward = backward;
    forward.problem.op = Op::kGateMul;
    RC_PRE(harness::place(forward).has_value());
    Bench grad(backward);
    grad.run();
    Bench value(forward);
    const auto h_at = [&](Operand moved, double step) {
      for (const Operand in : {Operand::kG, Operand::kU}) {
        value.for_each(in, [&](std::int64_t r, std::int64_t col) {
          return grad.get(in, r, col) + (in == moved ? step : 0.0);
        });
      }
      value.run();
      std::vector<double> out;
      for (std::int64_t r = 0; r < forward.problem.m; ++r) {
        for (std::int64_t j = 0; j < forward.problem.h; ++j) {
          out.push_back(value.get(Operand::kH, r, j));
        }
      }
      return out;
    };
    for (const Operand moved : {Operand::kG, Operand::kU}) {
      const Operand out = moved == Operand::kG ? Operand::kDg : Operand::kDu;
      constexpr double kStep = 0x1p-14;
      const auto plus = h_at(moved, kStep);
      const auto minus = h_at(moved, -kStep);
      const auto plus_half = h_at(moved, kStep / 2);
      const auto minus_half = h_at(moved, -kStep / 2);
      std::size_t k = 0;
      for (std::int64_t r = 0; r < forward.problem.m; ++r) {
        for (std::int64_t j = 0; j < forward.problem.h; ++j, ++k) {
          const double dh = grad.get(Operand::kDh, r, j);
          const auto f = [&](double step) {
            return step == kStep    ? plus[k]
                   : step == -kStep ? minus[k]
                   : step > 0       ? plus_half[k]
                                    : minus_half[k];
          };
          // Inside the clamp's or relu's edge the two one-sided slopes differ: no derivative there.
          const double left = (f(kStep / 2) - f(-kStep)) / (1.5 * kStep);
          const double right = (f(kStep) - f(-kStep / 2)) / (1.5 * kStep);
          const Difference d = differentiate(f, 64, 1 + std::fabs(plus[k]));
          const double edge = std::fabs(left - right);
          RC_ASSERT(std::fabs(grad.get(out, r, j) - d.value * dh) <=
                    (d.bound + edge) * std::fabs(dh));
        }
      }
    }
  }));
}

// The loss is sum dy·y; each parameter is moved along a random direction.
TEST(MlpGrad, IsTheDerivativeOfMlp) {
  EXPECT_TRUE(rc::check([] {
    Case backward = smooth_case(Op::kMlpGrad);
    Problem& p = backward.problem;
    p.recompute = true;
    p.bias_gate_up = p.bias_down = *rc::gen::arbitrary<bool>();
    p.accumulate_dw = *rc::gen::arbitrary<bool>();
    RC_PRE(harness::place(backward).has_value());
    Case forward = backward;
    forward.problem.op = Op::kMlp;
    forward.problem.recompute = forward.problem.accumulate_dw = false;
    RC_PRE(harness::place(forward).has_value());
    Bench grad(backward);
    const auto loss = [&](Operand moved, double step) {
      Bench value(forward);
      for (const Operand in : {Operand::kX, Operand::kWGate, Operand::kWUp, Operand::kWDown,
                               Operand::kBGate, Operand::kBUp}) {
        if (grad.spec(in).access == Access::kUnused) continue;
        value.for_each(in, [&](std::int64_t r, std::int64_t col) {
          return grad.get(in, r, col) +
                 (in == moved ? step * random_entry(backward.seed, in, r, col) : 0.0);
        });
      }
      value.for_each(Operand::kBDown, [&](std::int64_t r, std::int64_t col) {
        return moved == Operand::kBDown ? step * random_entry(backward.seed, moved, r, col) : 0.0;
      });
      value.run();
      double sum = 0;
      for (std::int64_t r = 0; r < p.m; ++r) {
        for (std::int64_t i = 0; i < p.d; ++i) {
          sum += grad.get(Operand::kDy, r, i) * value.get(Operand::kY, r, i);
        }
      }
      return sum;
    };
    // What was there before an accumulating run is no part of the derivative.
    const std::pair<Operand, Operand> pairs[] = {
        {Operand::kX, Operand::kDx},         {Operand::kWGate, Operand::kDwGate},
        {Operand::kWUp, Operand::kDwUp},     {Operand::kWDown, Operand::kDwDown},
        {Operand::kBGate, Operand::kDbGate}, {Operand::kBUp, Operand::kDbUp},
        {Operand::kBDown, Operand::kDbDown}};
    const auto along = [&](Operand in, Operand out) {
      double sum = 0;
      for (std::int64_t r = 0; r < grad.spec(out).rows; ++r) {
        for (std::int64_t col = 0; col < grad.spec(out).cols; ++col) {
          sum += grad.get(out, r, col) * random_entry(backward.seed, in, r, col);
        }
      }
      return sum;
    };
    std::vector<double> before;
    for (const auto& [in, out] : pairs) {
      const bool read = grad.spec(out).access == Access::kReadWrite;
      before.push_back(read ? along(in, out) : 0.0);
    }
    grad.run();
    const auto terms = static_cast<double>(p.m * (p.d + p.h) * 3 + 64);
    for (std::size_t i = 0; i < std::size(pairs); ++i) {
      const auto [in, out] = pairs[i];
      if (grad.spec(out).access == Access::kUnused) continue;
      const auto f = [&, moved = in](double step) { return loss(moved, step); };
      const double scale = 1 + std::fabs(f(0.0)) + static_cast<double>(p.m * p.d * p.h);
      const Difference d = differentiate(f, terms, scale);
      // A kink that the step crosses shows as a difference of the one-sided slopes.
      constexpr double kStep = 0x1p-14;
      const double edge = std::fabs((f(kStep) - f(0.0)) - (f(0.0) - f(-kStep))) / kStep;
      RC_ASSERT(std::fabs(along(in, out) - before[i] - d.value) <= d.bound + edge);
    }
  }));
}

}  // namespace
}  // namespace sluice::property
