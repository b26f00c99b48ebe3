// SPDX-License-Identifier: Apache-2.0
// gate_up_grad on Hopper: the instantiations of kGateUpGradTilings.
#include "cuda/sm90/gemm/launch.cuh"

namespace sluice::cuda::sm90::gemm {

Status launch_gate_up_grad(const GemmLaunch& launch, GemmParams& params) noexcept {
  return launch_kind<GemmKind::kGateUpGrad>(launch, params);
}

}  // namespace sluice::cuda::sm90::gemm
