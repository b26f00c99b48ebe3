// SPDX-License-Identifier: Apache-2.0
// The GEMM for Ampere and newer: its epilogues and its launch. The main loop is in mainloop.cuh;
// drawing and log: docs/kernels/sm80.md.
#pragma once

#include <cstdint>

#include "cuda/host/launch.hpp"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/sm80/mainloop.cuh"
#include "cuda/sm80/sums.cuh"
#include "cuda/tile/activation.cuh"
#include "cuda/tile/addends.cuh"
#include "cuda/tile/pair.cuh"
#include "math/gate.hpp"

namespace sluice::cuda::sm80 {

// Writes the warp's part of the output tile to shared memory, rounded once. `values(i, c, r)` gives
// the pair of columns 8 c + 2 (lane % 4) of row 16 i + 8 r + lane / 4 of the warp's part.
template <class Cfg, class Values>
__device__ __forceinline__ void stage_rows(char* out, int row0, int col0, const Values& values) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kBlocks = (Cfg::kGated ? Cfg::kWarpN / 2 : Cfg::kWarpN) / 8;
#pragma unroll
  for (int i = 0; i < Cfg::kWarpM / 16; ++i) {
#pragma unroll
    for (int c = 0; c < kBlocks; ++c) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = row0 + 16 * i + 8 * r + lane / 4;
        const int col = col0 + 8 * c + lane % 4 * 2;
        *reinterpret_cast<std::uint32_t*>(out + row * Cfg::kOutPitch + col * 2) =
            tile::pack<typename Cfg::Element>(values(i, c, r));
      }
    }
    __syncwarp();  // keeps the compiler from computing all rows at once, which takes registers
  }
}

// h = gate(g + bg, u + bu).
template <class Cfg>
__device__ __forceinline__ void gate_rows(const GemmParams& p, Tile tile, char* out, int row0,
                                          int col0, Accumulators<Cfg>& d) {
  const int first = tile.n * Cfg::kOutCols + col0 + static_cast<int>(threadIdx.x) % 4 * 2;
  if (p.bias[0] != nullptr) {
#pragma unroll
    for (int j = 0; j < Cfg::kWarpN / 8; ++j) {
      const int col = first + j / 2 * 8;
      if (col >= p.n) continue;
      const tile::Pair bias = tile::load_pair<typename Cfg::Element>(p.bias[j % 2], col);
#pragma unroll
      for (int i = 0; i < Cfg::kWarpM / 16; ++i) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          d[i][j][2 * r] += bias.lo;
          d[i][j][2 * r + 1] += bias.hi;
        }
      }
    }
  }
  tile::with_gate(p.gate, math::is_plain(p.gate), [&](const Gate& gate) {
    stage_rows<Cfg>(out, row0, col0, [&](int i, int c, int r) {
      const float* g = d[i][2 * c] + 2 * r;
      const float* u = d[i][2 * c + 1] + 2 * r;
      return tile::Pair{math::gate_mul(gate, g[0], u[0]), math::gate_mul(gate, g[1], u[1])};
    });
  });
}

// y = d + bias + residual.
template <class Cfg>
__device__ __forceinline__ void plain_rows(const GemmParams& p, Tile tile, char* out, int row0,
                                           int col0, Accumulators<Cfg>& d) {
  constexpr int kChunks = Cfg::kWarpN / 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = tile.m * Cfg::kTileM + row0 + lane / 4;
  const int col = tile.n * Cfg::kOutCols + col0 + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < Cfg::kWarpM / 16; ++i) {
    tile::ResidualRows residual{p.residual.base != nullptr, {}};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_row + 16 * i + 8 * r;
      if (row < p.m) residual.at[r] = p.residual.at(row);
    }
    const tile::Addends<typename Cfg::Element, kChunks> addends(p.bias[0], residual, col, p.n);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const tile::Pair v = addends.add({d[i][c][2 * r], d[i][c][2 * r + 1]}, c, r);
        d[i][c][2 * r] = v.lo;
        d[i][c][2 * r + 1] = v.hi;
      }
    }
  }
  stage_rows<Cfg>(out, row0, col0, [&](int i, int c, int r) {
    return tile::Pair{d[i][c][2 * r], d[i][c][2 * r + 1]};
  });
}

