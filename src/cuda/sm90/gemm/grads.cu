// SPDX-License-Identifier: Apache-2.0
// The plain GEMMs of the backward pass on Hopper: the instantiations of their tables, for dx and
// for the weights' gradients.
#include "cuda/sm90/gemm/launch.cuh"

namespace sluice::cuda::sm90::gemm {

template Status launch_waves<GemmKind::kInputGrad>(const GemmLaunch&, GemmParams&) noexcept;
template Status launch_waves<GemmKind::kWeightGrad>(const GemmLaunch&, GemmParams&) noexcept;

}  // namespace sluice::cuda::sm90::gemm
