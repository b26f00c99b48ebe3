// SPDX-License-Identifier: Apache-2.0
// What the mma.sync kernels ask of a device and of operands alike. Pure.
#pragma once

#include "core/kernel.hpp"
#include "cuda/sm80/rows.hpp"

namespace sluice::cuda::sm80 {

/// A GPU before 8.0, or with less than `least_smem` bytes of shared memory a block.
[[nodiscard]] detail::Reason device_refusal(const Device& device, int least_smem) noexcept;

/// What copies of 16 bytes cannot move, types without tensor cores, and what no kernel of this
/// folder does: a norm, storing g and u.
[[nodiscard]] detail::Reason operand_refusal(const Problem& problem) noexcept;

/// The operand's rows; a null base where the step has none.
[[nodiscard]] Rows rows_of(const detail::Step& step, Operand id) noexcept;

}  // namespace sluice::cuda::sm80
