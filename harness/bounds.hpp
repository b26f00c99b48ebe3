// SPDX-License-Identifier: Apache-2.0
// The error model behind the oracle's bounds: rounding of sums, of stores and of gates. Every
// formula is derived in docs/numerics.md; nothing here is a tolerance that somebody chose.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "sluice/operands.hpp"
#include "sluice/problem.hpp"
#include "sluice/types.hpp"

namespace sluice::harness {

/// A number that a kernel computes with error: |computed - value| <= bound + |common|.
struct Uncertain {
  double value = 0;
  double bound = 0;   ///< of an error of mean zero that is independent of other elements' errors
  double spread = 0;  ///< that error's sub-Gaussian parameter: exceeds t with 2 exp(-t^2/2spread^2)
  double common = 0;  ///< shift by the largest error of the norm's scale: the same error for a
                      ///< whole row, so shifts add with their signs
  bool may_overflow = false;

  [[nodiscard]] double error() const noexcept { return bound + std::fabs(common); }
};

/// What a dot product's terms add up to; input of Rounding::dot().
struct TermSums {
  double value = 0;      ///< sum of a·b
  double magnitude = 0;  ///< sum of |a·b| over finite terms
  double bound = 0;      ///< sum of the bounds of a, times |b|
  double square = 0;     ///< sum of squares of the spreads of a, times b
  double common = 0;     ///< sum of the shifts of a, times b
  double tokens = 0;  ///< sum of |a|, a token's elements: what the scales of blocks are left out of
  double subnormal = 0;  ///< sum of |a·b| over terms with a factor that bf16 holds as a subnormal
  double terms = 0;      ///< how many
  double scale = 1;      ///< a factor of the result that a kernel may multiply the sum by instead
  bool may_overflow = false;
};

/// Gradients of one element, as a kernel computes them.
struct GateGradErrors {
  Uncertain h;
  Uncertain dg;
  Uncertain du;
};

/// What a kernel may round on the way. kUnfused: all that a program does which stores the result of
/// every operator of the formula, in x's type or, behind w_down, in y's.
enum class Rounds : std::uint8_t { kFused, kUnfused };

/// The error model of one problem.
class Rounding {
 public:
  explicit Rounding(const Problem& problem, Rounds rounds = Rounds::kFused);

  /// `count` elements are compared: sets the probability term (docs/numerics.md).
  void set_compared_elements(std::int64_t count) noexcept;

  /// Unit roundoff of the accumulator: 2^-24, or 2^-53 where an operand is fp64.
  [[nodiscard]] double accumulator() const noexcept { return u_; }

  /// The largest finite number of the accumulator.
  [[nodiscard]] double accumulator_max() const noexcept { return max_; }

  /// The smallest normal number of the accumulator: what is below may be flushed to zero.
  [[nodiscard]] double flushed() const noexcept { return tiny_; }

  /// A bound that holds but for the chance of the model, for an error of this spread.
  [[nodiscard]] double likely(double spread) const noexcept { return lambda_ * spread; }

  /// A dot product computed in the accumulator.
  [[nodiscard]] Uncertain dot(const TermSums& sums) const noexcept;

  /// Whether tokens may be rounded to fixed point before they are multiplied.
  [[nodiscard]] bool fixed_tokens() const noexcept { return fixed_tokens_; }

  /// Half the unit of a block of tokens in fixed point whose largest magnitude is `largest`.
  [[nodiscard]] double fixed_error(double largest) const noexcept;

  /// `v` after it may have been rounded to `dtype`.
  [[nodiscard]] Uncertain stored(Uncertain v, DType dtype) const noexcept;

  /// q + addend, with q stored in `dtype` before by an unfused program.
  [[nodiscard]] Uncertain added(Uncertain q, const Uncertain& addend, DType dtype) const noexcept;

  [[nodiscard]] bool unfused() const noexcept { return unfused_; }

  /// h = gate(g, u). With Problem::round_gate g and u are exact, as its operators read them.
  [[nodiscard]] Uncertain gate_mul(const Uncertain& g, const Uncertain& u) const noexcept;

  /// h, dg and du from g, u and dh.
  [[nodiscard]] GateGradErrors gate_mul_grad(const Uncertain& g, const Uncertain& u,
                                             const Uncertain& dh) const noexcept;

 private:
  struct ActError {
    double value = 0;
    double derivative = 0;
  };
  [[nodiscard]] ActError activation_error(double v) const noexcept;
  [[nodiscard]] Uncertain scaled(const Uncertain& g) const noexcept;
  void add_gate_stores(const Uncertain& g, const Uncertain& u, double dh,
                       GateGradErrors& out) const noexcept;
  [[nodiscard]] double product_error(double outer, double factor, double error) const noexcept;
  void add_evaluation(Uncertain& q, std::initializer_list<double> factors,
                      double error) const noexcept;
  [[nodiscard]] GateGradErrors rounded_gate_grad(const Uncertain& g, double u,
                                                 double dh) const noexcept;

  Gate gate_;
  DType x_dtype_;
  bool round_gate_;
  bool unfused_;
  double u_;
  double max_;
  double tiny_;        // the accumulator's smallest normal number: what may be flushed to zero
  bool fixed_tokens_;  // 16 bits times integers of blocks: scales may come after the sum
  bool flushes_bf16_;  // products of bf16: of subnormals and to zero
  double lambda_ = 0;
};

/// Half the distance from v to the next number of `dtype`, or more.
[[nodiscard]] double rounding_error(double magnitude, DType dtype) noexcept;

/// The largest finite number of `dtype`.
[[nodiscard]] double largest(DType dtype) noexcept;

}  // namespace sluice::harness
