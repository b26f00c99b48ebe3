// SPDX-License-Identifier: Apache-2.0
// ldmatrix: a warp reads 8 x 8 matrices of 16-bit elements, one row address a lane.
// Source: PTX ISA, "Warp-level matrix load instruction: ldmatrix".
#pragma once

#include <cstdint>

namespace sluice::cuda::ptx {

/// Lane l gives the shared address of row l % 8 of matrix l / 8 (16 bytes, aligned to 16) and
/// receives columns 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of each matrix.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&m)[4], std::uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row_address)
               : "memory");
}

/// The same of the transposed matrices: a lane receives rows 2 (l % 4) and 2 (l % 4) + 1 of column
/// l / 4.
__device__ __forceinline__ void ldmatrix_x4_transposed(std::uint32_t (&m)[4],
                                                       std::uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row_address)
               : "memory");
}

}  // namespace sluice::cuda::ptx
