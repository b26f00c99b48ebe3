// SPDX-License-Identifier: Apache-2.0
// The plain GEMMs of the backward pass on Hopper: the instantiations of their tables, for dx and
// for the weights' gradients.
#include "cuda/sm90/gemm/launch.cuh"

namespace sluice::cuda::sm90::gemm {

Status launch_input_grad(const GemmLaunch& launch, GemmParams& params) noexcept {
  return launch_kind<GemmKind::kInputGrad>(launch, params);
}

Status launch_weight_grad(const GemmLaunch& launch, GemmParams& params) noexcept {
  return launch_kind<GemmKind::kWeightGrad>(launch, params);
}

}  // namespace sluice::cuda::sm90::gemm
