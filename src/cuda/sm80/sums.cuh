// SPDX-License-Identifier: Apache-2.0
// The epilogues of gate_up that saves, gate_up_grad and weight_grad: the tile's sums go through
// shared memory in fp32, then a thread has eight neighbouring columns of a row and moves 16 bytes
// of each matrix.
//
// shared      kTileM rows of kTileN floats; the 16 bytes c of row r lie at
//             c ^ 2 (r % 4) ^ c / 8 % 4, so that the two of each of four rows that half a warp
//             writes, and every second or fourth of a row that a quarter reads, touch all banks
//             once
#pragma once

#include "cuda/sm80/mainloop.cuh"
#include "cuda/tile/activation.cuh"
#include "cuda/tile/vector8.cuh"

namespace sluice::cuda::sm80 {

constexpr bool stores_sums(GemmKind kind) {
  return kind != GemmKind::kGateUp && kind != GemmKind::kDown && kind != GemmKind::kInputGrad;
}

// Bytes from the first to the sum of this row and column.
template <int kTileN>
constexpr __device__ int sum_at(int row, int col) {
  const int chunk = col / 4;
  return row * kTileN * 4 + (chunk ^ row % 4 * 2 ^ chunk / 8 % 4) * 16 + col % 4 * 4;
}

template <class Cfg>
__device__ __forceinline__ void put_sums(char* sums, int row0, int col0,
                                         const Accumulators<Cfg>& d) {
  static_assert(Cfg::kTileM * Cfg::kTileN * 4 <= Cfg::kSmem);
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < Cfg::kWarpM / 16; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row0 + 16 * i + 8 * r + lane / 4;
#pragma unroll
      for (int j = 0; j < Cfg::kWarpN / 8; ++j) {
        const int col = col0 + 8 * j + lane % 4 * 2;
        *reinterpret_cast<float2*>(sums + sum_at<Cfg::kTileN>(row, col)) =
            float2{d[i][j][2 * r], d[i][j][2 * r + 1]};
      }
    }
  }
}

// Eight sums of a row from column `col` on, a multiple of 8: two neighbours, in either order.
template <class Cfg>
__device__ __forceinline__ void load_sums(float (&v)[8], const char* sums, int row, int col) {
  const int at = sum_at<Cfg::kTileN>(row, col);
  const float4 low = *reinterpret_cast<const float4*>(sums + at);
  const float4 high = *reinterpret_cast<const float4*>(sums + (at ^ 16));
  v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
  v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

template <class Element>
__device__ __forceinline__ Element* place(const tile::RowMajor& matrix, int row, int col) {
  return reinterpret_cast<Element*>(matrix.base + row * matrix.row_bytes) + col;
}

template <class Element>
__device__ __forceinline__ void add_bias(float (&v)[8], const void* bias, int col) {
  if (bias == nullptr) return;
  const auto b = Vector8<Element>::load(static_cast<const Element*>(bias) + col);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] += b.at[i];
}

// h, g and u of eight columns of gate_up from `col` on. g and u are their sums.
template <class Element>
__device__ __forceinline__ void put_gated(const GemmParams& p, const Gate& gate, int row, int col,
                                          Vector8<Element> g, Vector8<Element> u) {
  add_bias<Element>(g.at, p.bias[0], col);
  add_bias<Element>(u.at, p.bias[1], col);
  Vector8<Element> h;
#pragma unroll
  for (int i = 0; i < 8; ++i) h.at[i] = math::gate_mul(gate, g.at[i], u.at[i]);
  h.store(place<Element>({static_cast<char*>(p.out), p.out_row_bytes}, row, col));
  g.store(place<Element>(p.g, row, col));
  u.store(place<Element>(p.u, row, col));
}

// dg and du may lie where g and u do: a thread has read what it writes.
template <class Element>
__device__ __forceinline__ void put_hidden_grads(const GemmParams& p, const Gate& gate, int row,
                                                 int col, const float (&dh)[8]) {
  const auto g = Vector8<Element>::load(place<Element>(p.g, row, col));
  const auto u = Vector8<Element>::load(place<Element>(p.u, row, col));
  Vector8<Element> dg, du, h;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const math::GateGrad<float> v = math::gate_mul_grad(gate, g.at[i], u.at[i], dh[i]);
    dg.at[i] = v.dg, du.at[i] = v.du, h.at[i] = v.h;
  }
  dg.store(place<Element>(p.dg, row, col));
  du.store(place<Element>(p.du, row, col));
  if (p.out != nullptr) {
    h.store(place<Element>({static_cast<char*>(p.out), p.out_row_bytes}, row, col));
  }
}

// A weight's gradient, added to what is there where asked: rounded once.
template <class Element>
__device__ __forceinline__ void put_weight_grad(const GemmParams& p, int row, int col,
                                                Vector8<Element> v) {
  char* const at = const_cast<char*>(p.grad.at(row));
  if (p.grad_fp32 != 0) {
    float* const to = reinterpret_cast<float*>(at) + col;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      auto& grad = *reinterpret_cast<float4*>(to + i);
      const float4 old = p.accumulate != 0 ? grad : float4{};
      grad = {v.at[i] + old.x, v.at[i + 1] + old.y, v.at[i + 2] + old.z, v.at[i + 3] + old.w};
    }
    return;
  }
  Element* const to = reinterpret_cast<Element*>(at) + col;
  if (p.accumulate != 0) {
    const auto old = Vector8<Element>::load(to);
#pragma unroll
    for (int i = 0; i < 8; ++i) v.at[i] += old.at[i];
  }
  v.store(to);
}

// Calls `put(row, col, at, first)` for every eight columns of out in the tile: row and column of
// the matrix, row of the tile and column of its first sum.
template <class Cfg, class Put>
__device__ __forceinline__ void for_each_unit(const GemmParams& p, Tile tile, const Put& put) {
  constexpr int kUnits = Cfg::kOutCols / 8;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < Cfg::kTileM * kUnits; i += Cfg::kThreads) {
    const int at = i / kUnits;
    const int unit = i % kUnits;
    const int row = tile.m * Cfg::kTileM + at;
    const int col = tile.n * Cfg::kOutCols + unit * 8;
    if (row < p.m && col < p.n) put(row, col, at, unit * (Cfg::kGated ? 16 : 8));
  }
}

template <class Cfg>
__device__ __forceinline__ void store_from_sums(const GemmParams& p, Tile tile, const char* sums) {
  using Element = typename Cfg::Element;
  if constexpr (Cfg::kKind == GemmKind::kWeightGrad) {
    for_each_unit<Cfg>(p, tile, [&](int row, int col, int at, int first) {
      Vector8<Element> v;
      load_sums<Cfg>(v.at, sums, at, first);
      put_weight_grad<Element>(p, row, col, v);
    });
  } else {
    tile::with_epilogue_gate(p.gate, [&](const Gate& gate) {
      for_each_unit<Cfg>(p, tile, [&](int row, int col, int at, int first) {
        Vector8<Element> v;
        load_sums<Cfg>(v.at, sums, at, first);
        if constexpr (Cfg::kGated) {
          Vector8<Element> u;
          load_sums<Cfg>(u.at, sums, at, first + 8);
          put_gated<Element>(p, gate, row, col, v, u);
        } else {
          put_hidden_grads<Element>(p, gate, row, col, v.at);
        }
      });
    });
  }
}

}  // namespace sluice::cuda::sm80
