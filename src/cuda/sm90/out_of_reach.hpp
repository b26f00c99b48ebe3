// SPDX-License-Identifier: Apache-2.0
// gate_up where no tensor map leads from w_gate to w_up: one weight as both, or weights 2^40 bytes
// apart, as they lie once something has reserved addresses (Torch's symmetric memory does). Only
// run() sees pointers, so the plan knows nothing of it.
#pragma once

#include <cstddef>

#include "core/kernel.hpp"
#include "sluice/status.hpp"

namespace sluice::cuda::sm90 {

/// Whether a map leads from one to the other.
[[nodiscard]] bool pairs_in_reach(const detail::Step& step) noexcept;

/// The step by cuda.sm80_gemm, which follows two pointers, or by cuda.simt where that refuses, as
/// rows at odd distances; a norm inside it by cuda.norm before, into the step's scratch. Errors:
/// kUnsupported where that refuses.
Status gate_up_out_of_reach(const detail::Step& step) noexcept;

/// The scratch that it needs.
[[nodiscard]] std::size_t out_of_reach_bytes(const Problem& gate_up) noexcept;

}  // namespace sluice::cuda::sm90
