// SPDX-License-Identifier: Apache-2.0
// From accumulators to the output tile in shared memory: bias, gate, gate's gradient or residual,
// rounding, stmatrix. A gated tile's accumulators hold chunks of eight columns of gate and of up in
// turns.
#pragma once

#include <cstdint>

#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/sm90/gemm/params.hpp"
#include "cuda/sm90/gemm/tile.cuh"
#include "cuda/tile/activation.cuh"
#include "cuda/tile/addends.cuh"
#include "cuda/tile/pair.cuh"
#include "math/gate.hpp"

namespace sluice::cuda::sm90::gemm {

using tile::pack;
using tile::Pair;
using tile::unpack;

// Byte offset of the 16-byte chunk (row, chunk) in the out tile: boxes of kOutBoxCols columns, each
// swizzled as its tensor map says (rows of 128 bytes by row % 8, of 64 by row / 2 % 4, of 32 by
// row / 4 % 2).
template <class Cfg>
__device__ __forceinline__ int out_offset(int row, int chunk) {
  constexpr int kChunks = Cfg::kOutBoxCols / 8;
  const int box = chunk / kChunks;
  const int in_box = chunk % kChunks;
  const int swizzled = in_box ^ (row / (8 / kChunks) % kChunks);
  return box * (kOutRows * Cfg::kOutBoxCols * 2) + row * (Cfg::kOutBoxCols * 2) + swizzled * 16;
}

// Writes two chunks of the out tile's 64 rows from chunk `p` on. `values(p, i)` gives the pair of
// columns 8 p + 2 (lane % 4) of row 8 i + lane / 4 of the warp's 16.
template <class Cfg, class Values>
__device__ __forceinline__ void store_chunks(char* out, int p, const Values& values) {
  using Element = typename Cfg::Element;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x % 128 / 32;
  // stmatrix takes one row address a lane: matrices 0, 1 are rows 0-7, 8-15 of chunk p; 2, 3 of p
  // + 1.
  const int row = warp * 16 + (lane / 8 % 2) * 8 + lane % 8;
  ptx::stmatrix_x4(out + out_offset<Cfg>(row, p + lane / 16), pack<Element>(values(p, 0)),
                   pack<Element>(values(p, 1)), pack<Element>(values(p + 1, 0)),
                   pack<Element>(values(p + 1, 1)));
}

// The same of all chunks.
template <class Cfg, class Values>
__device__ __forceinline__ void store_rows(char* out, const Values& values) {
#pragma unroll
  for (int p = 0; p < Cfg::kOutCols / 8; p += 2) store_chunks<Cfg>(out, p, values);
}

// How a gated tile holds its sums: `turn` (one, two or four) chunks of eight columns of the paired
// view's first half, then the same columns of its second, by turns.
struct PairOrder {
  int turn;
  bool up_first;  // the first half is up
};

__device__ __forceinline__ PairOrder pair_order(const GemmParams& p) {
  return {p.pair.groups_a_run, p.up_first != 0};
}

// The pairs that store_rows() asks for, from the sums of 64 rows: g (`up` false) or u as they are.
// NOTE: every candidate is read, then one is chosen: an array whose index is chosen lies in memory.
// And up_first is asked before the turn: what g and u have in common ptxas would work out for all
// accumulators ahead of the gate, and spill.
template <class Cfg>
__device__ __forceinline__ Pair half_pair(const PairOrder& order, bool up,
                                          const float (&d)[Cfg::kTileN / 2], int c, int i) {
  const bool second = up != order.up_first;
  const int turns = order.turn;
  const auto by_turns = [&](int turn, int x) {
    const int first = 4 * (c / turn * 2 * turn + c % turn) + 2 * i + x;
    const float a = d[first];
    const float b = d[first + 4 * turn];
    return second ? b : a;
  };
  const auto sum = [&](int x) {
    const float one = by_turns(1, x);
    const float two = by_turns(2, x);
    const float sum = turns == 2 ? two : one;
    if constexpr (Cfg::kTileN % 64 == 0) {  // longest_run()
      const float four = by_turns(4, x);
      return turns == 4 ? four : sum;
    }
    return sum;
  };
  return {sum(0), sum(1)};
}

// Adds b_gate and b_up to 64 rows of sums: d then holds g and u.
template <class Cfg>
__device__ __forceinline__ void add_biases(const GemmParams& p, Tile tile,
                                           float (&d)[Cfg::kTileN / 2]) {
  if (p.bias0 == nullptr) return;
  using Element = typename Cfg::Element;
  // A power of two: nothing is divided by what only the launch knows.
  const int turn = p.pair.groups_a_run;
  const int col0 = tile.n * Cfg::kOutCols + threadIdx.x % 4 * 2;
  // So many on their way together: each wait was a tenth of a short launch.
  constexpr int kBatch = Cfg::kTileN / 8 / 2;
  static_assert(Cfg::kTileN / 8 % kBatch == 0);
#pragma unroll
  for (int first = 0; first < Cfg::kTileN / 8; first += kBatch) {
    std::uint32_t words[kBatch];
#pragma unroll
    for (int c = 0; c < kBatch; ++c) {
      const int chunk = first + c;
      const bool up = ((chunk & turn) != 0) != (p.up_first != 0);
      const int col = col0 + 4 * (chunk & -2 * turn) + 8 * (chunk & (turn - 1));
      const auto* bias = static_cast<const std::uint32_t*>(up ? p.bias1 : p.bias0);
      words[c] = col < p.n ? bias[col / 2] : 0;
    }
#pragma unroll
    for (int c = 0; c < kBatch; ++c) {
      const Pair bias = unpack<Element>(words[c]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        d[4 * (first + c) + 2 * i] += bias.lo;
        d[4 * (first + c) + 2 * i + 1] += bias.hi;
      }
    }
  }
}

// What a config's EpiloguePart makes of two neighbours of h or y in fp32, before they are rounded:
// nothing. tests/device/epilogue_part_test.cu adds another.
struct Unchanged {
  __device__ __forceinline__ Pair operator()(Pair v) const { return v; }
};

// h = gate(g, u).
template <class Cfg>
__device__ __forceinline__ Pair gated(const Gate& gate, Pair g, Pair u) {
  return typename Cfg::EpiloguePart{}(
      {math::gate_mul(gate, g.lo, u.lo), math::gate_mul(gate, g.hi, u.hi)});
}

template <class Cfg>
__device__ __forceinline__ Pair gated_pair(const PairOrder& order, const Gate& gate,
                                           const float (&d)[Cfg::kTileN / 2], int c, int i) {
  return gated<Cfg>(gate, half_pair<Cfg>(order, false, d, c, i),
                    half_pair<Cfg>(order, true, d, c, i));
}

// What linear adds to a thread's sums of rows `row` and eight below, from column `col` on.
template <class Element, int kCount>
__device__ __forceinline__ tile::Addends<Element, kCount> addends_of(const GemmParams& p, int row,
                                                                     int col) {
  tile::ResidualRows residual{p.residual.base != nullptr, {}};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (row + 8 * i < p.m) residual.at[i] = p.residual.base + (row + 8 * i) * p.residual.row_bytes;
  }
  return {p.bias0, residual, col, p.n};
}

