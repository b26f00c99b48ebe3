// SPDX-License-Identifier: Apache-2.0
#include "cuda/host/status.hpp"

namespace sluice::cuda {

Error cuda_error(cudaError_t code, const char* expression) noexcept {
  static_cast<void>(cudaGetLastError());
  const ErrorCode kind =
      code == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kDevice;
  Error error =
      make_error(kind, "%s: %s, %s", expression, cudaGetErrorName(code), cudaGetErrorString(code));
  error.cuda_code = static_cast<int>(code);
  return error;
}

}  // namespace sluice::cuda
