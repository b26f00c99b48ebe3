// SPDX-License-Identifier: Apache-2.0
// stmatrix: a warp writes four 8 x 8 matrices of 16-bit elements, one row address a lane. sm_90.
// Source: PTX ISA, "Warp-level matrix store instruction: stmatrix".
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"

namespace sluice::cuda::ptx {

/// Lane l gives the address of row l % 8 of matrix l / 8 (16 bytes, aligned to 16) and holds
/// columns 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of each matrix.
__device__ __forceinline__ void stmatrix_x4(void* row, std::uint32_t m0, std::uint32_t m1,
                                            std::uint32_t m2, std::uint32_t m3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
      "r"(m0), "r"(m1), "r"(m2), "r"(m3)
      : "memory");
}

/// The same of the transposes: lane l holds columns l / 4 of rows 2 (l % 4) and 2 (l % 4) + 1.
__device__ __forceinline__ void stmatrix_x4_transposed(void* row, std::uint32_t m0,
                                                       std::uint32_t m1, std::uint32_t m2,
                                                       std::uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   shared_address(row)),
               "r"(m0), "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

}  // namespace sluice::cuda::ptx
