// SPDX-License-Identifier: Apache-2.0
// What comes after sums that cuBLASLt left in fp32: the gate, its gradient, or a bias and a
// residual.
#pragma once

#include "sluice/plan.hpp"

namespace sluice::cuda {

/// Columns that a thread reads at once, where H or D, blocks and strides are multiples, the outputs
/// have 16 bits and pointers are multiples of 16 bytes; else one.
inline constexpr int kSumColumns = 8;

/// h = act(g + b_gate) ⊙ (u + b_up), rounded once; g and u also stored, where they are saved.
struct GateRowsParams {
  /// Each row alternates between `block` columns of one half and as many of the other.
  const float* sums = nullptr;
  std::int64_t sums_stride = 0;  ///< elements from row to row
  std::int64_t rows = 0;
  std::int64_t cols = 0;   ///< H
  std::int64_t block = 0;  ///< divides H, or is larger: then columns behind H are nobody's
  bool up_first = false;
  bool plain_gate = false;
  Gate gate;
  const void* b_gate = nullptr;  ///< [H] of the outputs' type, or null
  const void* b_up = nullptr;
  void* h = nullptr;
  std::int64_t h_stride = 0;  ///< elements from row to row
  void* g = nullptr;          ///< null where g and u are not saved
  void* u = nullptr;
  std::int64_t g_u_stride = 0;
};

/// dg, du and h of math::gate_mul_grad() at g, u and the sums, which are dh.
struct GradRowsParams {
  const float* sums = nullptr;
  std::int64_t sums_stride = 0;  ///< elements from row to row
  std::int64_t rows = 0;
  std::int64_t cols = 0;  ///< H
  Gate gate;
  const void* g = nullptr;  ///< may be dg
  const void* u = nullptr;  ///< may be du
  std::int64_t g_u_stride = 0;
  void* dg = nullptr;
  void* du = nullptr;
  std::int64_t dg_du_stride = 0;
  void* h = nullptr;  ///< or null
  std::int64_t h_stride = 0;
};

/// y = sums + bias + residual, rounded once.
struct AddRowsParams {
  const float* sums = nullptr;
  std::int64_t sums_stride = 0;  ///< elements from row to row
  std::int64_t rows = 0;
  std::int64_t cols = 0;             ///< D
  const void* bias = nullptr;        ///< [D] of y's type, or null
  const void* residual = nullptr;    ///< or null; may be y
  std::int64_t residual_stride = 0;  ///< elements from row to row
  void* y = nullptr;
  std::int64_t y_stride = 0;
};

/// Enqueues the kernel. `dtype`, of all but the sums: bf16, fp16 or fp32.
Status launch_gate_rows(const Device& device, DType dtype, const GateRowsParams& params,
                        Stream stream) noexcept;

/// The same.
Status launch_grad_rows(const Device& device, DType dtype, const GradRowsParams& params,
                        Stream stream) noexcept;

/// The same.
Status launch_add_rows(const Device& device, DType dtype, const AddRowsParams& params,
                       Stream stream) noexcept;

}  // namespace sluice::cuda
