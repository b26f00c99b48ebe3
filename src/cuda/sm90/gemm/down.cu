// SPDX-License-Identifier: Apache-2.0
// down on Hopper: the instantiations of kDownTilings that go in waves.
#include "cuda/sm90/gemm/launch.cuh"

namespace sluice::cuda::sm90::gemm {

template Status launch_waves<GemmKind::kDown>(const GemmLaunch&, GemmParams&) noexcept;

}  // namespace sluice::cuda::sm90::gemm
