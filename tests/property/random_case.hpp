// SPDX-License-Identifier: Apache-2.0
// Random cases for properties, and elementwise access to the operands of one on the CPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "harness/case.hpp"
#include "harness/data.hpp"
#include "harness/rig.hpp"
#include "sluice/plan.hpp"

namespace sluice::property {

/// What a random case may be.
struct Wanted {
  std::int64_t max_dim = 300;
  double max_operations = 1e6;  ///< m·d·h is kept below, by cutting m
  bool fp64 = true;             ///< types may be fp64
  bool blocks = false;          ///< weights may be in blocks, which put() cannot change
  bool flags = true;            ///< biases, norm, residual, save, accumulate, in_place, broadcast
  harness::Fill fill = harness::Fill::kNormal;
};

/// Draws a placed, valid case of an operator; inside a rapidcheck property only.
[[nodiscard]] harness::Case random_case(Op op, const Wanted& wanted = {});

/// Draws an operator.
[[nodiscard]] Op random_op();

/// The CPU's rig, one for the program.
[[nodiscard]] harness::Rig& cpu();

/// A case's operands on the CPU, and runs into them.
class Bench {
 public:
  explicit Bench(const harness::Case& c);

  [[nodiscard]] harness::OperandSet& set() { return *set_; }
  [[nodiscard]] const Problem& problem() const { return set_->test_case().problem; }
  [[nodiscard]] const OperandSpec& spec(Operand id) const { return set_->spec(id); }
  [[nodiscard]] double get(Operand id, std::int64_t row, std::int64_t col) const;
  void put(Operand id, std::int64_t row, std::int64_t col, double value);
  /// Sets every element of an operand that the case has.
  void for_each(Operand id, const std::function<double(std::int64_t, std::int64_t)>& value);

  /// Runs the problem with these options; fails the property if plan or run do.
  void run(const Options& options = {});

 private:
  [[nodiscard]] char* element(Operand id, std::int64_t row, std::int64_t col) const;
  std::unique_ptr<harness::OperandSet> set_;
};

/// Calls `check` for every variant and config that takes the problem.
void for_each_choice(const Problem& problem, const std::function<void(const Options&)>& check);

}  // namespace sluice::property