// From shared memory to the matrix, 16 bytes a thread, neighbouring threads along a row.
template <class Cfg>
__device__ __forceinline__ void store_tile(const GemmParams& p, Tile tile, const char* out) {
  constexpr int kUnits = Cfg::kOutCols / 8;  // 16 bytes each
  for (int at = static_cast<int>(threadIdx.x); at < Cfg::kTileM * kUnits; at += Cfg::kThreads) {
    const int row = tile.m * Cfg::kTileM + at / kUnits;
    const int col = tile.n * Cfg::kOutCols + at % kUnits * 8;
    if (row < p.m && col < p.n) {
      char* to =
          static_cast<char*>(p.out) + row * p.out_row_bytes + static_cast<long long>(col) * 2;
      *reinterpret_cast<uint4*>(to) =
          *reinterpret_cast<const uint4*>(out + at / kUnits * Cfg::kOutPitch + at % kUnits * 16);
    }
  }
}

template <class Cfg>
__global__ void __launch_bounds__(Cfg::kThreads, Cfg::kResident)
    gemm(const __grid_constant__ GemmParams p) {
  extern __shared__ __align__(128) char smem[];
  const Tile tile = tile_at(p, static_cast<int>(blockIdx.x));
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row0 = warp / Cfg::kWarpsN * Cfg::kWarpM;
  const int weight0 = warp % Cfg::kWarpsN * Cfg::kWarpN;
  Accumulators<Cfg> d = {};
  multiply_all<Cfg>(p, tile, ptx::shared_address(smem), row0, weight0, d);
  if constexpr (stores_sums(Cfg::kKind)) {
    put_sums<Cfg>(smem, row0, weight0, d);
    __syncthreads();
    store_from_sums<Cfg>(p, tile, smem);
    return;
  } else if constexpr (Cfg::kGated) {
    gate_rows<Cfg>(p, tile, smem, row0, weight0 / 2, d);
  } else {
    plain_rows<Cfg>(p, tile, smem, row0, weight0, d);
  }
  __syncthreads();
  store_tile<Cfg>(p, tile, smem);
}

template <class Cfg>
Status launch_config(const GemmLaunch& launch, GemmParams& p) noexcept {
  p.m_tiles = (p.m + Cfg::kTileM - 1) / Cfg::kTileM;
  p.n_tiles = (p.n + Cfg::kOutCols - 1) / Cfg::kOutCols;
  const LaunchShape shape{
      .grid = static_cast<unsigned>(p.m_tiles) * static_cast<unsigned>(p.n_tiles),
      .block = Cfg::kThreads,
      .smem_bytes = Cfg::kSmem};
  return cuda::launch<gemm<Cfg>>(launch.device, shape, launch.stream, p);
}

template <GemmKind kKind, class Element, std::size_t kIndex = 0>
Status launch_typed(const GemmLaunch& launch, GemmParams& params) noexcept {
  if constexpr (kIndex < std::size(kTilings)) {
    if (launch.tiling == kTilings[kIndex]) {
      return launch_config<GemmConfig<kKind, Element, kTilings[kIndex]>>(launch, params);
    }
    return launch_typed<kKind, Element, kIndex + 1>(launch, params);
  } else {
    return make_error(ErrorCode::kInternal, "sm80: no kernel for a tile of %d x %d",
                      launch.tiling.tile_m, launch.tiling.tile_n);
  }
}

template <GemmKind kKind>
Status launch_gemm(const GemmLaunch& launch, GemmParams& params) noexcept {
  return launch.dtype == DType::kF16 ? launch_typed<kKind, __half>(launch, params)
                                     : launch_typed<kKind, __nv_bfloat16>(launch, params);
}

}  // namespace sluice::cuda::sm80
