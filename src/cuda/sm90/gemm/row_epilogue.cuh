// SPDX-License-Identifier: Apache-2.0
// From accumulators straight to rows of the output, as few tokens leave a tile: what
// stream_k/kernel.cuh and split_k/kernel.cuh share.
#pragma once

#include "cuda/sm90/gemm/epilogue.cuh"

namespace sluice::cuda::sm90::gemm {

// The epilogue goes by turns of 32 weight rows, or of kPassSums * 2 tokens, all by one body: a CTA
// comes to it once or twice a launch, and instructions that other kernels have pushed out of the
// caches cost more than moving the sums to the front (docs/kernels/gate_up.md).
template <class Cfg>
inline constexpr int kAlternates = Cfg::kSums / Cfg::kPassSums;

// A turn of weight rows as a tile of its own.
template <class Cfg>
struct Turn : Cfg {
  static constexpr int kTileN = 2 * Cfg::kPassSums;
  static constexpr int kOutCols = Cfg::kOutCols / kAlternates<Cfg>;
};

// Writes a warp's 16 rows of the output from row `row0`; values as for store_rows().
template <class Cfg, class Values>
__device__ __forceinline__ void write_rows(const GemmParams& p, const tile::RowMajor& out,
                                           Tile tile, int row0, const Values& values) {
  const int lane = threadIdx.x % 32;
  const int col0 = tile.n * Cfg::kOutCols + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = row0 + 8 * i + lane / 4;
    if (row >= p.m) continue;
    auto* line = reinterpret_cast<std::uint32_t*>(out.base + row * out.row_bytes + col0 * 2LL);
#pragma unroll
    for (int c = 0; c < Cfg::kOutCols / 8; ++c) {
      if (col0 + 8 * c < p.n) line[4 * c] = pack<typename Cfg::Element>(values(c, i));
    }
  }
}

// From sums to outputs: a warp's 16 rows from row `row0`, the columns of one turn.
template <class Cfg, class Params>
__device__ __forceinline__ void finish_pass(const Params& p, Tile tile, int row0,
                                            float (&d)[Cfg::kTileN / 2]) {
  const GemmParams& gemm = p.gemm;
  if constexpr (Cfg::kKind == GemmKind::kGateUp) {
    add_biases<Cfg>(gemm, tile, d);
    const PairOrder order = pair_order(gemm);
    tile::with_epilogue_gate(gemm.gate, [&](const Gate& gate) {
      write_rows<Cfg>(gemm, p.out, tile, row0,
                      [&](int c, int i) { return gated_pair<Cfg>(order, gate, d, c, i); });
    });
    if (gemm.save == 0) return;
    write_rows<Cfg>(gemm, p.g, tile, row0,
                    [&](int c, int i) { return half_pair<Cfg>(order, false, d, c, i); });
    write_rows<Cfg>(gemm, p.u, tile, row0,
                    [&](int c, int i) { return half_pair<Cfg>(order, true, d, c, i); });
  } else {
    const int lane = threadIdx.x % 32;
    const auto addends = addends_of<typename Cfg::Element, Cfg::kOutCols / 8>(
        gemm, row0 + lane / 4, tile.n * Cfg::kOutCols + lane % 4 * 2);
    write_rows<Cfg>(gemm, p.out, tile, row0, [&](int c, int i) {
      const int at = 4 * c + 2 * i;
      return typename Cfg::EpiloguePart{}(addends.add({d[at], d[at + 1]}, c, i));
    });
  }
}

}  // namespace sluice::cuda::sm90::gemm
