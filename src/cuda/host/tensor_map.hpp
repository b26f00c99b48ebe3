// SPDX-License-Identifier: Apache-2.0
// Tensor maps (the descriptors of Hopper's bulk tensor copies) for every operand layout.
// The arithmetic is plain data, tested on any CPU; encode() is the one call of the driver.
// Source: CUDA driver API, cuTensorMapEncodeTiled; docs/kernels/groundwork.md draws the views.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/kernel.hpp"
#include "sluice/operands.hpp"
#include "sluice/status.hpp"

namespace sluice::cuda {

/// What cuTensorMapEncodeTiled is told, innermost dimension first. Dimension 0 is contiguous.
struct TensorView {
  static constexpr int kMaxRank = 5;
  int rank = 0;
  DType dtype = DType::kBF16;
  std::int64_t dims[kMaxRank]{};           ///< elements
  std::int64_t strides_bytes[kMaxRank]{};  ///< [0] is the element's size
  std::int32_t box[kMaxRank]{};            ///< elements that one copy brings
};

/// One view of a gate matrix and its up matrix: groups of eight gate rows and the eight up rows of
/// the same numbers. Shared memory then holds 8 gate rows, 8 up rows, 8 gate rows, …
///
/// Dimensions, innermost first, by the layout's blocks of b rows (0: none):
///   none, b = 1, b = 8   (K, 8 rows, 2 halves, groups)                       rank 4
///   b = 2, b = 4         (K, b rows, 8/b blocks, 2 halves, groups)           rank 5
///   b = 8q, q > 1        (K, 8 rows, 2 halves, q groups of a block, blocks)  rank 5
///   b = 8q, a copy inside one block
///                        (K, 8 rows, 2 halves, every eighth row)             rank 4
///   the same, whose blocks of gate and up take turns in one run of rows, where asked for:
///                        (K, rows of both)                                   rank 2
struct PairView {
  TensorView view;
  bool up_first = false;            ///< half 0 is up: its pointer is the lower one
  std::int64_t groups_a_block = 1;  ///< q where b = 8q, else 1
  /// The last coordinate of group i is a_group i + a_block (i / groups_a_block).
  int a_group = 1;
  std::int64_t a_block = 0;
  int groups_a_copy = 0;  ///< groups that one copy brings; divides the wanted ones
  /// Groups whose first halves follow each other before their second halves do: q under rank 2.
  int groups_a_run = 1;
};

/// Limits of the hardware, so that a refusal can say them.
inline constexpr std::int64_t kTensorStrideMultiple = 16;
inline constexpr std::int64_t kTensorStrideLimit = std::int64_t{1} << 40;
inline constexpr std::int64_t kTensorDimLimit = std::int64_t{1} << 32;
inline constexpr std::int32_t kTensorBoxLimit = 256;
inline constexpr std::int64_t kPairGroupRows = 8;

/// Why no pair view takes matrices of this spec (w_gate or w_up), nothing where one does. Reads the
/// layout and shape alone: for `supports`. What only pointers tell is left to make_pair_view().
[[nodiscard]] detail::Reason pair_view_refusal(const OperandSpec& spec) noexcept;

/// The view of w_gate and w_up. A copy brings `box_k` columns of up to `box_groups` groups (both
/// halves); groups_a_copy says how many fit the blocks. Errors: kUnsupported with the reason: those
/// of pair_view_refusal(), a base that is no multiple of 16 bytes, a distance of gate and up that
/// is no multiple of 16 or not below 2^40, a box over 256. Blocks of up to 8 `longest_run` rows
/// that take turns come as they lie, in one plain copy, where box and dimension keep their limits:
/// their number of groups divides it.
[[nodiscard]] Expected<PairView> make_pair_view(const OperandSpec& spec, const void* gate,
                                                const void* up, std::int32_t box_k,
                                                std::int32_t box_groups,
                                                std::int32_t longest_run = 1) noexcept;

/// Whether blocks of this layout leave room for one of the other matrix between them, and for no
/// more: gate and up then take turns in one run of rows where their pointers are a block apart.
[[nodiscard]] bool blocks_alternate(const Layout& layout) noexcept;

/// Why no plain two-dimensional view takes this operand; nothing where one does.
[[nodiscard]] detail::Reason matrix_view_refusal(const OperandSpec& spec) noexcept;

/// (cols, rows) of a matrix without blocks: x, h, w_down, y. Errors: kUnsupported with the reason.
[[nodiscard]] Expected<TensorView> make_matrix_view(const OperandSpec& spec, const void* base,
                                                    std::int32_t box_cols,
                                                    std::int32_t box_rows) noexcept;

/// How a copy permutes 16-byte units of shared memory; the box's first dimension must fill the
/// span. kSwizzle128: unit u of row r (128 bytes a row) lies at u ^ (r % 8).
enum class TensorSwizzle : std::uint8_t {
  kNone = CU_TENSOR_MAP_SWIZZLE_NONE,
  kSwizzle32 = CU_TENSOR_MAP_SWIZZLE_32B,
  kSwizzle64 = CU_TENSOR_MAP_SWIZZLE_64B,
  kSwizzle128 = CU_TENSOR_MAP_SWIZZLE_128B,
};

/// The driver's descriptor of a view on `base`. Elements outside the dims read as 0 and are not
/// written. Needs no context. Errors: kUnsupported where the driver has no tensor maps; kDevice
/// with the CUresult where it refuses the view. Thread-safe.
[[nodiscard]] Expected<CUtensorMap> encode(const TensorView& view, const void* base,
                                           TensorSwizzle swizzle) noexcept;

}  // namespace sluice::cuda
