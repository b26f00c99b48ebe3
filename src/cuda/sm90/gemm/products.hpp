// SPDX-License-Identifier: Apache-2.0
// One GEMM launch each: from the operands of a step to tensor maps and parameters.
#pragma once

#include "core/kernel.hpp"
#include "cuda/sm90/gemm/params.hpp"
#include "cuda/sm90/gemm/table.hpp"

namespace sluice::cuda::sm90::gemm {

/// Tensor maps and parameters of gate_up's launch.
Status encode_gate_up(const detail::Step& step, const Tiling& tiling, GemmParams& params) noexcept;

/// h, and g and u where the problem saves them.
Status gate_up(const detail::Step& step, const Tiling& tiling) noexcept;

/// y from h.
Status down(const detail::Step& step, const Tiling& tiling) noexcept;

/// dg and du, and h where it is given, from dy, g and u.
Status gate_up_grad(const detail::Step& step, const Tiling& tiling) noexcept;

/// dx = dg·Wg + du·Wu.
Status input_grad(const detail::Step& step, const Tiling& tiling) noexcept;

/// out = leftᵀ·x, sums over tokens, with dg and dw_gate or du and dw_up as left and out; added to
/// what is there where the problem accumulates.
Status weight_grad(const detail::Step& step, const Tiling& tiling, Operand left,
                   Operand out) noexcept;

}  // namespace sluice::cuda::sm90::gemm
