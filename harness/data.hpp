// SPDX-License-Identifier: Apache-2.0
// OperandSet: every operand of a case on a rig, inputs filled, outputs poisoned, with canaries
// before, between and behind the rows.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/case.hpp"
#include "harness/rig.hpp"
#include "sluice/operands.hpp"

namespace sluice::harness {

/// A matrix in host memory with the layout of its spec; `data` is element (0, 0).
struct HostMatrix {
  OperandSpec spec{};
  const void* data = nullptr;
  [[nodiscard]] double at(std::int64_t row, std::int64_t col) const;
};

/// Whether a set can be checked after a run: checked sets keep host copies of inputs that a run
/// overwrites and checksums of the others, which takes longer than filling them.
enum class Checked { kYes, kNo };

/// What an output that holds no input holds before a run.
enum class Poison { kNaN, kZero };

/// The operands of one case.
///
/// Inputs hold fill_value(); outputs hold NaN in every element (an output that is accumulated into
/// or is in place holds its input). Every byte of a buffer that belongs to no element is a canary;
/// of a buffer that is only read, canaries are NaN in every type. Optional operands (kMayWrite) are
/// given too. Not thread-safe.
class OperandSet {
 public:
  /// Allocates and fills. A set that is not Checked is only for running: neither host_inputs() nor
  /// check_canaries() may be asked of it. Operands that do not rotate (timing::rotates()) are those
  /// of `first`, a set of the same case that outlives this one, where there is one. Errors:
  /// kOutOfMemory, kDevice; kInvalidArgument for a checked set with a `first`.
  [[nodiscard]] static Expected<std::unique_ptr<OperandSet>> make(
      const Case& c, Rig& rig, Checked checked = Checked::kYes, const OperandSet* first = nullptr);
  ~OperandSet();

  /// Device pointers, to be given to run().
  [[nodiscard]] const Operands& operands() const noexcept;
  [[nodiscard]] const Case& test_case() const noexcept;
  [[nodiscard]] Rig& rig() const noexcept;
  [[nodiscard]] const OperandSpec& spec(Operand id) const noexcept;

  /// Puts outputs back into the state of make(): poison, or the input where it is also read.
  Status reset_outputs(Poison poison = Poison::kNaN);

  /// Are all canaries whole and all inputs as they were filled? The first byte that is not is named
  /// ("y: a write 6 bytes behind row 3") in a kInternal error.
  Status check_canaries();

  /// Host pointers to the inputs as they were before run(), in the problem's layouts: what the
  /// oracle reads. On a CPU rig these are the operands themselves where nothing overwrites them.
  [[nodiscard]] Expected<Operands> host_inputs();

  /// An operand as it is now. The memory is the rig's own or lives until the next call for `id`.
  [[nodiscard]] Expected<HostMatrix> host_matrix(Operand id);

  /// The operands that run() writes, in Operand's order.
  [[nodiscard]] std::vector<Operand> outputs() const;

  /// Bytes allocated on the rig, canaries included.
  [[nodiscard]] std::size_t bytes() const noexcept;

 private:
  struct State;
  explicit OperandSet(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sluice::harness
