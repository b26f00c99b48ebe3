// SPDX-License-Identifier: Apache-2.0
// Where cuda.sm90_cublaslt leaves its operators to cuda.sm90. Pure.
#pragma once

#include "core/variant.hpp"

namespace sluice::cuda::sm90 {

/// Why cuda.sm90 is preferred. NOTE: to every shape. cuBLASLt's `down` was measured to be faster
/// from 64 tokens on (docs/kernels/cublaslt.md), but before the last changes of this library's own,
/// and its results depend on the version that is installed: forced by name, or found by the
/// scheduler.
[[nodiscard]] inline detail::Reason library_yields(const Problem& p) noexcept {
  return detail::refuse("%s: forced, or where the scheduler measures it to be faster",
                        to_string(p.op));
}

}  // namespace sluice::cuda::sm90
