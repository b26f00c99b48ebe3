// SPDX-License-Identifier: Apache-2.0
// The Hopper decode kernel: gate_up, down, or both in one launch, for up to 64 tokens. Weights
// stream through one ring of shared-memory stages that does not stop at the grid barrier.
// Budget, drawings and log of what was tried: docs/kernels/mlp_decode.md.
//
// roles (416 threads, a CTA for each SM)
//   warps 0-7    consumers: mma, reduction, gate, stores
//   warps 8-11   weight producers: each copies a quarter of a stage's rows, one bulk copy a row
//   warp 12      activation producer: a bulk copy a token, or of many tokens a box a lane; also
//                meets the other CTAs at the grid barriers
// shared memory
//   stages x { activations: tokens x depth, or depth / 64 boxes of tokens x 64 with the 128-byte
//              swizzle; m tokens filled | weights: rows x depth }
//              Rows of up to 16 tokens are not padded: copies to addresses that are no multiple of
//              128 bytes cost 5 to 25 % of the stream (log of the kernel's page).
//   | partial sums: 2 x { depth warps x rows x 10 floats } | mbarriers
// mbarriers
//   full[s]    5 arrivals (each producer warp's expect_tx) and the stage's bytes; consumers wait
//   empty[s]   8 arrivals (each consumer warp, when it has read the stage); every producer waits
//   ready[i]   8 arrivals (each consumer warp, when its rows of n (0) or h (1) are written); the
//              activation producer waits, then meets the other CTAs at the grid barrier
// named barrier 1: the 256 consumers, between writing and reading partial sums
// tickets[g] of the header: where a group of CTAs shares rows of w_down, each takes one when its
//              part of the sums is in the workspace; who takes the last adds the parts up
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/sm90/decode_multiply.cuh"
#include "cuda/sm90/decode_norm.cuh"
#include "cuda/sm90/decode_schedule.hpp"
#include "cuda/tile/grid_barrier.cuh"
#include "cuda/tile/ring.cuh"
#include "math/gate.hpp"

