// SPDX-License-Identifier: Apache-2.0
// gate_up by mma.sync: the instantiations of kTilings in table.cpp.
#include "cuda/sm80/kernel.cuh"

namespace sluice::cuda::sm80 {

Status launch_gate_up(const GemmLaunch& launch, GemmParams& params) noexcept {
  return launch.dtype == DType::kF16 ? launch_typed<true, __half>(launch, params)
                                     : launch_typed<true, __nv_bfloat16>(launch, params);
}

}  // namespace sluice::cuda::sm80
