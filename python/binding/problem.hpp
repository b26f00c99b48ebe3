// SPDX-License-Identifier: Apache-2.0
// Problems and operands as the bindings fill them.
#pragma once

#include <sluice/sluice.h>

#include <sluice/operands.hpp>  // Operand: the index that sluice_operand_query takes

namespace sluice_binding {

/// A problem as sluice_problem_init makes it, with zeros between its members, as the plan cache
/// wants it, and weights that earlier work may write. Copy it by std::memcpy: an assignment may
/// leave gaps out.
const sluice_problem& new_problem();

/// Writes one operand's pointer.
void set_operand(sluice_operands& operands, sluice::Operand id, void* data);

}  // namespace sluice_binding