namespace sluice::cuda::sm90 {

inline constexpr int kWeightWarps = 4;  // a warp issues 26 copies a microsecond, 64 rows want 70
inline constexpr int kDecodeThreads = kConsumers + 32 * (kWeightWarps + 1);
// Floats of a slot's partial sums: 8 and a pad that keeps float2 writes and column reads apart.
inline constexpr int kPartialStride = 10;

/// The compile-time form of a DecodeTiling.
template <class ElementType, int kTokenCount, int kRowCount, int kDepthCount, int kStageCount>
struct DecodeConfig {
  using Element = ElementType;
  static constexpr int kTokens = kTokenCount;
  static constexpr int kRows = kRowCount;
  static constexpr int kDepth = kDepthCount;
  static constexpr int kStages = kStageCount;
  // Consumer warps: groups of kTiles row tiles, and each group's shares of the columns. Two tiles a
  // warp where there are many: activations are read once for both.
  static constexpr int kTiles = kRows >= 4 * kMmaRows ? 2 : 1;
  static constexpr int kRowWarps = kRows / (kTiles * kMmaRows);
  static constexpr int kDepthWarps = kConsumerWarps / kRowWarps;
  static constexpr int kSlices = kTokens / kSliceTokens;
  static constexpr bool kBoxes = kTokens > kDecodeRowTokens;
  static constexpr bool kLdmatrix = kTokens > kDecodeSpanTokens;
  static constexpr int kTokenBytes = kDepth * 2;
  static constexpr int kWeightRowBytes = kDepth * 2 + (kLdmatrix ? 16 : 0);
  static constexpr int kActivationBytes = kTokens * kTokenBytes;
  static constexpr int kStageBytes = (kActivationBytes + kRows * kWeightRowBytes + 1023) & ~1023;
  static constexpr int kPartialFloats = kDepthWarps * kRows * kPartialStride;
  static constexpr int kBarriers = 2 * kStages + 2;
  static constexpr int kSmemBytes = kStages * kStageBytes + 2 * kPartialFloats * 4 + kBarriers * 8;
  static_assert(kTokens % kSliceTokens == 0 && kDepth % (kSpanColumns * kDepthWarps) == 0);
  static_assert(kRows == kTiles * kRowWarps * kMmaRows && kRows <= 32 * kWeightWarps);
  static_assert(kDepthWarps * kRowWarps == kConsumerWarps);
  static_assert(kSmemBytes <= 227 * 1024);
  static_assert(kDecodeMaxGroups <= WorkspaceHeader::kTickets);
};

template <class Cfg>
struct DecodeSmem {
  char* base;  // multiple of 1024, as is a stage where boxes are swizzled
  __device__ char* activations(int stage) const { return base + stage * Cfg::kStageBytes; }
  __device__ char* weights(int stage) const { return activations(stage) + Cfg::kActivationBytes; }
  __device__ float* partial(int buffer) const {
    return reinterpret_cast<float*>(base + Cfg::kStages * Cfg::kStageBytes) +
           buffer * Cfg::kPartialFloats;
  }
  __device__ std::uint64_t& full(int stage) const {
    return reinterpret_cast<std::uint64_t*>(partial(2))[stage];
  }
  __device__ std::uint64_t& empty(int stage) const { return full(Cfg::kStages + stage); }
  __device__ std::uint64_t& ready(int i) const { return full(2 * Cfg::kStages + i); }
};

// This CTA's place among those that share rows of w_down, and theirs among all.
struct Group {
  int index;
  int count;
  int rank;
  __device__ explicit Group(int split)
      : index(static_cast<int>(blockIdx.x) / split),
        count(static_cast<int>(gridDim.x) / split),
        rank(static_cast<int>(blockIdx.x) % split) {}
};

template <class Cfg>
__device__ __forceinline__ DecodePhase gate_up_phase(const DecodeParams& p) {
  const Group group(p.split);
  const UnitRange pairs = p.y.base == nullptr ? even_share(p.h, group.index, group.count)
                                              : balanced_pairs(p.d, p.h, group.index, group.count);
  return make_phase(even_share(pairs, group.rank, p.split), Cfg::kRows / 2, p.d, Cfg::kDepth);
}

template <class Cfg>
__device__ __forceinline__ DecodePhase down_phase(const DecodeParams& p) {
  const Group group(p.split);
  const UnitRange rows = even_share(p.d, group.index, group.count);
  return make_phase(rows, Cfg::kRows, p.h, Cfg::kDepth, group.rank, p.split);
}

__device__ __forceinline__ const char* row_of(const WeightRows& w, int row) {
  if (w.block_rows == 0) return w.base + row * w.row_bytes;
  return w.base + row / w.block_rows * w.block_bytes + row % w.block_rows * w.row_bytes;
}

// Streams the weights of one phase: lane l of weight warp w owns row slot 4 l + w.
template <class Cfg, bool kGated>
__device__ __forceinline__ void stream_weights(const DecodeParams& p, const DecodeSmem<Cfg>& smem,
                                               const DecodePhase& phase,
                                               tile::RingCursor<Cfg::kStages>& ring,
                                               std::uint64_t policy) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 - kConsumerWarps;
  const int slot = lane * kWeightWarps + warp;
  const SlotRow where = slot_row(slot, kGated);
  const WeightRows& w = !kGated ? p.w_down : where.up ? p.w_up : p.w_gate;
  for (int b = 0; b < phase.blocks; ++b) {
    const UnitRange block = phase.block(b);
    const bool mine = slot < Cfg::kRows && where.unit < block.size();
    const char* source = mine ? row_of(w, block.begin + where.unit) : nullptr;
    const int rows = __popc(__ballot_sync(0xFFFFFFFFU, mine));
    for (int c = phase.chunks.begin; c < phase.chunks.end; ++c) {
      const int bytes = phase.chunk_columns(c, Cfg::kDepth) * 2;
      std::uint64_t& full = smem.full(ring.stage);
      ptx::mbarrier_wait(smem.empty(ring.stage), ring.parity);
      if (lane == 0)
        ptx::mbarrier_arrive_expect_bytes(full, static_cast<std::uint32_t>(rows * bytes));
      __syncwarp();
      if (mine) {
        ptx::bulk_copy(smem.weights(ring.stage) + slot * Cfg::kWeightRowBytes,
                       source + std::int64_t{c} * (Cfg::kDepth * 2),
                       static_cast<std::uint32_t>(bytes), full, policy);
      }
      ring.advance();
    }
  }
}

