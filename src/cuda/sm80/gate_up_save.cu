// SPDX-License-Identifier: Apache-2.0
// gate_up that keeps g and u by mma.sync: the instantiations of kTilings.
#include "cuda/sm80/kernel.cuh"

namespace sluice::cuda::sm80 {

template Status launch_gemm<GemmKind::kGateUpSave>(const GemmLaunch&, GemmParams&) noexcept;

}  // namespace sluice::cuda::sm80
