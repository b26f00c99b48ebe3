// SPDX-License-Identifier: Apache-2.0
// What must not change a result, or must change it exactly so: scaling by a power of two, the order
// of tokens, columns of zeros, the layout, the thread count.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "harness/oracle.hpp"
#include "random_case.hpp"

namespace sluice::property {
namespace {

using harness::Case;
using harness::Oracle;
using harness::OracleValue;

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// u doubles exactly, so h does, and y; fp16 is left out, because subnormals would round otherwise.
TEST(Scaling, DoublingUpDoublesTheOutput) {
  EXPECT_TRUE(rc::check([] {
    Case c = random_case(*rc::gen::element(Op::kGateUp, Op::kMlp), {.fp64 = false, .flags = false});
    Problem& p = c.problem;
    for (DType* dtype : {&p.x_dtype, &p.w_dtype, &p.y_dtype}) {
      if (*dtype == DType::kF16) *dtype = DType::kBF16;
    }
    p.gate = {.activation = p.gate.activation};
    RC_PRE(harness::place(c).has_value());
    const Operand out = p.op == Op::kGateUp ? Operand::kH : Operand::kY;
    for_each_choice(p, [&](const Options& options) {
      Bench once(c);
      Bench twice(c);
      twice.for_each(Operand::kWUp, [&](std::int64_t r, std::int64_t col) {
        return 2 * once.get(Operand::kWUp, r, col);
      });
      once.run(options);
      twice.run(options);
      for (std::int64_t r = 0; r < once.spec(out).rows; ++r) {
        for (std::int64_t col = 0; col < once.spec(out).cols; ++col) {
          RC_ASSERT(twice.get(out, r, col) == 2 * once.get(out, r, col));
        }
      }
    });
  }));
}

TEST(Tokens, PermutingThemPermutesTheRows) {
  EXPECT_TRUE(rc::check([] {
    const Op op = *rc::gen::element(Op::kGateUp, Op::kDown, Op::kMlp, Op::kGateMul);
    Case c = random_case(op, {.flags = false});
    std::vector<std::int64_t> order(static_cast<std::size_t>(c.problem.m));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[*rc::gen::inRange<std::size_t>(0, i)]);
    }
    const Operand out = op == Op::kGateUp || op == Op::kGateMul ? Operand::kH : Operand::kY;
    for_each_choice(c.problem, [&](const Options& options) {
      Bench plain(c);
      Bench permuted(c);
      for (const Operand in : {Operand::kX, Operand::kG, Operand::kU, Operand::kH}) {
        if (plain.spec(in).access != Access::kRead) continue;
        permuted.for_each(in, [&](std::int64_t r, std::int64_t col) {
          return plain.get(in, order[static_cast<std::size_t>(r)], col);
        });
      }
      plain.run(options);
      permuted.run(options);
      for (std::int64_t r = 0; r < c.problem.m; ++r) {
        for (std::int64_t col = 0; col < plain.spec(out).cols; ++col) {
          RC_ASSERT(permuted.get(out, r, col) ==
                    plain.get(out, order[static_cast<std::size_t>(r)], col));
        }
      }
    });
  }));
}

// The padded problem computes the same sums with zero terms more.
TEST(Padding, ZerosInDOrHChangeNothingBeyondTheBound) {
  EXPECT_TRUE(rc::check([] {
    const Op op = *rc::gen::element(Op::kGateUp, Op::kDown, Op::kMlp);
    const Case c = random_case(op, {.max_dim = 150, .flags = false});
    Case wide = c;
    wide.problem.d += *rc::gen::inRange(0, 70);
    wide.problem.h += *rc::gen::inRange(0, 70);
    RC_PRE(harness::place(wide).has_value());
    Bench plain(c);
    const auto inputs = plain.set().host_inputs();
    RC_ASSERT(inputs.has_value());
    const Operand out = op == Op::kGateUp ? Operand::kH : Operand::kY;
    for_each_choice(wide.problem, [&](const Options& options) {
      Bench padded(wide);
      for (const Operand in :
           {Operand::kX, Operand::kWGate, Operand::kWUp, Operand::kWDown, Operand::kH}) {
        const OperandSpec& small = plain.spec(in);
        if (small.access != Access::kRead) continue;
        padded.for_each(in, [&](std::int64_t r, std::int64_t col) {
          return r < small.rows && col < small.cols ? plain.get(in, r, col) : 0.0;
        });
      }
      padded.run(options);
      const auto padded_inputs = padded.set().host_inputs();
      RC_ASSERT(padded_inputs.has_value());
      Oracle exact(c.problem, *inputs);
      Oracle bound(wide.problem, *padded_inputs);
      for (std::int64_t r = 0; r < plain.spec(out).rows; ++r) {
        for (std::int64_t col = 0; col < plain.spec(out).cols; ++col) {
          const double value = exact.at(out, r, col).value;
          RC_ASSERT(std::fabs(padded.get(out, r, col) - value) <= bound.at(out, r, col).bound);
        }
      }
    });
  }));
}

// Where the rows lie must not show in the bits: a config computes the same sums in the same order.
TEST(Layouts, DoNotChangeTheBits) {
  EXPECT_TRUE(rc::check([] {
    const Case c = random_case(random_op(), {.fp64 = false, .flags = false});
    Case other = c;
    other.placement = harness::Placement::kSeparate;
    other.block_rows = 0;
    other.up_first = false;
    other.pad_elems = 0;
    other.align = 0;
    RC_PRE(harness::place(other).has_value());
    for_each_choice(c.problem, [&](const Options& options) {
      Bench a(c);
      Bench b(other);
      a.run(options);
      b.run(options);
      for (const Operand out : a.set().outputs()) {
        for (std::int64_t r = 0; r < a.spec(out).rows; ++r) {
          for (std::int64_t col = 0; col < a.spec(out).cols; ++col) {
            RC_ASSERT(same(a.get(out, r, col), b.get(out, r, col)));
          }
        }
      }
    });
  }));
}

TEST(Threads, DoNotChangeTheBits) {
  EXPECT_TRUE(rc::check([] {
    const Case c = random_case(random_op());
    const int threads = *rc::gen::inRange(2, 9);
    for_each_choice(c.problem, [&](Options options) {
      Bench one(c);
      Bench many(c);
      options.threads = 1;
      one.run(options);
      options.threads = threads;
      many.run(options);
      for (const Operand out : one.set().outputs()) {
        for (std::int64_t r = 0; r < one.spec(out).rows; ++r) {
          for (std::int64_t col = 0; col < one.spec(out).cols; ++col) {
            RC_ASSERT(same(one.get(out, r, col), many.get(out, r, col)));
          }
        }
      }
    });
  }));
}

}  // namespace
}  // namespace sluice::property
