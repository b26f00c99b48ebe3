// SPDX-License-Identifier: Apache-2.0
// Oracle: any element of any output in fp64, with a computed bound on how far a correct kernel may
// be from it. Independent of the reference variant; shares only scalar maths (src/math) with it.
// The bounds are derived in docs/numerics.md.
#pragma once

#include <cstdint>
#include <memory>

#include "harness/bounds.hpp"
#include "sluice/operands.hpp"
#include "sluice/problem.hpp"

namespace sluice::harness {

/// What one output element should be.
struct OracleValue {
  double value = 0;  ///< the formula in fp64, from the operands as stored
  double bound = 0;  ///< a correct kernel's |got - value| is at most this, its rounding included
  bool may_overflow = false;  ///< an intermediate may leave the range of fp32 or of a storage type:
                              ///< infinities and NaN are right too
};

/// Evaluates single elements of the outputs of one problem.
///
/// `inputs` are host pointers laid out as the problem says, alive as long as the oracle; outputs in
/// it are not read, but for weight gradients that are accumulated into (their content before run).
/// Rows of intermediates (n, g, u, h, dh and the gradients) are cached: sampling every column of a
/// row of kMlp costs 3·D·H multiplications once. Not thread-safe.
class Oracle {
 public:
  Oracle(const Problem& problem, const Operands& inputs, Rounds rounds = Rounds::kFused);
  ~Oracle();
  Oracle(const Oracle&) = delete;
  Oracle& operator=(const Oracle&) = delete;

  /// Makes every bound 0: for cases whose results are exact (exact_integers()).
  void set_exact(bool exact) noexcept;

  /// The bounds hold together for this many elements but for a probability of 2^-40 that rounding
  /// errors conspire (docs/numerics.md). Default 2^32.
  void set_compared_elements(std::int64_t count) noexcept;

  [[nodiscard]] OracleValue at(Operand output, std::int64_t row, std::int64_t col);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::harness
