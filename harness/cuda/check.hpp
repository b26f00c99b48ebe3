// SPDX-License-Identifier: Apache-2.0
// CUDA failures as sluice::Error, for the harness: the library's own are not exported.
#pragma once

#include <cuda_runtime_api.h>

#include "sluice/status.hpp"

namespace sluice::harness {

[[nodiscard]] inline Error cuda_error(cudaError_t code, const char* expression) {
  static_cast<void>(cudaGetLastError());
  Error error =
      make_error(code == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kDevice,
                 "%s: %s, %s", expression, cudaGetErrorName(code), cudaGetErrorString(code));
  error.cuda_code = static_cast<int>(code);
  return error;
}

}  // namespace sluice::harness

/// Returns an Error from the calling function where `expr` (a cudaError_t) is not cudaSuccess.
#define HARNESS_CUDA_TRY(expr)                                    \
  do {                                                            \
    if (const cudaError_t code_ = (expr); code_ != cudaSuccess) { \
      return ::sluice::harness::cuda_error(code_, #expr);         \
    }                                                             \
  } while (false)