// g (`up` false) or u, 64 rows.
template <class Cfg>
__device__ __forceinline__ void half_rows(const GemmParams& p, bool up, char* out,
                                          const float (&d)[Cfg::kTileN / 2]) {
  const PairOrder order = pair_order(p);
  store_rows<Cfg>(out, [&](int c, int i) { return half_pair<Cfg>(order, up, d, c, i); });
}

// h = gate(g, u) for 64 rows.
template <class Cfg>
__device__ __forceinline__ void gated_rows(const PairOrder& order, const Gate& gate, char* out,
                                           const float (&d)[Cfg::kTileN / 2]) {
  store_rows<Cfg>(out, [&](int c, int i) { return gated_pair<Cfg>(order, gate, d, c, i); });
}

// The same by the launch's gate and order. Plain silu in turns of one chunk, which nearly every
// launch is, has bodies without choices: 7 instructions an element where there were 11. NOTE: a
// short launch waits for its instructions, so plain gelu_tanh comes before the others.
template <class Cfg>
__device__ __forceinline__ void gate_rows(const GemmParams& p, char* out,
                                          const float (&d)[Cfg::kTileN / 2]) {
  const PairOrder order = pair_order(p);
  const bool plain = math::is_plain(p.gate);
  if (plain && order.turn == 1 && p.gate.activation == Activation::kSilu) {
    const Gate silu = tile::plain_gate(Activation::kSilu);
    if (order.up_first) return gated_rows<Cfg>({1, true}, silu, out, d);
    return gated_rows<Cfg>({1, false}, silu, out, d);
  }
  if (plain && p.gate.activation == Activation::kGeluTanh) {
    return gated_rows<Cfg>(order, tile::plain_gate(Activation::kGeluTanh), out, d);
  }
  tile::with_gate(p.gate, plain, [&](const Gate& gate) { gated_rows<Cfg>(order, gate, out, d); });
}

// From dh in d, and a piece of g and behind it of u in shared memory: dg and du in their places, h
// in d, whose `box`-th 64 columns they are. A warp reads and writes its own 16 rows alone, 8
// columns of both at a time. NOTE: ptxas has few registers beside 192 accumulators. Sixteen columns
// at a time, or h already rounded in half of d, spill accumulators in the product's loop.
template <class Cfg>
__device__ __forceinline__ void grad_rows(const Gate& gate, char* g_u, int box,
                                          float (&d)[Cfg::kTileN / 2]) {
  using Element = typename Cfg::Element;
  constexpr int kChunks = kColumnBox / 8;
  const int lane = threadIdx.x % 32;
  const int row = threadIdx.x % 128 / 32 * 16 + lane % 16;
  char* lines = g_u + lane / 16 * Cfg::kPieceBytes;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    char* at = lines + out_offset<Cfg>(row, c);
    std::uint32_t words[4];  // g of rows i = 0, 1, then u
    ptx::ldmatrix_x4(words, ptx::shared_address(at));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float* sums = d + 4 * (kChunks * box + c) + 2 * i;
      const Pair g = unpack<Element>(words[i]);
      const Pair u = unpack<Element>(words[2 + i]);
      const auto lo = math::gate_mul_grad(gate, g.lo, u.lo, sums[0]);
      const auto hi = math::gate_mul_grad(gate, g.hi, u.hi, sums[1]);
      words[i] = pack<Element>({lo.dg, hi.dg});
      words[2 + i] = pack<Element>({lo.du, hi.du});
      sums[0] = lo.h;
      sums[1] = hi.h;
    }
    ptx::stmatrix_x4(at, words[0], words[1], words[2], words[3]);
  }
}

