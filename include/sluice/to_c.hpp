// SPDX-License-Identifier: Apache-2.0
// The C structs of C++ ones, for C interfaces that take them (sluice/foreign.h).
#pragma once

#include "sluice/device.hpp"
#include "sluice/export.hpp"
#include "sluice/operands.hpp"
#include "sluice/problem.hpp"
#include "sluice/sluice.h"

namespace sluice {

/// The same values, struct_size that of this version. Thread-safe.
[[nodiscard]] SLUICE_EXPORT sluice_problem to_c(const Problem& problem) noexcept;
[[nodiscard]] SLUICE_EXPORT sluice_device to_c(const Device& device) noexcept;
[[nodiscard]] SLUICE_EXPORT sluice_operands to_c(const Operands& operands) noexcept;

}  // namespace sluice
