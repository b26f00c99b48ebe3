// SPDX-License-Identifier: Apache-2.0
// Problem: what is to be computed, on what shapes, types and layouts. No pointers.
#pragma once

#include <cstdint>
#include <string>

#include "sluice/export.hpp"
#include "sluice/types.hpp"

namespace sluice {

/// Layout::row_stride_bytes of a matrix whose rows follow each other without a gap.
inline constexpr std::int64_t kContiguous = -1;

/// Where element (r, c) of a matrix lives, relative to its base pointer, in bytes:
///
///   row(r) = (r / block_rows) · block_stride_bytes + (r % block_rows) · row_stride_bytes
///   col(c) = (c / block_cols) · col_block_stride_bytes + (c % block_cols) · size_bytes(dtype)
///
/// (in weights of a block type col(c) = c / 32 · size_bytes(dtype): the block of column c)
/// with block_rows = 0 for "all rows are one block" and block_cols = 0 for "columns are
/// contiguous". Row blocks are allowed on w_gate_up and dw_gate_up; column blocks on g_u and dg_du
/// (the activations' view of the same interleaving). A gate matrix and its up matrix share one
/// Layout and differ in their base pointers, so this one description covers separate tensors,
/// [gate; up] in one buffer, and rows interleaved singly or in blocks, in either order.
struct Layout {
  std::int64_t row_stride_bytes = kContiguous;  ///< ≥ one row, or 0 on inputs (one row, repeated)
  std::int64_t block_rows = 0;
  std::int64_t block_stride_bytes = 0;
  std::int64_t block_cols = 0;
  std::int64_t col_block_stride_bytes = 0;

  friend bool operator==(const Layout&, const Layout&) = default;
};

/// One Layout for each matrix of the operator; pairs (gate and up) share one.
struct Layouts {
  Layout x;           ///< x, x_residual [M, D]
  Layout w_gate_up;   ///< w_gate, w_up [H, D]
  Layout w_down;      ///< w_down [D, H]
  Layout g_u;         ///< g, u [M, H]
  Layout h;           ///< h [M, H]
  Layout y;           ///< y, y_norm [M, D]
  Layout residual;    ///< residual [M, D]
  Layout x_sum;       ///< x_sum [M, D]
  Layout dy;          ///< dy [M, D]
  Layout dh;          ///< dh [M, H]
  Layout dg_du;       ///< dg, du [M, H]
  Layout dx;          ///< dx [M, D]
  Layout dw_gate_up;  ///< dw_gate, dw_up [H, D]
  Layout dw_down;     ///< dw_down [D, H]
};

/// What is added to y in the epilogue.
enum class Residual : std::uint8_t {
  kNone = 0,
  kOperand = 1,   ///< the operand `residual`
  kNormInput = 2  ///< r, the sum that the norm prologue normalised (needs Norm)
};

/// The prologue of kGateUp and kMlp: RMSNorm of x, with an optional sum before it.
///
///   r = x + x_residual   (r = x where add is false; rounded to x's dtype, stored to x_sum if add)
///   n = r / sqrt(mean(r²) + eps) · (norm_weight + weight_offset)   (rounded to x's dtype; in bf16
///       perhaps before the division, which then applies to g and u: docs/numerics.md)
///
/// and the operator computes on n in place of x. mean() runs over the D columns, in fp32 or wider.
/// Source: add + RMSNorm as vLLM, SGLang and transformers place it before the MLP.
struct Norm {
  bool enabled = false;
  bool add = false;
  float eps = 1e-5F;           ///< > 0
  float weight_offset = 0.0F;  ///< finite; 1 for Gemma
  friend bool operator==(const Norm&, const Norm&) = default;
};

enum class ReduceKind : std::uint8_t { kNone = 0, kAllReduce = 1 };

/// The most ranks that share a sum.
inline constexpr int kMaxRanks = 8;

/// Of kDown and kMlp: y is summed over ranks that have a share of H each (tensor parallelism).
///
///   p(r)   = h(r)·Wd(r)ᵀ of rank r                                  (rounded to y's dtype)
///   y      = p(0) + p(1) + ... + p(world - 1) + bd (+ residual)     (fp32, in this order; rounded)
///   y_norm = y / sqrt(mean(y²) + eps) · (next_norm_weight + weight_offset)        (norm.enabled)
///
/// H is a rank's share. Every rank runs the same problem but for `rank`, in the same order of runs,
/// with the same b_down and residual, which are added once; y and y_norm are the same bits on all
/// ranks and on every call. run() takes Peers with it.
struct Reduce {
  ReduceKind kind = ReduceKind::kNone;
  int rank = 0;   ///< of this device: 0 to world - 1
  int world = 0;  ///< 2, 4 or 8; 0 with kNone
  Norm norm{};    ///< the next block's RMSNorm, of y; `add` is false: residual is what it adds
  friend bool operator==(const Reduce&, const Reduce&) = default;
};

/// A complete description of one operator call, but for the pointers.
///
/// Shapes: m tokens (≥ 0; 0 is a valid no-op), d model width, h hidden width (≥ 1 each, where it
/// is read: kGateMul, kGateMulGrad and kColumnSum do not read d, nor kNorm h). Every element count
/// and byte offset must fit in 60 bits. Types: x_dtype is the type of every activation but y: x,
/// x_residual, x_sum, h, g, u, dg, du, dh, dx. w_dtype is that of weights, biases and norm_weight.
/// y_dtype is that of y, residual and dy; dw_dtype that of weight and bias gradients. w_dtype may
/// be a block type: then biases and norm_weight are fp32, as GGUF has them, and the columns of
/// every weight that the operator reads (D of w_gate and w_up, H of w_down) are a multiple of
/// kBlockElems.
struct Problem {
  Op op = Op::kMlp;
  std::int64_t m = 0;
  std::int64_t d = 0;
  std::int64_t h = 0;