template <class Cfg>
__device__ __forceinline__ void produce_weights(const DecodeParams& p,
                                                const DecodeSmem<Cfg>& smem) {
  const std::uint64_t policy = ptx::evict_first_policy();
  tile::RingCursor<Cfg::kStages> ring{0, 1};
  if (p.weights_static == 0) ptx::wait_for_prerequisites();
  if (p.h_out.base != nullptr) {
    stream_weights<Cfg, true>(p, smem, gate_up_phase<Cfg>(p), ring, policy);
  }
  if (p.y.base != nullptr) {
    stream_weights<Cfg, false>(p, smem, down_phase<Cfg>(p), ring, policy);
  }
}

// Streams the activations of one phase: lane l brings token l's columns of a chunk, or the l-th box
// of all m tokens. What the slots of other tokens hold reaches no output, for an mma keeps columns
// apart.
template <class Cfg>
__device__ __forceinline__ void stream_activations(const RowMajor& in, const CUtensorMap& map,
                                                   int m, const DecodeSmem<Cfg>& smem,
                                                   const DecodePhase& phase,
                                                   tile::RingCursor<Cfg::kStages>& ring) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int b = 0; b < phase.blocks; ++b) {
    for (int c = phase.chunks.begin; c < phase.chunks.end; ++c) {
      const int columns = phase.chunk_columns(c, Cfg::kDepth);
      // A box is whole: outside the matrix it reads as 0.
      const int copies = Cfg::kBoxes ? (columns + kSpanColumns - 1) / kSpanColumns : m;
      const int bytes = Cfg::kBoxes ? m * kSpanBytes : columns * 2;
      std::uint64_t& full = smem.full(ring.stage);
      ptx::mbarrier_wait(smem.empty(ring.stage), ring.parity);
      if (lane == 0)
        ptx::mbarrier_arrive_expect_bytes(full, static_cast<std::uint32_t>(copies * bytes));
      __syncwarp();
      if (lane < copies) {
        char* to = smem.activations(ring.stage);
        if constexpr (Cfg::kBoxes) {
          const std::int32_t at[5] = {c * Cfg::kDepth + lane * kSpanColumns, 0};
          ptx::tensor_copy_2d(to + lane * Cfg::kTokens * kSpanBytes, map, at, full);
        } else {
          const char* from = static_cast<const char*>(in.base) + lane * in.row_bytes;
          ptx::bulk_copy(to + lane * Cfg::kTokenBytes, from + std::int64_t{c} * Cfg::kTokenBytes,
                         static_cast<std::uint32_t>(bytes), full);
        }
      }
      ring.advance();
    }
  }
}

// All CTAs have written what `ready` announces in each of them, and this warp's copies see it.
template <class Cfg>
__device__ __forceinline__ void meet(const DecodeParams& p, std::uint64_t& ready, int index) {
  if (threadIdx.x % 32 == 0) {
    ptx::mbarrier_wait(ready, 0);
    BarrierWord& barrier = p.header->barriers[index];
    const std::uint32_t ticket = tile::grid_arrive(barrier);
    if (!tile::grid_wait(*p.header, barrier, ticket)) __trap();
  }
  __syncwarp();
  ptx::fence_global_for_async();
}

template <class Cfg>
__device__ __forceinline__ void produce_activations(const DecodeParams& p,
                                                    const DecodeSmem<Cfg>& smem) {
  tile::RingCursor<Cfg::kStages> ring{0, 1};
  int barriers = 0;
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  if (p.h_out.base != nullptr) {
    if (p.norm.n.base != nullptr) meet<Cfg>(p, smem.ready(0), barriers++);
    stream_activations<Cfg>(p.x, p.x_map, p.m, smem, gate_up_phase<Cfg>(p), ring);
    if (p.y.base != nullptr) meet<Cfg>(p, smem.ready(1), barriers++);
  }
  if (p.y.base != nullptr) {
    stream_activations<Cfg>(p.h_in, p.h_map, p.m, smem, down_phase<Cfg>(p), ring);
  }
}

// This consumer warp's own rows are written: tells the activation producer.
__device__ __forceinline__ void announce(std::uint64_t& ready) {
  ptx::fence_global_for_async();
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ready);
}

// This warp's sums of one slice, for the others to read: [depth warp][slot][token].
template <class Cfg>
__device__ __forceinline__ void write_partial(float* partial, int slice, Accumulators<Cfg>& d) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first = warp % Cfg::kDepthWarps * Cfg::kRows +
                    warp / Cfg::kDepthWarps * Cfg::kTiles * kMmaRows + lane / 4;
