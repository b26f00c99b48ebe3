// SPDX-License-Identifier: Apache-2.0
// down on Hopper: the instantiations of kDown in gemm_config.cpp.
#include "cuda/sm90/gemm_launch.cuh"

namespace sluice::cuda::sm90 {
namespace {

template <class Element>
Status launch_typed(const GemmLaunch& launch, GemmParams& params) noexcept {
  const Tiling& t = launch.tiling;
  if (t.pingpong && t.tile_n == 192) {
    return t.cluster == 2 ? launch_config<GemmConfig<GemmKind::kDown, Element, 192, 5, 2, true>>(
                                launch, params)
                          : launch_config<GemmConfig<GemmKind::kDown, Element, 192, 5, 1, true>>(
                                launch, params);
  }
  if (t.pingpong && t.tile_n == 128) {
    return t.cluster == 2 ? launch_config<GemmConfig<GemmKind::kDown, Element, 128, 6, 2, true>>(
                                launch, params)
                          : launch_config<GemmConfig<GemmKind::kDown, Element, 128, 6, 1, true>>(
                                launch, params);
  }
  return make_error(ErrorCode::kInternal, "sm90 down: no kernel for tile_n %d, cluster %d",
                    t.tile_n, t.cluster);
}

}  // namespace

Status launch_down(const GemmLaunch& launch, GemmParams& params) noexcept {
  return launch.dtype == DType::kF16 ? launch_typed<__half>(launch, params)
                                     : launch_typed<__nv_bfloat16>(launch, params);
}

}  // namespace sluice::cuda::sm90
