// SPDX-License-Identifier: Apache-2.0
// The instantiations of the decode kernel: the tilings of decode_config.cpp in two types.
#include "cuda/launch.hpp"
#include "cuda/sm90/decode.cuh"

namespace sluice::cuda::sm90 {
namespace {

template <class Cfg>
constexpr bool serves(const DecodeTiling& t) {
  if (t.split > 1 && t.split * kSliceTokens > Cfg::kTokens) return false;  // a slice each
  return t.boxes == Cfg::kWeightBoxes && t.half == (kResident<Cfg> == 2) &&
         t.norm_rows == Cfg::kNormRows && t.tokens == Cfg::kTokens && t.rows == Cfg::kRows &&
         t.depth == Cfg::kDepth && t.stages == Cfg::kStages;
}

template <class Cfg>
Status launch_config(const DecodeLaunch& launch, const DecodeParams& params) noexcept {
  if constexpr (!Cfg::kMeets) {
    if (launch.meets) {
      if constexpr (kResident<Cfg> == 1 && !Cfg::kNorm) {
        if (launch.tiling.split == 1) return launch_config<Meeting<Cfg>>(launch, params);
      }
      return make_error(ErrorCode::kInternal,
                        "sm90 decode: CTAs of half rings, of a deferred norm or of clusters do not "
                        "meet");
    }
  }
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(launch.ctas));
  shape.block = dim3(kDecodeThreads);
  shape.smem_bytes = DecodeSmem<Cfg>::kBytes;
  shape.programmatic = true;
  shape.cooperative = launch.meets;
  shape.cluster = static_cast<unsigned>(launch.tiling.split);
  return cuda::launch<decode<Cfg>>(launch.device, shape, launch.stream, params);
}

// The first of the configs that is the launch's tiling.
template <class First, class... Rest>
Status launch_first(const DecodeLaunch& launch, const DecodeParams& params) noexcept {
  if (serves<First>(launch.tiling)) return launch_config<First>(launch, params);
  if constexpr (sizeof...(Rest) > 0) {
    return launch_first<Rest...>(launch, params);
  } else {
    return make_error(ErrorCode::kInternal, "sm90 decode: no kernel for %d tokens, %d rows",
                      launch.tiling.tokens, launch.tiling.rows);
  }
}

template <class E>
Status launch_typed(const DecodeLaunch& launch, const DecodeParams& params) noexcept {
  return launch_first<RowsConfig<E, 8, 32, 512, 5>, RowsConfig<E, 8, 32, 256, 5>,
                      RowsConfig<E, 8, 16, 512, 4>, RowsConfig<E, 16, 32, 256, 4>,
                      RowsConfig<E, 16, 16, 512, 3>, RowsConfig<E, 16, 64, 256, 5>,
                      RowsConfig<E, 16, 32, 512, 4>, BoxesConfig<E, 16, 64, 256, 5>,
                      BoxesConfig<E, 32, 64, 128, 9>, BoxesConfig<E, 32, 128, 128, 5>,
                      BoxesConfig<E, 64, 64, 128, 6>, BoxesConfig<E, 64, 128, 128, 4>>(launch,
                                                                                       params);
}

}  // namespace

Status launch_decode(const DecodeLaunch& launch, const DecodeParams& params) noexcept {
  if (launch.tiling.norm_rows > 0) {
    using E = __nv_bfloat16;
    return launch_first<RowsConfig<E, 8, 32, 512, 5, 10>, RowsConfig<E, 8, 32, 512, 4, 16>,
                        RowsConfig<E, 8, 32, 256, 4, 16>, BoxesConfig<E, 16, 64, 256, 5, 16>>(
        launch, params);
  }
  return launch.dtype == DType::kF16 ? launch_typed<__half>(launch, params)
                                     : launch_typed<__nv_bfloat16>(launch, params);
}

}  // namespace sluice::cuda::sm90
