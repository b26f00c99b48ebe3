// SPDX-License-Identifier: Apache-2.0
// Plans by problem, device and thread count, so that a call costs a lookup.
#pragma once

#include <sluice/sluice.h>

#include <array>
#include <cstdint>
#include <sluice/operands.hpp>  // Operand: the index that sluice_operand_query takes

#include "place.hpp"

namespace sluice_binding {

/// A plan and what it wants of each operand.
struct Prepared {
  sluice_plan plan{};
  std::size_t workspace_bytes = 0;
  std::array<sluice_operand_spec, sluice::kOperandCount> operands{};
};

/// The plan for `problem`, made at its first use. `problem` must have been zeroed before
/// sluice_problem_init: its bytes are the key. Valid until this thread's next call. Throws what the
/// library says of it. Thread-safe. A binding has one `parallel_for`, which lends CPU plans
/// threads; null for the library's own.
const Prepared& prepare(const sluice_problem& problem, const Place& place, std::int32_t threads,
                        sluice_parallel_for parallel_for);

}  // namespace sluice_binding
