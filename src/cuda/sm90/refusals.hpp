// SPDX-License-Identifier: Apache-2.0
// What every Hopper variant refuses, with the reason. Pure.
#pragma once

#include "core/kernel.hpp"

namespace sluice::cuda::sm90 {

/// Anything but a Hopper GPU with 227 KiB of shared memory a block.
[[nodiscard]] detail::Reason device_refusal(const Device& device) noexcept;

/// What the copy engine cannot move: an alignment below 16 bytes, widths that are no multiples
/// of 8.
[[nodiscard]] detail::Reason copy_refusal(const Problem& problem) noexcept;

}  // namespace sluice::cuda::sm90
