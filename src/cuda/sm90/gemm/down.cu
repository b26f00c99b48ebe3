// SPDX-License-Identifier: Apache-2.0
// down on Hopper: the instantiations of kDownTilings that go in waves.
#include "cuda/sm90/gemm/launch.cuh"

namespace sluice::cuda::sm90::gemm {

Status launch_down(const GemmLaunch& launch, GemmParams& params) noexcept {
  return launch_kind<GemmKind::kDown>(launch, params);
}

}  // namespace sluice::cuda::sm90::gemm
