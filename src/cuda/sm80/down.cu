// SPDX-License-Identifier: Apache-2.0
// down by mma.sync: the instantiations of kTilings.
#include "cuda/sm80/kernel.cuh"

namespace sluice::cuda::sm80 {

template Status launch_gemm<GemmKind::kDown>(const GemmLaunch&, GemmParams&) noexcept;

}  // namespace sluice::cuda::sm80
