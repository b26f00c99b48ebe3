// SPDX-License-Identifier: Apache-2.0
// gate_up_grad on Hopper: the instantiations of kGateUpGrad in gemm_config.cpp, each once for plain
// silu and once for every other gate.
#include "cuda/sm90/gemm_launch.cuh"

namespace sluice::cuda::sm90 {
namespace {

template <class Element, int kN, int kStages, int kCluster>
Status launch_tile(const GemmLaunch& launch, GemmParams& params) noexcept {
  constexpr GemmKind kKind = GemmKind::kGateUpGrad;
  if (math::is_plain(params.gate) && params.gate.activation == Activation::kSilu) {
    return launch_config<GemmConfig<kKind, Element, kN, kStages, kCluster, true, true>>(launch,
                                                                                        params);
  }
  return launch_config<GemmConfig<kKind, Element, kN, kStages, kCluster, true, false>>(launch,
                                                                                       params);
}

template <class Element>
Status launch_typed(const GemmLaunch& launch, GemmParams& params) noexcept {
  const Tiling& t = launch.tiling;
  if (t.pingpong && t.tile_n == 192 && t.cluster == 2) {
    return launch_tile<Element, 192, 4, 2>(launch, params);
  }
  if (t.pingpong && t.tile_n == 128) {
    return t.cluster == 2 ? launch_tile<Element, 128, 5, 2>(launch, params)
                          : launch_tile<Element, 128, 5, 1>(launch, params);
  }
  return make_error(ErrorCode::kInternal, "sm90 gate_up_grad: no kernel for tile_n %d, cluster %d",
                    t.tile_n, t.cluster);
}

}  // namespace

Status launch_gate_up_grad(const GemmLaunch& launch, GemmParams& params) noexcept {
  return launch.dtype == DType::kF16 ? launch_typed<__half>(launch, params)
                                     : launch_typed<__nv_bfloat16>(launch, params);
}

}  // namespace sluice::cuda::sm90
