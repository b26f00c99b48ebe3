// SPDX-License-Identifier: Apache-2.0
// What SimdTarget::kAvx512Bf16 has beyond kAvx512: products of bf16 pairs (GEMM tiles and packing
// in bf16_kernels.cpp, dot products in bf16_dots.cpp).
#pragma once

#include "cpu/kernels.hpp"

namespace sluice::cpu {

/// The tables of kAvx512 with the kernels of pairs filled in.
[[nodiscard]] GemmKernels with_pairs(GemmKernels kernels) noexcept;
[[nodiscard]] DotKernels with_pairs(DotKernels kernels) noexcept;

}  // namespace sluice::cpu
