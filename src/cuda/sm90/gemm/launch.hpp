// SPDX-License-Identifier: Apache-2.0
// The Hopper GEMM kernels as the host sees them: one call for each family of instantiations.
#pragma once

#include "cuda/sm90/gemm/params.hpp"
#include "cuda/sm90/gemm/table.hpp"
#include "sluice/plan.hpp"

namespace sluice::cuda::sm90::gemm {

struct GemmLaunch {
  Tiling tiling{};
  DType dtype = DType::kBF16;
  int device = 0;
  int sm_count = 0;
  Stream stream = nullptr;
};

/// Fills params.order and params.lockstep_word for a launch of tiles in waves. Returns its CTAs.
[[nodiscard]] int set_order(const GemmLaunch& launch, GemmKind kind, GemmParams& params) noexcept;

/// Whether a grid is launched programmatically, to start while the kernel before it ends: one that
/// fills the SMs. CTAs of a smaller one, put wherever an SM is free, lie worse than those of a grid
/// that begins on an empty GPU: 104 of 132 took 7 to 10 % longer (docs/kernels/gate_up.md).
[[nodiscard]] constexpr bool starts_early(int ctas, int sm_count) noexcept {
  return 16 * ctas >= 15 * sm_count;
}

/// Completes params by set_order() and enqueues the kernel, programmatically if it starts_early().
/// kInternal for a tiling that tilings() does not list. gate_up.cu, down.cu, gate_up_grad.cu,
/// grads.cu.
Status launch_gate_up(const GemmLaunch& launch, GemmParams& params) noexcept;
Status launch_down(const GemmLaunch& launch, GemmParams& params) noexcept;
Status launch_gate_up_grad(const GemmLaunch& launch, GemmParams& params) noexcept;
Status launch_input_grad(const GemmLaunch& launch, GemmParams& params) noexcept;
Status launch_weight_grad(const GemmLaunch& launch, GemmParams& params) noexcept;

}  // namespace sluice::cuda::sm90::gemm