// The h that grad_rows() left in d: a piece.
template <class Cfg>
__device__ __forceinline__ void grad_h_rows(char* out, int box, const float (&d)[Cfg::kTileN / 2]) {
  using Element = typename Cfg::Element;
  constexpr int kChunks = kColumnBox / 8;
  const int lane = threadIdx.x % 32;
  const int row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
  for (int c = 0; c < kChunks; c += 2) {
    const float* h = d + 4 * (kChunks * box + c);
    ptx::stmatrix_x4(out + out_offset<Cfg>(row, c + lane / 16), pack<Element>({h[0], h[1]}),
                     pack<Element>({h[2], h[3]}), pack<Element>({h[4], h[5]}),
                     pack<Element>({h[6], h[7]}));
  }
}

// 64 rows of a weight's gradient to memory, pairs of columns: four lanes fill a sector of fp32.
// What is added to is read eight pairs at a time, since a store may not pass a later load.
template <class Cfg>
__device__ __forceinline__ void add_grad_rows(const GemmParams& p, Tile tile, int m0,
                                              const float (&d)[Cfg::kTileN / 2]) {
  using Element = typename Cfg::Element;
  constexpr int kBatch = kColumnBox / 8;
  static_assert(Cfg::kOutCols % kColumnBox == 0);
  const GradRows& out = p.grad;
  const int lane = threadIdx.x % 32;
  const int col0 = first_col<Cfg>(tile) + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = m0 + threadIdx.x % 128 / 32 * 16 + 8 * i + lane / 4;
    if (row >= p.m) continue;
    char* line = out.base + (out.block_rows == 0 ? row * out.row_stride_bytes
                                                 : row / out.block_rows * out.block_stride_bytes +
                                                       row % out.block_rows * out.row_stride_bytes);
    auto* wide = reinterpret_cast<float2*>(line + col0 * 4LL);  // steps of 8 columns: 4 pairs
    auto* tail = reinterpret_cast<std::uint32_t*>(line + col0 * 2LL);  // likewise
#pragma unroll
    for (int first = 0; first < Cfg::kOutCols / 8; first += kBatch) {
      if (tile.tail && first > 0) break;
      Pair there[kBatch] = {};
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        if (out.accumulate == 0 || col0 + 8 * (first + c) >= p.n) continue;
        if (out.fp32 != 0) {
          const float2 v = wide[4 * (first + c)];
          there[c] = {v.x, v.y};
        } else {
          there[c] = unpack<Element>(tail[4 * (first + c)]);
        }
      }
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        if (col0 + 8 * (first + c) >= p.n) continue;
        const int at = 4 * (first + c) + 2 * i;
        const Pair v{d[at] + there[c].lo, d[at + 1] + there[c].hi};
        if (out.fp32 != 0) {
          wide[4 * (first + c)] = make_float2(v.lo, v.hi);
        } else {
          tail[4 * (first + c)] = pack<Element>(v);
        }
      }
    }
  }
}

// 64 rows of y = d + bias + residual, or of dx, which are sums alone.
template <class Cfg>
__device__ __forceinline__ void plain_rows(const GemmParams& p, Tile tile, int m0, char* out,
                                           const float (&d)[Cfg::kTileN / 2]) {
  const auto sums = [&](int c, int i) { return Pair{d[4 * c + 2 * i], d[4 * c + 2 * i + 1]}; };
  using Part = typename Cfg::EpiloguePart;
  if constexpr (Cfg::kKind == GemmKind::kDown) {
    constexpr int kBatch = Cfg::kTileN == 192 ? 6 : 8;  // what registers hold
    static_assert(kBatch % 2 == 0 && Cfg::kOutCols / 8 % kBatch == 0);
    const int col = tile.n * Cfg::kOutCols + threadIdx.x % 4 * 2;
    const int row = m0 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int first = 0; first < Cfg::kOutCols / 8; first += kBatch) {
      const auto addends = addends_of<typename Cfg::Element, kBatch>(p, row, col + 8 * first);
#pragma unroll
      for (int chunk = first; chunk < first + kBatch; chunk += 2) {
        store_chunks<Cfg>(out, chunk, [&](int c, int i) {
          return Part{}(addends.add(sums(c, i), c - first, i));
        });
      }
    }
  } else {
    store_rows<Cfg>(out, [&](int c, int i) { return Part{}(sums(c, i)); });
  }
}

}  // namespace sluice::cuda::sm90::gemm
