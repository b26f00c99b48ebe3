// SPDX-License-Identifier: Apache-2.0
// The decode kernel for more than 16 tokens, and for fewer where that is faster: weights come by
// tensor maps as boxes of 16 rows x 64 columns and are the A operand of wgmma (64 rows), tokens the
// B operand. Two warpgroups take the blocks of a CTA in turns, one multiplies while the
// other stores, or have half of each. Two or four CTAs, a cluster, may divide K. See
// docs/kernels/mlp_decode.md.
//
// stage    weights: depth / 64 spans of { rows x 64 }, 128-byte swizzle; sixteen rows are 8 gate
//          rows and the up rows of the same numbers, which one thread then holds, or rows of w_down
//          | activations: depth / 64 spans of { tokens x 64 }, 128-byte swizzle; m tokens filled
// exchange behind the last stage, over the end of the ring: [rank][slice][thread] four sums
// named barriers 2 + w, 256: "the ring is yours", from the other warpgroup to w. Without it w might
//          meet a stage's mbarrier a whole turn of the ring too early and take it for full.
#pragma once

#include <cstdint>

#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/decode_output.cuh"
#include "cuda/tile/activation.cuh"
#include "cuda/tile/ring.cuh"

namespace sluice::cuda::sm90 {

inline constexpr int kRingBarrier = 2;  // named, of each warpgroup
inline constexpr int kBoxBytes = kMmaRows * kSpanBytes;

// The first box of a block that this warpgroup multiplies.
template <class Cfg>
__device__ __forceinline__ int first_unit() {
  return Cfg::kTurns ? 0 : static_cast<int>(threadIdx.x) / 128 * (kWgmmaRows / kMmaRows);
}

// One box of weights: unit `unit`, columns from k.
template <bool kGated>
__device__ __forceinline__ void copy_box(const DecodeParams& p, char* to, int k, int unit,
                                         std::uint64_t& full, std::uint64_t policy) {
  if constexpr (!kGated) {
    const std::int32_t at[5] = {k, unit * kMmaRows};
    ptx::tensor_copy<2>(to, p.w_down_map, at, full, policy);
  } else if (p.pair.rank == 4) {
    const std::int32_t at[5] = {k, 0, 0, unit};
    ptx::tensor_copy<4>(to, p.w_pair_map, at, full, policy);
  } else if (p.pair.groups_a_block == 0) {
    const std::int32_t at[5] = {k, 0, 0, 0, unit};
    ptx::tensor_copy<5>(to, p.w_pair_map, at, full, policy);
  } else {
    const std::int32_t at[5] = {k, 0, 0, unit % p.pair.groups_a_block,
                                unit / p.pair.groups_a_block};
    ptx::tensor_copy<5>(to, p.w_pair_map, at, full, policy);
  }
}

// Streams the weights of one phase.
template <class Cfg, bool kGated>
__device__ __forceinline__ void stream_boxes(const DecodeParams& p, const DecodeSmem<Cfg>& smem,
                                             const DecodePhase& phase,
                                             tile::RingCursor<Cfg::kStages>& ring,
                                             std::uint64_t policy) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int box = weight_slot();
  const int unit = box / Cfg::kSpans;
  const int span = box % Cfg::kSpans;
  const int offset = span * Cfg::kRows * kSpanBytes + unit * kBoxBytes;
  for (int b = 0; b < phase.blocks; ++b) {
    const UnitRange block = phase.block(b);
    for (int c = phase.chunks.begin; c < phase.chunks.end; ++c) {
      // A stage is whole: outside the matrix boxes read as 0.
      const bool mine = unit < block.size() && span < Cfg::kSpans;
      const int boxes = __popc(__ballot_sync(0xFFFFFFFFU, mine));
      std::uint64_t& full = smem.full(ring.stage);
      ptx::mbarrier_wait(smem.empty(ring.stage), ring.parity);
      if (lane == 0)
        ptx::mbarrier_arrive_expect_bytes(full, static_cast<std::uint32_t>(boxes * kBoxBytes));
      __syncwarp();
      if (mine) {
        copy_box<kGated>(p, smem.weights(ring.stage) + offset,
                         c * Cfg::kDepth + span * kSpanColumns, block.begin + unit, full, policy);
      }
      ring.advance();
    }
  }
}

