// SPDX-License-Identifier: Apache-2.0
// gate_up on Hopper: the instantiations of kGateUpTilings that go in waves.
#include "cuda/sm90/gemm/launch.cuh"

namespace sluice::cuda::sm90::gemm {

template Status launch_waves<GemmKind::kGateUp>(const GemmLaunch&, GemmParams&) noexcept;

}  // namespace sluice::cuda::sm90::gemm
