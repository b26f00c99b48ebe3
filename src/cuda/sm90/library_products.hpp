// SPDX-License-Identifier: Apache-2.0
// The plain products of a call by cuBLASLt, in place of this library's GEMM.
#pragma once

#include "core/variant.hpp"
#include "cuda/sm90/products.hpp"

namespace sluice::cuda::sm90 {

/// Why cuBLASLt cannot walk these operands; nothing where it can. Pure: it may still be absent.
[[nodiscard]] detail::Reason library_products_refusal(const Problem& problem) noexcept;

/// Why this library's own products are preferred to cuBLASLt's, as measured on an H200 and, of
/// down, an H100 (docs/kernels/cublaslt.md, section 5); nothing where cuBLASLt's are faster. Pure.
[[nodiscard]] detail::Reason library_yields(const Problem& problem, const Device& device) noexcept;

/// y = h·Wdᵀ (+ bias).
Status library_down(const Call& call, const Matrix& h) noexcept;

/// Whether dx is one product: gate and up lie in one evenly strided [2H, D] matrix, dg and du in
/// one [M, 2H] matrix. Two products would round a partial sum.
[[nodiscard]] bool library_takes_input_grad(const Call& call, const Matrix& dg,
                                            const Matrix& du) noexcept;
/// dx = [dg, du]·[Wg; Wu], `dg` with du behind it in its rows.
Status library_input_grad(const Call& call, const Matrix& dg) noexcept;

/// Whether the rows of this gradient have one stride and it is rounded once: sums into what is
/// there are of fp32 gradients alone.
[[nodiscard]] bool library_takes_weight_grad(const Call& call, const Matrix& out) noexcept;
/// out = leftᵀ·right, `left` [M, R] and `right` [M, C]; added to what is there where the problem
/// accumulates. With `twice` R is twice left's width: dg and du, for both gradients in one matrix.
Status library_weight_grad(const Call& call, const Matrix& left, const Matrix& right,
                           const Matrix& out, bool twice) noexcept;

/// Whether `second` is the lower half of one evenly strided matrix whose upper half is `first`.
[[nodiscard]] bool stacked(const Matrix& first, const Matrix& second) noexcept;
/// Whether `second` is the right half of one evenly strided matrix whose left half is `first`.
[[nodiscard]] bool side_by_side(const Matrix& first, const Matrix& second) noexcept;

}  // namespace sluice::cuda::sm90
