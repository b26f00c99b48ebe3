// SPDX-License-Identifier: Apache-2.0
// CUDA failures as sluice::Error.
#pragma once

#include <cuda_runtime_api.h>

#include "sluice/status.hpp"

namespace sluice::cuda {

/// "cudaFuncSetAttribute(...): cudaErrorInvalidValue, invalid argument" with cuda_code set.
/// kOutOfMemory for cudaErrorMemoryAllocation, else kDevice. Clears the runtime's last error, so
/// that a caller's own check does not find ours; an error that broke the context stays.
[[nodiscard]] Error cuda_error(cudaError_t code, const char* expression) noexcept;

}  // namespace sluice::cuda

/// Returns an Error from the calling function where `expr` (a cudaError_t) is not cudaSuccess.
#define SLUICE_CUDA_TRY(expr)                                                             \
  do {                                                                                    \
    if (const cudaError_t sluice_cuda_code_ = (expr); sluice_cuda_code_ != cudaSuccess) { \
      return ::sluice::cuda::cuda_error(sluice_cuda_code_, #expr);                        \
    }                                                                                     \
  } while (false)
