// SPDX-License-Identifier: Apache-2.0
// gate_up for few tokens by mma.sync: the instantiations of kTilings in table.hpp.
#include "cuda/sm80/decode/kernel.cuh"

namespace sluice::cuda::sm80::decode {

Status launch_gate_up(const Launch& launch, const Params& params) noexcept {
  return launch.dtype == DType::kF16 ? launch_typed<true, __half>(launch, params)
                                     : launch_typed<true, __nv_bfloat16>(launch, params);
}

}  // namespace sluice::cuda::sm80::decode
