// SPDX-License-Identifier: Apache-2.0
// The SIMT GEMM: CUDA cores, fp32 accumulation, any shape and layout. Source: the shared-memory
// tiling of the CUDA C++ programming guide (section "Shared Memory").
//
// 256 threads, all alike. Each k step: every thread copies its share of A and B into shared memory
// as fp32, a barrier, then kRowsPerThread x kColsPerThread (x 2 with gate and up) multiply-adds a
// k.
//
// Every output is one chain of fused multiply-adds over k in ascending order, the same for every
// tile shape and grid: same bits for any config, any M and any number of SMs.
#pragma once

#include "cuda/simt/view.cuh"
#include "math/gate.hpp"

namespace sluice::cuda::simt {

inline constexpr int kThreads = 256;

template <int kRowsOfTile, int kColsOfTile, int kDepthOfTile, bool kDualValue>
struct GemmCfg {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kCols = kColsOfTile;
  static constexpr int kDepth = kDepthOfTile;
  static constexpr bool kDual = kDualValue;  // two right sides: gate and up
  static constexpr int kColsPerThread = 4;
  static constexpr int kThreadsPerRow = kCols / kColsPerThread;
  static constexpr int kThreadRows = kThreads / kThreadsPerRow;
  static constexpr int kRowsPerThread = kRows / kThreadRows;
  static constexpr int kSums = kRowsPerThread * kColsPerThread;   // of a thread
  static constexpr int kResident = kDual && kRows == 64 ? 2 : 3;  // CTAs that registers leave an SM
  static constexpr int kPad = 4;  // floats: spreads one row's k over the banks, keeps 16 bytes

