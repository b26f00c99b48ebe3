// SPDX-License-Identifier: Apache-2.0
// What the SIMT kernels take: strided views and one params struct a kernel. Types, strides and
// epilogues are run-time values, so that a handful of instantiations serve every problem.
#pragma once

#include <cstdint>

#include "cuda/host/launch.hpp"
#include "sluice/operands.hpp"
#include "sluice/problem.hpp"

namespace sluice::cuda::simt {

/// A matrix of the problem on the device. A null base is an absent operand.
struct View {
  char* base = nullptr;
  Layout layout{};  // resolved: row_stride_bytes is never kContiguous
  DType dtype = DType::kF32;
  bool transposed = false;  // element (i, j) of the view is element (j, i) of the matrix
};

/// What is done with a finished sum.
enum class Epilogue : std::uint8_t {
  kGateUp,    ///< out = h = gate_mul(sum + bias, sum_up + bias_up); g and u where they have a base
  kLinear,    ///< out = sum + bias + addend
  kGateGrad,  ///< sum is dh: dg, du and out = h from g and u
};

/// sum[i, j] = Σ over products p, Σ over k, of a[p](i, k) · b[p](j, k), in fp32, k ascending.
/// kGateUp has one product with two right sides: b[0] is gate, b[1] is up.
struct GemmParams {
  std::int64_t rows = 0;   // of out
  std::int64_t cols = 0;   // of out
  std::int64_t depth = 0;  // k
  int products = 1;        // 1 or 2
  Epilogue epilogue = Epilogue::kLinear;
  Gate gate{};
  View a[2];
  View b[2];
  View out;
  View addend;  // kLinear: a residual, or `out` itself where it is accumulated into
  View bias[2];
  View g;
  View u;
  View dg;
  View du;
};

/// The norm prologue, a row a block; see sluice::Norm.
struct NormParams {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  float eps = 0;
  float weight_offset = 0;
  DType dtype = DType::kF32;  // of r and n
  View x;
  View x_residual;
  View weight;
  View r;  // written where it has a base
  View n;
};

/// Elementwise: h from g and u, or with `dh` the gradients.
struct GateParams {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  Gate gate{};
  View g;
  View u;
  View dh;
  View h;
  View dg;
  View du;
};

/// out(0, j) = Σ over rows of in(i, j) (+ out(0, j) where `accumulate`), in a fixed order.
struct ColumnSumParams {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  bool accumulate = false;
  View in;
  View out;
};

/// Output tile of a CTA of 256 threads: rows x cols, `depth` of k a step.
enum class Tile : std::uint8_t { k64x64x16 = 0, k16x64x32 = 1 };
inline constexpr int kTileCount = 2;

Status launch_gemm(const Device& device, Tile tile, const GemmParams& params,
                   Stream stream) noexcept;
Status launch_norm(const Device& device, const NormParams& params, Stream stream) noexcept;
Status launch_gate(const Device& device, bool round_gate, const GateParams& params,
                   Stream stream) noexcept;
Status launch_column_sum(const Device& device, const ColumnSumParams& params,
                         Stream stream) noexcept;

}  // namespace sluice::cuda::simt
