// SPDX-License-Identifier: Apache-2.0
// The plain products of the backward pass on Hopper: the instantiations of kGrads in
// gemm_config.cpp, for dx and for the weights' gradients.
#include "cuda/sm90/gemm_launch.cuh"

namespace sluice::cuda::sm90 {
namespace {

// Stages of 192 and of 128 columns: what fits beside the out tile, if there is one.
template <GemmKind kKind, int kStages192, int kStages128, class Element>
Status launch_typed(const GemmLaunch& launch, GemmParams& params) noexcept {
  const Tiling& t = launch.tiling;
  if (t.pingpong && t.cluster == 2 && t.tile_n == 192) {
    return launch_config<GemmConfig<kKind, Element, 192, kStages192, 2, true>>(launch, params);
  }
  if (t.pingpong && t.cluster == 2 && t.tile_n == 128) {
    return launch_config<GemmConfig<kKind, Element, 128, kStages128, 2, true>>(launch, params);
  }
  return make_error(ErrorCode::kInternal, "sm90 mlp_grad: no kernel for tile_n %d, cluster %d",
                    t.tile_n, t.cluster);
}

}  // namespace

Status launch_input_grad(const GemmLaunch& launch, GemmParams& params) noexcept {
  constexpr GemmKind kKind = GemmKind::kInputGrad;
  return launch.dtype == DType::kF16 ? launch_typed<kKind, 5, 6, __half>(launch, params)
                                     : launch_typed<kKind, 5, 6, __nv_bfloat16>(launch, params);
}

Status launch_weight_grad(const GemmLaunch& launch, GemmParams& params) noexcept {
  constexpr GemmKind kKind = GemmKind::kWeightGrad;
  return launch.dtype == DType::kF16 ? launch_typed<kKind, 5, 7, __half>(launch, params)
                                     : launch_typed<kKind, 5, 7, __nv_bfloat16>(launch, params);
}

}  // namespace sluice::cuda::sm90
