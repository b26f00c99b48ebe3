// SPDX-License-Identifier: Apache-2.0
// The instantiations of the decode kernel: kTilings in two types, those with a deferred
// norm in bf16.
#include <cstddef>
#include <iterator>
#include <type_traits>

#include "cuda/host/launch.hpp"
#include "cuda/sm90/decode/kernel.cuh"

namespace sluice::cuda::sm90::decode {
namespace {

template <class Cfg>
Status launch_config(const Launch& launch, const Params& params) noexcept {
  const LaunchShape shape{.grid = static_cast<unsigned>(launch.ctas),
                          .block = kThreads<Cfg>,
                          .smem_bytes = Smem<Cfg>::kBytes,
                          .programmatic = true,
                          .cluster = static_cast<unsigned>(launch.tiling.split)};
  return cuda::launch<decode<Cfg>>(launch.device, shape, launch.stream, params);
}

// Whether the kernel of `tiling` can launch as `wanted`: divided, each CTA has a slice at least.
constexpr bool serves(Tiling tiling, const Tiling& wanted) {
  tiling.split = wanted.split;
  return tiling == wanted &&
         (wanted.split == 1 || (divides(wanted) && deals_slices(wanted, wanted.split)));
}

template <class Element, std::size_t kIndex = 0>
Status launch_typed(const Launch& launch, const Params& params) noexcept {
  if constexpr (kIndex < std::size(kTilings)) {
    constexpr Tiling kTiling = kTilings[kIndex];
    if constexpr (!kTiling.norm || std::is_same_v<Element, __nv_bfloat16>) {
      using Cfg = DecodeConfig<Element, kTiling>;
      static_assert(kTiling.half == (kResident<Cfg> == 2));
      if (serves(kTiling, launch.tiling)) return launch_config<Cfg>(launch, params);
    }
    return launch_typed<Element, kIndex + 1>(launch, params);
  } else {
    return make_error(ErrorCode::kInternal, "sm90 decode: no kernel for %d tokens, %d rows",
                      launch.tiling.tokens, launch.tiling.rows);
  }
}

}  // namespace

Status launch_decode(const Launch& launch, const Params& params) noexcept {
  return launch.dtype == DType::kF16 ? launch_typed<__half>(launch, params)
                                     : launch_typed<__nv_bfloat16>(launch, params);
}

}  // namespace sluice::cuda::sm90::decode