template <class Cfg>
using Sums = float[Cfg::kTokens / 2];

// A stage's tiles for this warpgroup as wgmma takes them: its 64 rows, and all tokens.
template <class Cfg>
struct StageTiles {
  std::uint64_t rows;
  std::uint64_t tokens;

  static __device__ __forceinline__ StageTiles of(const DecodeSmem<Cfg>& smem, int stage) {
    stage = ptx::warp_uniform(stage);
    const char* at = smem.weights(stage) + ptx::warp_uniform(first_unit<Cfg>()) * kBoxBytes;
    return {ptx::descriptor_sw128(ptx::shared_address(at)),
            ptx::descriptor_sw128(ptx::shared_address(smem.activations(stage)))};
  }
};

// d += the products of one stage.
template <class Cfg>
__device__ __forceinline__ void multiply_boxes(const StageTiles<Cfg>& tiles, Sums<Cfg>& d) {
  using Mma = ptx::Wgmma<Cfg::kTokens, typename Cfg::Element>;
  // In a descriptor, addresses count 16 bytes.
  constexpr int kWeightSpan = Cfg::kRows * kSpanBytes / 16;
  constexpr int kTokenSpan = Cfg::kTokens * kSpanBytes / 16;
  ptx::wgmma_fence();
  // NOTE: no branch between wgmma, for ptxas waits at each (C7519, C7520: 70 clocks for one of 32).
#pragma unroll
  for (int span = 0; span < Cfg::kSpans; ++span) {
#pragma unroll
    for (int step = 0; step < kSpanColumns / 16; ++step) {
      Mma::mma(d, ptx::further(tiles.rows, span * kWeightSpan + step * 2),
               ptx::further(tiles.tokens, span * kTokenSpan + step * 2), false);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
}

// The CTAs of a cluster divide K and, of the sums, the slices of eight tokens: slice j is finished
// by CTA j % kSplit, which gets here the parts of all ranks and adds them in their order. One
// block, so the ring is free behind its last stage: sums change hands at its end. They are counted
// where they arrive, so nobody waits for more, and no CTA leaves while parts are on their way to
// it.
template <class Cfg, int kSplit>
__device__ __forceinline__ void exchange_sums(const DecodeParams& p, const DecodeSmem<Cfg>& smem,
                                              int rank, Sums<Cfg>& d) {
  constexpr int kSlices = Cfg::kTokens / kSliceTokens;
  constexpr int kEach = kSlices / kSplit;
  constexpr int kThreads = Cfg::kTurns ? kConsumers / 2 : kConsumers;
  // [rank][slice of this CTA][thread]
  float4* const box =
      reinterpret_cast<float4*>(smem.scratch()) + static_cast<int>(threadIdx.x) % kThreads;
  if (threadIdx.x == 0) {
    const int slices = (p.m + kSliceTokens - 1) / kSliceTokens;
    const int own = (slices - rank + kSplit - 1) / kSplit;
    ptx::mbarrier_arrive_expect_bytes(
        smem.exchanged(),
        static_cast<std::uint32_t>(own * (kSplit - 1) * kThreads *
                                   static_cast<int>(sizeof(float4))));
  }
  __syncwarp();
  ptx::cluster_wait();  // the others have begun, and so have their mbarriers
#pragma unroll
  for (int j = 0; j < kSlices; ++j) {
    if (j * kSliceTokens >= p.m) break;
    const float4 part = {d[j * 4], d[j * 4 + 1], d[j * 4 + 2], d[j * 4 + 3]};
    float4* const at = box + (rank * kEach + j / kSplit) * kThreads;
    if (j % kSplit == rank) {
      *at = part;  // which this thread alone reads
    } else {
      ptx::store_to_peer(ptx::peer_address(at, j % kSplit), part,
                         ptx::peer_address(&smem.exchanged(), j % kSplit));
    }
  }
  // One block: the first phase.
  ptx::mbarrier_wait<ptx::Completer::kCluster>(smem.exchanged(), 0);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    float4 sum = box[i * kThreads];
#pragma unroll
    for (int from = 1; from < kSplit; ++from) {
      const float4 part = box[(from * kEach + i) * kThreads];
      sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
    }
    d[i * 4] = sum.x;
    d[i * 4 + 1] = sum.y;
    d[i * 4 + 2] = sum.z;
    d[i * 4 + 3] = sum.w;
  }
}

// What a thread's sums of a block belong to: of slice i of eight tokens d[4 i] and d[4 i + 1] to
// tokens first + i step and the one behind it, in one row; d[4 i + 2], d[4 i + 3] to the same
// tokens eight rows further.
struct OwnTokens {
  int first;
  int step;
  __device__ OwnTokens(int split, int rank)
      : first(rank * kSliceTokens + static_cast<int>(threadIdx.x) % 4 * 2),
        step(split * kSliceTokens) {}
};

// Walks a column of a matrix with OwnTokens. NOTE: addresses advance and are not multiplied anew: a
// scheduler has two warps here at most, and their instructions at a launch's end were 1.5 us of
// one.
template <class Element>
struct TokenColumn {
  char* at;
  long long row_bytes;
  long long step_bytes;
  __device__ TokenColumn(const RowMajor& matrix, const OwnTokens& tokens, int column)
      : at(reinterpret_cast<char*>(element_at<Element>(matrix, tokens.first, column))),
        row_bytes(matrix.row_bytes),
        step_bytes(matrix.row_bytes * tokens.step) {}
  __device__ __forceinline__ Element* token(int behind) const {
    return reinterpret_cast<Element*>(behind == 0 ? at : at + row_bytes);
  }
  __device__ __forceinline__ void advance() { at += step_bytes; }
};

// Slices that a thread finishes together, half of all, as many as a CTA of a pair has. No branch
// stands between them: a slice alone is a chain of exponential, reciprocal and store, or of load
// and store, and few warps share a scheduler.
template <class Cfg>
inline constexpr int kTogether = Cfg::kTokens / kSliceTokens / 2;

// h of one block, from a warpgroup's sums.
template <class Cfg>
__device__ __forceinline__ void finish_pairs(const DecodeParams& p, UnitRange block,
                                             const OwnTokens& tokens, const Sums<Cfg>& d) {
  using Element = typename Cfg::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int unit = block.begin + first_unit<Cfg>() + static_cast<int>(threadIdx.x) % 128 / 32;
  if (unit >= block.end) return;
  const int pair = unit * kUnitPairs<Cfg> + lane / 4;
  const float b_gate = p.b_gate != nullptr ? vector_at<Element>(p.b_gate, pair) : 0;
  const float b_up = p.b_gate != nullptr ? vector_at<Element>(p.b_up, pair) : 0;
  const bool up_first = p.up_first != 0;
  tile::with_epilogue_gate(p.gate, [&](const Gate& gate) {
    TokenColumn<Element> h(p.h_out, tokens, pair);
    int token = tokens.first;
#pragma unroll
    for (int i = 0; i < Cfg::kTokens / kSliceTokens; i += kTogether<Cfg>) {
      if (token >= p.m) break;
      Element values[kTogether<Cfg>][2];
#pragma unroll
      for (int j = 0; j < kTogether<Cfg>; ++j) {
#pragma unroll
        for (int behind = 0; behind < 2; ++behind) {
          const float first = d[(i + j) * 4 + behind];
          const float second = d[(i + j) * 4 + behind + 2];
          const float g = (up_first ? second : first) + b_gate;
          const float u = (up_first ? first : second) + b_up;
          values[j][behind] = Element(math::gate_mul(gate, g, u));
        }
      }
#pragma unroll
      for (int j = 0; j < kTogether<Cfg>; ++j) {
        if (token < p.m) *h.token(0) = values[j][0];
        if (token + 1 < p.m) *h.token(1) = values[j][1];
        h.advance();
        token += tokens.step;
      }
    }
  });
}

// y of one block.
template <class Cfg>
__device__ __forceinline__ void finish_down(const DecodeParams& p, UnitRange block,
                                            const OwnTokens& tokens, const Sums<Cfg>& d) {
  using Element = typename Cfg::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int unit = block.begin + first_unit<Cfg>() + static_cast<int>(threadIdx.x) % 128 / 32;
  if (unit >= block.end) return;
  const bool adds = p.residual.base != nullptr;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = unit * kUnitRows<Cfg> + half * 8 + lane / 4;
    if (row >= p.d) break;
    const float bias = p.b_down != nullptr ? vector_at<Element>(p.b_down, row) : 0;
    TokenColumn<Element> y(p.y, tokens, row);
    TokenColumn<Element> residual(p.residual, tokens, row);
    int token = tokens.first;
#pragma unroll
    for (int i = 0; i < Cfg::kTokens / kSliceTokens; i += kTogether<Cfg>) {
      if (token >= p.m) break;
      Element added[kTogether<Cfg>][2] = {};
      if (adds) {
        int at = token;
#pragma unroll
        for (int j = 0; j < kTogether<Cfg>; ++j) {
          // From L2: with a norm another SM wrote it in this launch.
          if (at < p.m) added[j][0] = __ldcg(residual.token(0));
          if (at + 1 < p.m) added[j][1] = __ldcg(residual.token(1));
          residual.advance();
          at += tokens.step;
        }
      }
#pragma unroll
      for (int j = 0; j < kTogether<Cfg>; ++j) {
#pragma unroll
        for (int behind = 0; behind < 2; ++behind) {
          float sum = d[(i + j) * 4 + half * 2 + behind] + bias;
          if (adds) sum += static_cast<float>(added[j][behind]);
          if (token + behind < p.m) *y.token(behind) = Element(sum);
        }
        y.advance();
        token += tokens.step;
      }
    }
  }
}

