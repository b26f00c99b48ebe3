// SPDX-License-Identifier: Apache-2.0
// linear for few tokens by mma.sync: the instantiations of kTilings in table.hpp.
#include "cuda/sm80/decode/kernel.cuh"

namespace sluice::cuda::sm80::decode {

Status launch_down(const Launch& launch, const Params& params) noexcept {
  return launch.dtype == DType::kF16 ? launch_typed<false, __half>(launch, params)
                                     : launch_typed<false, __nv_bfloat16>(launch, params);
}

}  // namespace sluice::cuda::sm80::decode
