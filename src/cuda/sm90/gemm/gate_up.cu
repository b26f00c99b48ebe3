// SPDX-License-Identifier: Apache-2.0
// gate_up on Hopper: the instantiations of kGateUpTilings that go in waves.
#include "cuda/sm90/gemm/launch.cuh"

namespace sluice::cuda::sm90::gemm {

Status launch_gate_up(const GemmLaunch& launch, GemmParams& params) noexcept {
  return launch_kind<GemmKind::kGateUp>(launch, params);
}

}  // namespace sluice::cuda::sm90::gemm