#pragma unroll
  for (int t = 0; t < Cfg::kTiles; ++t) {
    float* upper = partial + (first + t * kMmaRows) * kPartialStride + lane % 4 * 2;
    float* lower = upper + kMmaRows / 2 * kPartialStride;
    *reinterpret_cast<float2*>(upper) = make_float2(d[t][slice][0], d[t][slice][1]);
    *reinterpret_cast<float2*>(lower) = make_float2(d[t][slice][2], d[t][slice][3]);
  }
}

// The sum over the depth warps, in their order.
template <class Cfg>
__device__ __forceinline__ float total(const float* partial, int slot, int token) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < Cfg::kDepthWarps; ++w) {
    sum += partial[(w * Cfg::kRows + slot) * kPartialStride + token];
  }
  return sum;
}

template <class Element>
__device__ __forceinline__ float vector_at(const void* base, int i) {
  return static_cast<float>(static_cast<const Element*>(base)[i]);
}

template <class Element>
__device__ __forceinline__ void store_y(const DecodeParams& p, int token, int row, float sum) {
  if (p.b_down != nullptr) sum += vector_at<Element>(p.b_down, row);
  if (p.residual.base != nullptr) {
    // From L2: with a norm another SM wrote it in this launch.
    sum += static_cast<float>(__ldcg(element_at<Element>(p.residual, token, row)));
  }
  *element_at<Element>(p.y, token, row) = Element(sum);
}

// Tokens of a row lie side by side: y's order is for who adds the parts up.
__device__ __forceinline__ float* part_at(const DecodeParams& p, int part, int row, int token) {
  const std::int64_t index = std::int64_t{part} * p.d + row;
  return p.parts + index * padded_tokens(p.m) + token;
}

// h, y, or a part of y's sum, of one unit and token, from the CTA's sums.
template <class Cfg, bool kGated>
__device__ __forceinline__ void finish(const DecodeParams& p, const float* partial, int slot,
                                       int in_slice, int unit, int token) {
  using Element = typename Cfg::Element;
  if constexpr (kGated) {
    float g = total<Cfg>(partial, slot, in_slice);
    float u = total<Cfg>(partial, slot + kMmaRows / 2, in_slice);
    if (p.b_gate != nullptr) {
      g += vector_at<Element>(p.b_gate, unit);
      u += vector_at<Element>(p.b_up, unit);
    }
    *element_at<Element>(p.h_out, token, unit) = Element(math::gate_mul(p.gate, g, u));
  } else {
    const float sum = total<Cfg>(partial, slot, in_slice);
    if (p.split > 1) {
      *part_at(p, Group(p.split).rank, unit, token) = sum;
    } else {
      store_y<Element>(p, token, unit, sum);
    }
  }
}

// The last CTA of a group to arrive adds the group's parts up, in their order, whoever it is.
template <class Cfg>
__device__ __forceinline__ void add_parts(const DecodeParams& p, const DecodeSmem<Cfg>& smem,
                                          UnitRange rows) {
  int& arrived = *reinterpret_cast<int*>(smem.partial(0));
  __threadfence();
  ptx::named_barrier_sync(kConsumerBarrier, kConsumers);  // and all have read the partial sums
  if (threadIdx.x == 0) {
    arrived = static_cast<int>(
        atomicInc(&p.header->tickets[Group(p.split).index], static_cast<unsigned>(p.split - 1)));
  }
  ptx::named_barrier_sync(kConsumerBarrier, kConsumers);
  if (arrived != p.split - 1) return;
  __threadfence();
  // Loads of 4 tokens x 4 parts under way at once. Few tokens need no more, nor their registers.
  constexpr int kBatch = Cfg::kTokens >= 32 ? 4 : 1;
  const int quads = rows.size() * ((p.m + 3) / 4);
  for (int first = static_cast<int>(threadIdx.x); first < quads; first += kBatch * kConsumers) {
    float4 part[kBatch][kDecodeMaxSplit] = {};
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int quad = first + b * kConsumers;
      const int row = rows.begin + quad % rows.size();
#pragma unroll
      for (int rank = 0; rank < kDecodeMaxSplit; ++rank) {
        if (quad < quads && rank < p.split) {
          part[b][rank] = __ldcg(
              reinterpret_cast<const float4*>(part_at(p, rank, row, quad / rows.size() * 4)));
        }
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int quad = first + b * kConsumers;
      if (quad >= quads) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = quad / rows.size() * 4 + i;
        if (token >= p.m) break;
        float sum = 0;
#pragma unroll
        for (int rank = 0; rank < kDecodeMaxSplit; ++rank) sum += (&part[b][rank].x)[i];
        store_y<typename Cfg::Element>(p, token, rows.begin + quad % rows.size(), sum);
      }
    }
  }
}

