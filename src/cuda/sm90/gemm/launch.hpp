// SPDX-License-Identifier: Apache-2.0
// The Hopper GEMM kernels as the host sees them: one call for all in waves.
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

/// Whether a grid is launched programmatically, to start while the kernel before it
/// ends: without pairs of CTAs, which saves 1 us, or if it fills the SMs. Pairs of a smaller one,
/// put wherever two SMs are free, lie worse than those of a grid that begins on an empty GPU: 104
/// CTAs of 132 took 4 to 10 % longer (docs/kernels/gate_up.md).
[[nodiscard]] constexpr bool starts_early(const Tiling& tiling, int ctas, int sm_count) noexcept {
  return tiling.cluster == 1 || 16 * ctas >= 15 * sm_count;
}

/// Completes params by set_order() and enqueues the kernel, programmatically if it starts_early().
/// kInternal for a tiling that is none of tilings(kKind) in waves. gate_up.cu, down.cu,
/// gate_up_grad.cu, grads.cu.
template <GemmKind kKind>
Status launch_waves(const GemmLaunch& launch, GemmParams& params) noexcept;

}  // namespace sluice::cuda::sm90::gemm
