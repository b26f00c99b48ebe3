// SPDX-License-Identifier: Apache-2.0
// gate_up_grad on Hopper: the instantiations of kGateUpGradTilings.
#include "cuda/sm90/gemm/launch.cuh"

namespace sluice::cuda::sm90::gemm {

template Status launch_waves<GemmKind::kGateUpGrad>(const GemmLaunch&, GemmParams&) noexcept;

}  // namespace sluice::cuda::sm90::gemm
