// SPDX-License-Identifier: Apache-2.0
// The kernels of one SIMD target as tables of functions: everything that depends on the
// instruction set. What calls them, in which order and on how many threads, is plain C++ and
// compiled once. All matrices in here are fp32 unless an element type is named. Arrays indexed by
// DType hold bf16, fp16 and fp32, and those of weights block types too, whose lines begin and end
// with a block. Any alignment of elements is fine everywhere.
#pragma once

#include <cstdint>

#include "sluice/device.hpp"
#include "sluice/types.hpp"

namespace sluice::cpu {

inline constexpr int kEngineDTypes = 3;
/// The most lanes of any target: buffers that kernels fill in whole vectors are padded to it.
inline constexpr int kMaxLanes = 16;
inline constexpr int kMaxTileRows = 12;

/// Register tile of the GEMM: up to tile_rows rows of A by 2 vectors of B's columns.
struct GemmKernels {
  int lanes;      ///< fp32 lanes of a vector; a panel of B is 2 * lanes columns wide
  int tile_rows;  ///< rows of a full tile, so many accumulator pairs fit in registers
  int a_width;    ///< floats from one k to the next in a packed panel of A

  /// c[i, j] (+)= sum over k of a[k * a_width + i] * b[k * 2 * lanes + j] for i < rows, in the
  /// order of k, every element by itself; indexed by rows. `add` adds the sum to c, else it is
  /// stored.
  void (*tile[kMaxTileRows + 1])(const float* a, const float* b, std::int64_t k, float* c,
                                 std::int64_t ldc, bool add);

  /// out[k * width + i] = lines[i][k]: `count` lines, each contiguous in k, become one panel. A
  /// null line and those from count to width (a multiple of 4) are zeros. Writes k rounded up to
  /// lanes.
  void (*pack_lines[kDTypeCount])(const void* const* lines, int count, std::int64_t k, int width,
                                  float* out);

  /// out[(j / width) * panel_stride + j % width] = row[j] for j < n, and zeros up to a multiple of
  /// `width`: one k of all panels, from a row that is contiguous across the panels.
  void (*pack_row[kEngineDTypes])(const void* row, std::int64_t n, int width,
                                  std::int64_t panel_stride, float* out);
};

/// Dot products for a few tokens: the weights are read once, in their own type.
struct DotKernels {
  /// Up to here dot products beat the GEMM, which packs every weight for a few tokens' worth of
  /// work.
  static constexpr std::int64_t kMaxTokens = 16;
  /// out[t * ldo + i] = sum over k of lines[i][k] * x[t * ldx + k]. Rows of x are zero from k to
  /// the next multiple of kMaxLanes.
  void (*dots[kDTypeCount])(const void* const* lines, int count, const float* x, std::int64_t ldx,
                            int tokens, std::int64_t k, float* out, std::int64_t ldo);
};

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
  void (*mul)(const Gate& gate, const float* g, const float* u, std::int64_t n, float* h);
  void (*grad)(const Gate& gate, const float* g, const float* u, const float* dh, std::int64_t n,
               float* dg, float* du, float* h);
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
