// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm100/gemm.cuh"

namespace sluice::cuda::sm100 {

Status plain(const GemmParams& params, const Device& device, Stream stream) noexcept {
  return run<PlainParts>(params, device, stream);
}

}  // namespace sluice::cuda::sm100