// This warp has read the stage.
template <class Cfg>
__device__ __forceinline__ void release(const DecodeSmem<Cfg>& smem, int stage) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(smem.empty(stage));
}

// One phase of a consumer warp. `buffer` alternates between the two sets of partial sums from slice
// to slice over both phases: a set is written again two barriers later, when all have read it.
template <class Cfg, bool kGated>
__device__ __forceinline__ void consume(const DecodeParams& p, const DecodeSmem<Cfg>& smem,
                                        const DecodePhase& phase,
                                        tile::RingCursor<Cfg::kStages>& ring, int& buffer) {
  constexpr int kUnits = kGated ? Cfg::kRows / 2 : Cfg::kRows;  // of a block, at most
  for (int b = 0; b < phase.blocks; ++b) {
    const UnitRange block = phase.block(b);
    Accumulators<Cfg> d = {};
    for (int c = phase.chunks.begin; c < phase.chunks.end; ++c) {
      ptx::mbarrier_wait(smem.full(ring.stage), ring.parity);
      multiply_stage<Cfg>(smem.weights(ring.stage), smem.activations(ring.stage),
                          phase.chunk_columns(c, Cfg::kDepth), d);
      release<Cfg>(smem, ring.stage);
      ring.advance();
    }
#pragma unroll
    for (int slice = 0; slice < Cfg::kSlices; ++slice) {
      const int token0 = slice * kSliceTokens;
      if (token0 >= p.m) break;
      float* partial = smem.partial(buffer);
      buffer ^= 1;
      write_partial<Cfg>(partial, slice, d);
      ptx::named_barrier_sync(kConsumerBarrier, kConsumers);
      for (int i = static_cast<int>(threadIdx.x); i < kUnits * kSliceTokens; i += kConsumers) {
        // Neighbours store neighbouring columns of h and y, tokens of a row's parts.
        const bool parts = !kGated && p.split > 1;
        const int unit = parts ? i / kSliceTokens : i % kUnits;
        const int token = parts ? i % kSliceTokens : i / kUnits;
        if (unit < block.size() && token0 + token < p.m) {
          finish<Cfg, kGated>(p, partial, slot_of_unit(unit, kGated), token, block.begin + unit,
                              token0 + token);
        }
      }
    }
  }
}

template <class Cfg>
__device__ __forceinline__ void consume_all(const DecodeParams& p, const DecodeSmem<Cfg>& smem) {
  tile::RingCursor<Cfg::kStages> ring;
  int buffer = 0;
  ptx::wait_for_prerequisites();  // biases, residual; and h and y may still be read or written
  if (p.norm.n.base != nullptr) {
    normalise_rows<typename Cfg::Element>(p, smem.partial(0));
    announce(smem.ready(0));
  }
  if (p.h_out.base != nullptr) {
    consume<Cfg, true>(p, smem, gate_up_phase<Cfg>(p), ring, buffer);
    if (p.y.base != nullptr) announce(smem.ready(1));
  }
  if (p.y.base != nullptr) {
    const DecodePhase phase = down_phase<Cfg>(p);
    consume<Cfg, false>(p, smem, phase, ring, buffer);
    if (p.split > 1) add_parts<Cfg>(p, smem, phase.units);
  }
}

template <class Cfg>
__global__ void __launch_bounds__(kDecodeThreads, 1)
    decode(const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(1024) char raw[];
  const DecodeSmem<Cfg> smem{raw};
  if (threadIdx.x == 0) {
    for (int s = 0; s < Cfg::kStages; ++s) {
      ptx::mbarrier_init(smem.full(s), kWeightWarps + 1);
      ptx::mbarrier_init(smem.empty(s), kConsumerWarps);
    }
    ptx::mbarrier_init(smem.ready(0), kConsumerWarps);
    ptx::mbarrier_init(smem.ready(1), kConsumerWarps);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < kConsumerWarps) {
    consume_all<Cfg>(p, smem);
  } else if (warp < kConsumerWarps + kWeightWarps) {
    produce_weights<Cfg>(p, smem);
  } else {
    produce_activations<Cfg>(p, smem);
  }
}

}  // namespace sluice::cuda::sm90
