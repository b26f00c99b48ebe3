// SPDX-License-Identifier: Apache-2.0
// mma.sync m16n8k16: a warp multiplies a 16 x 16 tile of A by a 16 x 8 tile of B, both in
// registers, into fp32 accumulators. sm_80.
// Source: PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions".
//
// With g = lane / 4 and q = lane % 4, a thread holds
//   a[0] A[g][2q..]   a[1] A[g + 8][2q..]   a[2] A[g][2q + 8..]   a[3] A[g + 8][2q + 8..]
//   b[0] B[2q..][g]   b[1] B[2q + 8..][g]   (two elements along K a register)
//   d[0] D[g][2q]     d[1] D[g][2q + 1]     d[2] D[g + 8][2q]     d[3] D[g + 8][2q + 1]
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace sluice::cuda::ptx {

/// d += a * b.
template <class Element>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<Element, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<Element, __nv_bfloat16>);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace sluice::cuda::ptx
