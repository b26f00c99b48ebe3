// SPDX-License-Identifier: Apache-2.0
// gate_up on Hopper: the instantiations of kGateUp in gemm_config.cpp.
#include "cuda/sm90/gemm_launch.cuh"

namespace sluice::cuda::sm90 {
namespace {

template <class Element>
Status launch_typed(const GemmLaunch& launch, GemmParams& params) noexcept {
  const Tiling& t = launch.tiling;
  if (t.tile_n == 224 && t.cluster == 1 && !t.pingpong) {
    return launch_config<GemmConfig<GemmKind::kGateUp, Element, 224, 4, 1, false>>(launch, params);
  }
  if (t.pingpong && t.tile_n == 192) {
    return t.cluster == 2 ? launch_config<GemmConfig<GemmKind::kGateUp, Element, 192, 5, 2, true>>(
                                launch, params)
                          : launch_config<GemmConfig<GemmKind::kGateUp, Element, 192, 5, 1, true>>(
                                launch, params);
  }
  if (t.pingpong && t.tile_n == 160) {
    return t.cluster == 2 ? launch_config<GemmConfig<GemmKind::kGateUp, Element, 160, 6, 2, true>>(
                                launch, params)
                          : launch_config<GemmConfig<GemmKind::kGateUp, Element, 160, 6, 1, true>>(
                                launch, params);
  }
  if (t.pingpong && t.tile_n == 128) {
    return t.cluster == 2 ? launch_config<GemmConfig<GemmKind::kGateUp, Element, 128, 6, 2, true>>(
                                launch, params)
                          : launch_config<GemmConfig<GemmKind::kGateUp, Element, 128, 6, 1, true>>(
                                launch, params);
  }
  return make_error(ErrorCode::kInternal, "sm90 gate_up: no kernel for tile_n %d, cluster %d",
                    t.tile_n, t.cluster);
}

}  // namespace

Status launch_gate_up(const GemmLaunch& launch, GemmParams& params) noexcept {
  return launch.dtype == DType::kF16 ? launch_typed<__half>(launch, params)
                                     : launch_typed<__nv_bfloat16>(launch, params);
}

}  // namespace sluice::cuda::sm90