  static_assert(kCols % kColsPerThread == 0 && kThreads % kThreadsPerRow == 0,
                "a row of threads covers the columns of the tile");
  static_assert(kRows % kThreadRows == 0, "the threads cover the rows of the tile");
  static_assert((kRows * kDepth) % kThreads == 0 && (kCols * kDepth) % kThreads == 0,
                "every thread copies the same number of elements");
};

/// Copies [kRows of the view, kDepth of k] from (row0, k0) to shared memory as tile[k][row]; what
/// lies outside reads as 0. Neighbouring threads take neighbouring addresses: along k for a plain
/// view, along rows for a transposed one.
template <int kRows, int kDepth, int kPad>
__device__ __forceinline__ void copy_tile(float (&tile)[kDepth][kRows + kPad], const View& view,
                                          std::int64_t row0, std::int64_t rows, std::int64_t k0,
                                          std::int64_t depth) {
#pragma unroll
  for (int i = 0; i < kRows * kDepth / kThreads; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    const int r = view.transposed ? at % kRows : at / kDepth;
    const int k = view.transposed ? at / kRows : at % kDepth;
    const bool inside = row0 + r < rows && k0 + k < depth;
    tile[k][r] = inside ? load(view, row0 + r, k0 + k) : 0.0F;
  }
}

/// The element (i, j) of a finished tile: bias, gate or gradient, then the one rounding.
__device__ __forceinline__ void finish(const GemmParams& p, std::int64_t i, std::int64_t j,
                                       float sum, float sum_up) {
  switch (p.epilogue) {
    case Epilogue::kGateUp: {
      const float g = sum + load_or_zero(p.bias[0], 0, j);
      const float u = sum_up + load_or_zero(p.bias[1], 0, j);
      store(p.g, i, j, g);
      store(p.u, i, j, u);
      store(p.out, i, j, math::gate_mul(p.gate, g, u));
      return;
    }
    case Epilogue::kLinear:
      store(p.out, i, j, sum + load_or_zero(p.bias[0], 0, j) + load_or_zero(p.addend, i, j));
      return;
    case Epilogue::kGateGrad: {
      // dg may be g and du may be u: both are read before either is written.
      const auto grad = math::gate_mul_grad(p.gate, load(p.g, i, j), load(p.u, i, j), sum);
      store(p.out, i, j, grad.h);
      store(p.dg, i, j, grad.dg);
      store(p.du, i, j, grad.du);
      return;
    }
  }
}

/// Roles: none; all 256 threads do the same.
/// Shared memory, fp32: a[kDepth][kRows + 4], b[kDepth][kCols + 4], with kDual b_up the same.
///   64x64x16: 4.25 + 4.25 (+ 4.25) KiB; 16x64x32: 2.5 + 8.5 (+ 8.5) KiB.
/// A CTA walks tiles t, t + gridDim.x, …: row tiles first, so that a column tile of the weights is
/// read from L2 by the CTAs that share it, and no grid dimension limits the shape.
template <class Cfg>
__global__ void __launch_bounds__(kThreads, Cfg::kResident)
    gemm(const __grid_constant__ GemmParams p) {
  __shared__ float a[Cfg::kDepth][Cfg::kRows + Cfg::kPad];
  __shared__ float b[Cfg::kDepth][Cfg::kCols + Cfg::kPad];
  __shared__ float b_up[Cfg::kDual ? Cfg::kDepth : 1][Cfg::kCols + Cfg::kPad];
  const int thread_row = static_cast<int>(threadIdx.x) / Cfg::kThreadsPerRow;
  const int thread_col = static_cast<int>(threadIdx.x) % Cfg::kThreadsPerRow;
  const std::int64_t row_tiles = (p.rows + Cfg::kRows - 1) / Cfg::kRows;
  const std::int64_t col_tiles = (p.cols + Cfg::kCols - 1) / Cfg::kCols;
  for (std::int64_t t = blockIdx.x; t < row_tiles * col_tiles; t += gridDim.x) {
    const std::int64_t row0 = t % row_tiles * Cfg::kRows;
    const std::int64_t col0 = t / row_tiles * Cfg::kCols;
    float sum[Cfg::kSums] = {};
    float sum_up[Cfg::kSums] = {};
    for (int product = 0; product < p.products; ++product) {
      for (std::int64_t k0 = 0; k0 < p.depth; k0 += Cfg::kDepth) {
        copy_tile<Cfg::kRows, Cfg::kDepth, Cfg::kPad>(a, p.a[product], row0, p.rows, k0, p.depth);
        copy_tile<Cfg::kCols, Cfg::kDepth, Cfg::kPad>(b, p.b[product], col0, p.cols, k0, p.depth);
        if constexpr (Cfg::kDual) {
          copy_tile<Cfg::kCols, Cfg::kDepth, Cfg::kPad>(b_up, p.b[1], col0, p.cols, k0, p.depth);
        }
        __syncthreads();  // all 256 wrote the tiles; all 256 may read them
#pragma unroll
        for (int k = 0; k < Cfg::kDepth; ++k) {
#pragma unroll
          for (int i = 0; i < Cfg::kRowsPerThread; ++i) {
            const float left = a[k][thread_row * Cfg::kRowsPerThread + i];
#pragma unroll
            for (int j = 0; j < Cfg::kColsPerThread; ++j) {
              const int col = thread_col * Cfg::kColsPerThread + j;
              float& own = sum[i * Cfg::kColsPerThread + j];
              own = fmaf(left, b[k][col], own);
              if constexpr (Cfg::kDual) {
                float& own_up = sum_up[i * Cfg::kColsPerThread + j];
                own_up = fmaf(left, b_up[k][col], own_up);
              }
            }
          }
        }
        __syncthreads();  // all 256 read the tiles; the next step may overwrite them
      }
    }
    // NOTE: one body for all elements of a thread. With one for each, their gates took four fifths
    // of the compile time. Registers have no index: the sums go on by one.
#pragma unroll 1
    for (int at = 0; at < Cfg::kSums; ++at) {
      const std::int64_t row = row0 + thread_row * Cfg::kRowsPerThread + at / Cfg::kColsPerThread;
      const std::int64_t col = col0 + thread_col * Cfg::kColsPerThread + at % Cfg::kColsPerThread;
      if (row < p.rows && col < p.cols) finish(p, row, col, sum[0], sum_up[0]);
#pragma unroll
      for (int next = 1; next < Cfg::kSums; ++next) {
        sum[next - 1] = sum[next];
        sum_up[next - 1] = sum_up[next];
      }
    }
  }
}

}  // namespace sluice::cuda::simt
