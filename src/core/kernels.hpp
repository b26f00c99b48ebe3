// SPDX-License-Identifier: Apache-2.0
// The table of kernels.
#pragma once

#include <span>

#include "core/kernel.hpp"

namespace sluice::detail {

/// Every kernel of the build.
[[nodiscard]] std::span<const Kernel* const> kernels() noexcept;

}  // namespace sluice::detail
