// SPDX-License-Identifier: Apache-2.0
// The kernels of one SIMD target as tables of functions: everything that depends on the
// instruction set. What calls them, in which order and on how many threads, is plain C++ and
// compiled once. All matrices in here are fp32 unless an element type is named. Arrays indexed by
// DType hold bf16, fp16 and fp32, and those of weights block types too, whose lines begin and end
// with a block. Any alignment of elements is fine everywhere.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "cpu/fixed_point.hpp"
#include "sluice/device.hpp"
#include "sluice/types.hpp"

namespace sluice::cpu {

inline constexpr int kEngineDTypes = 3;
/// The most lanes of any target: buffers that kernels fill in whole vectors are padded to it.
inline constexpr int kMaxLanes = 16;
inline constexpr int kMaxTileRows = 12;

/// A K block: sums of this length start from zero and are added up, which bounds the error of long
/// sums. A panel of B, 256 x 32 fp32, is as large as a usual L1 and streams from L2 at no loss.
inline constexpr std::int64_t kBlockK = 256;
/// Floats from one widened row of A to the next: a line beyond a power of two, so that the rows of
/// a tile do not fall into the same sets of L1.
inline constexpr std::int64_t kAStride = kBlockK + kMaxLanes;

/// What the rows of a stored matrix are to a product.
enum class Rows : std::uint8_t {
  kLines,  ///< a row holds all k of one row of A or column of B: x, w of y = x·wᵀ
  kSteps,  ///< a row holds one k of all rows of A or columns of B: x of dw = dgᵀ·x
};

/// Steps of k between two rounds of prefetching: a cache line of a 16-bit row.
inline constexpr std::int64_t kAheadSteps = 32;

/// Where the rows of a tile go on in memory: prefetched while the tile runs.
struct Ahead {
  const void* const* lines;  ///< one for each row of the tile; need not be readable
  std::int64_t step_bytes;   ///< of kAheadSteps elements of a row
};

class NextRows;

/// Register tiles of the GEMM: rows of A by vectors of B's columns.
struct GemmKernels {
  /// c[i, j] (+)= sum over k of A[i, k] * b[k * width + j] for the tile's rows and columns, in the
  /// order of k, every element by itself. `add` adds the sum to c, else it is stored. A lies
  /// widened (kLines: a[i * kAStride + k]) or packed (kSteps: a[k * a_width + i]). `ahead` may be
  /// null.
  using Tile = void (*)(const float* a, const float* b, std::int64_t k, float* c, std::int64_t ldc,
                        bool add, const Ahead* ahead);
  using Tiles = std::array<Tile, kMaxTileRows + 1>;

  int lanes;      ///< fp32 lanes of a vector; a panel of B is 2 * lanes columns wide
  int tile_rows;  ///< rows of a full tile, so many accumulator pairs fit in registers
  int a_width;    ///< floats from one k to the next in a packed panel of A

  Tiles tile[2];     ///< by A's form, by rows: two vectors of columns
  Tile narrow_tile;  ///< kLines; 2 * tile_rows rows by one vector

  /// narrow_tile of kTileRows fp32 rows that are read where they lie: A[i, k] = lines[i][k]. What
  /// comes `next` is brought into L2 meanwhile, as many bytes as are read. Null where registers are
  /// too few.
  void (*row_tile)(const float* const* lines, const float* b, std::int64_t k, float* c,
                   std::int64_t ldc, bool add, NextRows& next);

  /// `tile` and `narrow_tile` of pairs: a "float" of a and b holds the bf16 of two steps of k, the
  /// lower half's first, and k counts pairs. Null where the target has no such instruction.
  Tiles pair_tile[2] = {};
  Tile narrow_pair_tile = nullptr;
  /// Full tiles of kLines (tile_rows by two vectors, twice as many by one) for weights in blocks
  /// whose integers are such pairs, as widen_block_pairs leaves them. k is whole blocks.
  Tile scaled_tile = nullptr;
  Tile narrow_scaled_tile = nullptr;

