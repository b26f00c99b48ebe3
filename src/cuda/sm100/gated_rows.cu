// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm100/gemm.cuh"

namespace sluice::cuda::sm100 {

Status gated_rows(const GemmParams& params, const Device& device, Stream stream) noexcept {
  return run<GatedParts<1>>(params, device, stream);
}

}  // namespace sluice::cuda::sm100