  DType x_dtype = DType::kBF16;
  DType w_dtype = DType::kBF16;
  DType y_dtype = DType::kBF16;
  DType dw_dtype = DType::kF32;

  Gate gate{};
  bool bias_gate_up = false;            ///< b_gate, b_up [H]
  bool bias_down = false;               ///< b_down [D]
  Residual residual = Residual::kNone;  ///< kDown and kMlp
  Norm norm{};                          ///< kGateUp and kMlp
  bool save_g_u = false;       ///< kGateUp and kMlp: also store g and u (post-bias, x's dtype)
  bool recompute = false;      ///< kMlpGrad: g and u are recomputed from x, not given
  bool accumulate_dw = false;  ///< kMlpGrad: weight and bias gradients are added to what is there
  bool save_dg_du = false;     ///< kMlpGrad: also store dg and du (over g and u, if they are the
                               ///< same pointers and layout); they need no workspace then

  Layouts layout{};

  /// Promise: every matrix and vector pointer is a multiple of this (a power of two, 1 to 4096) and
  /// of alignment_of() its type, as are strides of the latter. run() refuses a pointer that breaks
  /// it; a smaller promise selects a variant that needs no more. Strides need no promise: plan()
  /// sees them.
  std::int64_t alignment_bytes = 16;
  /// No kernel that is running or queued when run() is called writes the weights (norm_weight is
  /// one), so they may be fetched before the work ahead in the stream is done. False in training.
  bool weights_static = true;
  /// kGateMul and kGateMulGrad: round to x's type what eager code stores between its operators, so
  /// that results compare with its: act(v), before the products with w and dh, and of the gradient
  /// dg the product dh · w (v, w: see Gate). Nothing else is rounded on the way, in fp32 nothing.
  bool round_gate = false;
  Reduce reduce{};  ///< kDown and kMlp
};

/// Row r of both halves at 2·r and 2·r + 1 of one [2H, D] buffer (either first): base pointers are
/// one row apart. `block_rows` > 1 interleaves blocks of that many rows.
[[nodiscard]] SLUICE_EXPORT Layout interleaved_rows(std::int64_t block_rows, std::int64_t d,
                                                    DType dtype) noexcept;

/// The same order for the columns of g, u, dg, du in one [M, 2H] buffer (H rounded up to whole
/// blocks).
[[nodiscard]] SLUICE_EXPORT Layout interleaved_cols(std::int64_t block_cols, std::int64_t h,
                                                    DType dtype) noexcept;

/// "mlp 128x4096x14336 bf16 silu". For logs and error messages; not a stable format.
[[nodiscard]] SLUICE_EXPORT std::string to_string(const Problem& problem);

/// Floating-point operations that the operator must do: 2 a multiply-add; activations not counted.
[[nodiscard]] SLUICE_EXPORT double flops(const Problem& problem) noexcept;

/// The fewest bytes that must move: every input read once, every output written once.
[[nodiscard]] SLUICE_EXPORT double bytes_moved(const Problem& problem) noexcept;

}  // namespace sluice