  /// out[i * kAStride + p] = lines[i][p] for i < count, p < k <= kBlockK; a null line is zeros.
  /// Writes k rounded up to lanes.
  void (*widen_lines[kDTypeCount])(const void* const* lines, int count, std::int64_t k, float* out);

  /// The integers of q8_0 or q4_0 as pairs of bf16, k of them columns: out[i * kAStride + p] =
  /// those of columns 2 p and 2 p + 1 of lines[i], and from kBlockK on the scales of the blocks.
  /// Writes whole rows of kAStride at most.
  void (*widen_block_pairs[kDTypeCount])(const void* const* lines, int count, std::int64_t k,
                                         float* out) = {};

  /// out[k * width + i] = lines[i][k]: `count` lines, each contiguous in k, become one panel. A
  /// null line and those from count to width (a multiple of 4) are zeros. Writes k rounded up to
  /// lanes.
  void (*pack_lines[kDTypeCount])(const void* const* lines, int count, std::int64_t k, int width,
                                  float* out);

  /// out[(j / width) * panel_stride + j % width] = row[j] for j < n, and zeros up to a multiple of
  /// `width`: one k of all panels, from a row that is contiguous across the panels.
  void (*pack_row[kEngineDTypes])(const void* row, std::int64_t n, int width,
                                  std::int64_t panel_stride, float* out);

  /// The same of two steps of bf16 as pairs; a null `odd` is zeros. Null where pair_tile is.
  void (*pack_row_pairs)(const void* even, const void* odd, std::int64_t n, int width,
                         std::int64_t panel_stride, float* out) = nullptr;

  [[nodiscard]] bool has_pairs() const noexcept { return pack_row_pairs != nullptr; }
};

/// Tiles of 1 to kRows rows, indexed by rows: `tile_of` gives that of a std::integral_constant.
template <int kRows, class TileOf>
constexpr GemmKernels::Tiles tiles_by_rows(const TileOf& tile_of) {
  GemmKernels::Tiles out{};
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    ((out[kIndex + 1] = tile_of(std::integral_constant<int, kIndex + 1>{})), ...);
  }
  (std::make_integer_sequence<int, kRows>());
  return out;
}

/// Dot products for a few tokens: the weights are read once, in their own type.
struct DotKernels {
  /// The most tokens of any target's `dots`.
  static constexpr std::int64_t kMaxTokens = 16;
  /// The same for pairs.
  static constexpr std::int64_t kMaxPairTokens = 16;
  /// One token of more columns takes over 16 KiB of L1 in fp32: beside a stream of 16-bit weights
  /// it is best kept in their type.
  static constexpr std::int64_t kMaxWideCols = 4096;
  /// Rows that a kernel looks ahead at most.
  static constexpr int kAheadLines = 32;
  /// Up to here dot products beat the GEMM, whose narrowest panel has as many tokens as a vector
  /// has lanes and costs the same for fewer.
  std::int64_t max_tokens;
  /// out[t * ldo + i] = sum over k of lines[i][k] * x[t * ldx + k]. Rows of x are zero from k to
  /// the next multiple of kMaxLanes. Behind `count` lines follow kAheadLines more that are only
  /// prefetched: what this thread reads next, or anything else where nothing follows.
  void (*dots[kDTypeCount])(const void* const* lines, int count, const float* x, std::int64_t ldx,
                            int tokens, std::int64_t k, float* out, std::int64_t ldo);

  /// The same of one token in the weights' own 16-bit type; null for fp32.
  void (*own_dots[kEngineDTypes])(const void* const* lines, int count, const void* x,
                                  std::int64_t k, float* out) = {};

