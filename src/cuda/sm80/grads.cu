// SPDX-License-Identifier: Apache-2.0
// The GEMMs of the backward pass by mma.sync: the instantiations of kTilings.
#include "cuda/sm80/kernel.cuh"

namespace sluice::cuda::sm80 {

template Status launch_gemm<GemmKind::kGateUpGrad>(const GemmLaunch&, GemmParams&) noexcept;
template Status launch_gemm<GemmKind::kInputGrad>(const GemmLaunch&, GemmParams&) noexcept;
template Status launch_gemm<GemmKind::kWeightGrad>(const GemmLaunch&, GemmParams&) noexcept;

}  // namespace sluice::cuda::sm80