// Where a warpgroup stands: steps of the ring and blocks so far, of both warpgroups.
struct Turns {
  int step = 0;
  int block = 0;
};

// One phase of a consumer warpgroup: every second block, or its half of each.
template <class Cfg, bool kGated>
__device__ __forceinline__ void consume_boxes(const DecodeParams& p, const DecodeSmem<Cfg>& smem,
                                              const DecodePhase& phase, Turns& turns) {
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  const int split = split_of<Cfg>(p);
  const int rank = Group(split).rank;
  for (int b = 0; b < phase.blocks; ++b) {
    tile::RingCursor<Cfg::kStages> ring;
    ring.skip_to(turns.step);
    turns.step += phase.chunks.size();
    if (Cfg::kTurns) {
      if (turns.block++ % 2 != warpgroup) continue;
      ptx::named_barrier_sync(kRingBarrier + warpgroup, kConsumers);
    }
    Sums<Cfg> d = {};
    for (int c = phase.chunks.begin; c < phase.chunks.end; ++c) {
      // Before the wait: behind one for h stages stand full, and what lies between their products
      // is time.
      const auto tiles = StageTiles<Cfg>::of(smem, ring.stage);
      ptx::mbarrier_wait(smem.full(ring.stage), ring.parity);
      multiply_boxes<Cfg>(tiles, d);
      release<Cfg>(smem, ring.stage);
      ring.advance();
    }
    if (Cfg::kTurns) ptx::named_barrier_arrive(kRingBarrier + (warpgroup ^ 1), kConsumers);
    ptx::wgmma_fence_accumulators(d);
    if (split == 2) exchange_sums<Cfg, 2>(p, smem, rank, d);
    if constexpr (Cfg::kTokens >= 4 * kSliceTokens) {
      if (split == 4) exchange_sums<Cfg, 4>(p, smem, rank, d);
    }
    const OwnTokens tokens(split, rank);
    if constexpr (kGated) {
      finish_pairs<Cfg>(p, phase.block(b), tokens, d);
    } else {
      finish_down<Cfg>(p, phase.block(b), tokens, d);
    }
  }
}

}  // namespace sluice::cuda::sm90