  /// The same of bf16, q8_0 or q4_0 (indexed by DType) with tokens in bf16, whose columns lie in
  /// pair_order() of the weights, with zeros from k to the next multiple of kPairElems. Null where
  /// the target has no instruction for it.
  void (*pair_dots[kDTypeCount])(const void* const* lines, int count, const std::uint16_t* x,
                                 std::int64_t ldx, int tokens, std::int64_t k, float* out,
                                 std::int64_t ldo) = {};
  static constexpr std::int64_t kPairElems = 128;

  /// The same of q8_0 or q4_0 with up to max_fixed_tokens tokens in fixed point, multiplied as
  /// integers. A block of x that is kept as it is adds nothing. Null where widening is not the
  /// slower way.
  void (*fixed_dots[kDTypeCount])(const void* const* lines, int count, const FixedRows& x,
                                  int tokens, std::int64_t k, float* out, std::int64_t ldo) = {};
  std::int64_t max_fixed_tokens = 0;
  /// n columns, whole blocks of `dtype`, bf16 or fp16, that are widened, to fixed point.
  void (*to_fixed)(const float* x, std::int64_t n, DType dtype, FixedBlock* blocks,
                   float* scales) = nullptr;
  /// Where the columns of each kPairElems of a token go.
  using PairOrder = std::array<std::uint8_t, kPairElems>;
};

/// Blocks of weights come out of their bytes in this order, as pairs for the instruction: q8_0's
/// two blocks a step by runs of 8 (even runs, then odd ones), q4_0's four by the nibbles of words.
[[nodiscard]] constexpr DotKernels::PairOrder pair_order(DType weights) noexcept {
  DotKernels::PairOrder out{};
  for (int col = 0; col < static_cast<int>(out.size()); ++col) {
    int to = col;
    if (weights == DType::kQ8_0) {
      to = col / 64 * 64 + col / 8 % 2 * 32 + col / 16 % 4 * 8 + col % 8;
    } else if (weights == DType::kQ4_0) {
      to = (col % 2 * 2 + col / 16 % 2) * 32 + col / 32 * 8 + col % 16 / 2;
    }
    out[static_cast<std::size_t>(col)] = static_cast<std::uint8_t>(to);
  }
  return out;
}

/// Contiguous elements to fp32 (exact) and back (round to nearest even, NaN stays NaN).
struct RowKernels {
  void (*widen[kEngineDTypes])(const void* in, std::int64_t n, float* out);
  void (*narrow[kEngineDTypes])(const float* in, std::int64_t n, void* out);
  /// inout[i] += in[i]
  void (*add)(const float* in, std::int64_t n, float* inout);
  /// out[i] = (in[i] * scale) * (weight[i] + offset)
  void (*scale)(const float* in, float scale, const float* weight, float offset, std::int64_t n,
                float* out);
};

/// The gate of sluice::Gate and its gradient on contiguous fp32; outputs may be inputs.
struct GateKernels {
  using Mul = void (*)(const Gate& gate, const float* g, const float* u, std::int64_t n, float* h);
  using Grad = void (*)(const Gate& gate, const float* g, const float* u, const float* dh,
                        std::int64_t n, float* dg, float* du, float* h);
  Mul mul;
  Grad grad;
  /// The same with Problem::round_gate, by x's type; `mul` and `grad` for fp32.
  Mul rounded_mul[kEngineDTypes];
  Grad rounded_grad[kEngineDTypes];
};

struct Kernels {
  const GemmKernels& gemm;
  const DotKernels& dot;
  const RowKernels& row;
  const GateKernels& gate;
};

const GemmKernels& gemm_kernels(SimdTarget target) noexcept;
const DotKernels& dot_kernels(SimdTarget target) noexcept;
const RowKernels& row_kernels(SimdTarget target) noexcept;
const GateKernels& gate_kernels(SimdTarget target) noexcept;

/// The target must be one that the CPU has (Device::simd_targets).
inline Kernels kernels(SimdTarget target) noexcept {
  return {gemm_kernels(target), dot_kernels(target), row_kernels(target), gate_kernels(target)};
}

}  // namespace sluice::cpu
