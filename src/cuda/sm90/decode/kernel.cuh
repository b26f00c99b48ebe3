// SPDX-License-Identifier: Apache-2.0
// The Hopper decode kernel: gate_up or down for up to 160 tokens. Weights stream through a ring of
// shared-memory stages.
// Budget and drawings: docs/kernels/mlp_decode.md; what was tried: docs/kernels/log/mlp_decode.md.
//
// roles (416 threads, 384 above 96 tokens, a CTA for each SM; rows: rows.cuh, boxes: tma_tiles.cuh)
//   warps 0-7    consumers. rows: all share each stage; boxes: two warpgroups, blocks in turns
//   warps 8-11   (8-10) weight producers: a bulk copy a row, or a tensor copy a box; behind
//                gate_up's last mostly what down's launch reads first into L2
//   the last     activation producer: a bulk copy a token, or of many tokens a box a lane
// shared memory
//   stages x { activations and weights } | scratch: partial sums, those that clusters exchange, or
//   a deferred norm's squares | mbarriers
// mbarriers
//   full[s]    an arrival of each producer warp (expect_tx) and the stage's bytes; consumers wait
//   empty[s]   kReaders arrivals (each consumer warp that has read the stage); every producer waits
//   exchanged  an arrival (a consumer, expect_tx) and the sums of the CTAs that divide K; their
//              consumers wait
// named barrier 1 (rows): the 256 consumers, between writing and reading partial sums
// named barriers 2, 3 (boxes in turns): a warpgroup hands the ring to the other
// named barriers 4, 5 (boxes with a deferred norm): 128, a warpgroup has written a stage's operand,
// or the sums of its squares
// cluster barrier, of the CTAs that divide K: all have begun, and initialised their mbarriers
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/sm90/decode/rows.cuh"
#include "cuda/sm90/decode/tma_tiles.cuh"
#include "cuda/tile/ring.cuh"

namespace sluice::cuda::sm90::decode {

/// What a weight producer needs for its first copy.
struct WeightStart {
  Phase phase;
  const char* source = nullptr;  // of rows: own_row() of its first block
  std::uint64_t policy = 0;
};

// Computed while the mbarriers are initialised, since the SM has neither parameters nor
// instructions yet and the launch waits for its first copy.
template <class Cfg>
__device__ __forceinline__ WeightStart prepare_weights(const Params& p) {
  WeightStart start;
  start.phase = own_phase<Cfg>(p);
  if constexpr (!Cfg::kWeightBoxes) {
    start.source = p.gate_up != 0 ? own_row<Cfg, true>(p, start.phase, 0)
                                  : own_row<Cfg, false>(p, start.phase, 0);
  }
  start.policy = ptx::evict_first_policy();
  // NOTE: or the compiler moves it all to where it is read.
  asm volatile(""
               : "+l"(start.source), "+r"(start.phase.blocks), "+r"(start.phase.units.begin),
                 "+r"(start.phase.block_sizes.each), "+r"(start.phase.block_sizes.rest));
  return start;
}

template <class Cfg, bool kGated>
__device__ __forceinline__ void stream_weights(const Params& p, const Smem<Cfg>& smem,
                                               const WeightStart& start,
                                               tile::RingCursor<Cfg::kStages>& ring) {
  if constexpr (Cfg::kWeightBoxes) {
    stream_boxes<Cfg, kGated>(p, smem, start.phase, ring, start.policy);
  } else {
    stream_rows<Cfg, kGated>(p, smem, start.phase, start.source, ring, start.policy);
  }
}

// Brings what the launch behind this one reads first into L2. Its CTA starts on this SM when this
// one has left, and has its first bytes 3.5 us behind this one's last; in between the SM would ask
// memory for nothing. CTAs that this launch has not get none; of more rows than lanes the last get
// none. NOTE: earlier, with this CTA's last copies, it takes from them what it gains.
template <class Cfg>
__device__ __forceinline__ void prefetch_next(const Params& p, const Smem<Cfg>& smem, int steps) {
  constexpr int kStepsLeft = 3;  // copies under way by then
  static_assert(kStepsLeft <= Cfg::kStages);
  if (p.next.columns == 0 || steps < kStepsLeft) return;
  const int cta = static_cast<int>(blockIdx.x);
  const UnitRange rows = p.next.rows(cta);
  const int row = rows.begin + weight_slot<Cfg>();
  const int column = p.next.first_column(cta);
  const int columns = min(p.next.columns, p.h - column);
  tile::RingCursor<Cfg::kStages> ring;
  ring.skip_to(steps - kStepsLeft);
  ptx::mbarrier_wait(smem.full(ring.stage), ring.parity);
  if (row < min(rows.end, p.d) && columns > 0) {
    ptx::bulk_prefetch_l2(p.w_down.at(row) + std::int64_t{column} * 2,
                          static_cast<std::uint32_t>(columns * 2));
  }
}

template <class Cfg>
__device__ __forceinline__ void produce_weights(const Params& p, const Smem<Cfg>& smem,
                                                const WeightStart& start) {
  tile::RingCursor<Cfg::kStages> ring{0, 1};
  if (p.weights_static == 0) ptx::wait_for_prerequisites();
  if (p.gate_up != 0) {
    stream_weights<Cfg, true>(p, smem, start, ring);
    // Half rings, two CTAs on an SM, have no such gap.
    if constexpr (kResident<Cfg> == 1) {
      prefetch_next<Cfg>(p, smem, start.phase.blocks * start.phase.chunks.size());
    }
    return;
  }
  if constexpr (!Cfg::kNorm) stream_weights<Cfg, false>(p, smem, start, ring);
}

// Streams the activations: a lane with a `row` brings its columns of a chunk (m lanes
// do), or a lane a box of all m tokens; of `inputs` matrices, x and then a deferred norm's
// residual, whose map a lane has. What the slots of other tokens hold reaches no output, for an mma
// keeps columns apart.
template <class Cfg>
__device__ __forceinline__ void stream_activations(const char* row, const CUtensorMap& map,
                                                   int inputs, int m, const Smem<Cfg>& smem,
                                                   const Phase& phase,
                                                   tile::RingCursor<Cfg::kStages>& ring) {
  constexpr int kSpans = Cfg::kDepth / kSpanColumns;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int b = 0; b < phase.blocks; ++b) {
    for (int c = phase.chunks.begin; c < phase.chunks.end; ++c) {
      const int columns = phase.chunk_columns(c, Cfg::kDepth);
      // A box is whole, and with boxes of weights a stage: outside the matrix they read as 0.
      const int copies = Cfg::kWeightBoxes       ? kSpans * inputs
                         : Cfg::kActivationBoxes ? phase.chunk_spans(c, Cfg::kDepth)
                                                 : m;
      const int bytes = Cfg::kActivationBoxes ? m * kSpanBytes : columns * 2;
      std::uint64_t& full = smem.full(ring.stage);
      ptx::mbarrier_wait(smem.empty(ring.stage), ring.parity);
      if (lane == 0)
        ptx::mbarrier_arrive_expect_bytes(full, static_cast<std::uint32_t>(copies * bytes));
      __syncwarp();
      if (lane < copies) {
        char* to = smem.activations(ring.stage);
        if constexpr (Cfg::kActivationBoxes) {
          const int span = Cfg::kNorm ? lane % kSpans : lane;
          const int first = span != lane ? Cfg::kTokens / 2 : 0;
          const std::int32_t at[5] = {c * Cfg::kDepth + span * kSpanColumns, 0};
          ptx::tensor_copy<2>(to + (span * Cfg::kTokens + first) * kSpanBytes, map, at, full);
        } else {
          ptx::bulk_copy(to + lane * Cfg::kTokenBytes, row + std::int64_t{c} * Cfg::kTokenBytes,
                         static_cast<std::uint32_t>(bytes), full);
        }
      }
      ring.advance();
    }
  }
}

template <class Cfg>
__device__ __forceinline__ void produce_activations(const Params& p, const Smem<Cfg>& smem) {
  tile::RingCursor<Cfg::kStages> ring{0, 1};
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ptx::launch_dependents();
  if constexpr (Cfg::kNorm) prefetch_residual(p);
  // What is computed behind the wait delays the first copy.
  const bool gate_up = p.gate_up != 0;
  const Phase phase = own_phase<Cfg>(p);
  const RowMajor& from = gate_up ? p.x : p.h_in;
  const char* row = from.base + lane * from.row_bytes;
  const bool adds = Cfg::kNorm && p.norm.residual.base != nullptr;
  const int inputs = adds ? 2 : 1;
  const bool brings_residual = adds && lane >= Cfg::kDepth / kSpanColumns;
  const CUtensorMap& map = brings_residual ? p.x_residual_map : gate_up ? p.x_map : p.h_map;
  if constexpr (Cfg::kActivationBoxes) {
    if (lane == 0 || (brings_residual && lane == Cfg::kDepth / kSpanColumns)) {
      ptx::prefetch_tensor_map(map);
    }
  }
  ptx::wait_for_prerequisites();
  stream_activations<Cfg>(row, map, inputs, p.m, smem, phase, ring);
}

template <class Cfg, bool kGated>
__device__ __forceinline__ void consume(const Params& p, const Smem<Cfg>& smem,
                                        const Phase& phase) {
  if constexpr (Cfg::kWeightBoxes) {
    consume_boxes<Cfg, kGated>(p, smem, phase);
  } else {
    consume_rows<Cfg, kGated>(p, smem, phase);
  }
}

template <class Cfg>
__device__ __forceinline__ void consume_all(const Params& p, const Smem<Cfg>& smem) {
  // The first block is the first warpgroup's.
  if (Cfg::kAlternates && threadIdx.x / 128 == 1)
    ptx::named_barrier_arrive(kRingBarrier, kConsumers);
  const Phase phase = own_phase<Cfg>(p);
  ptx::wait_for_prerequisites();  // biases, residual; and h and y may still be read or written
  if constexpr (Cfg::kNorm) {
    consume<Cfg, true>(p, smem, phase);
  } else if (p.gate_up != 0) {
    consume<Cfg, true>(p, smem, phase);
  } else {
    consume<Cfg, false>(p, smem, phase);
  }
}

// NOTE: by one thread. A lane for each takes ptx::mbarrier_init 80 clocks a lane, this ten.
template <class Cfg>
__device__ __forceinline__ void init_barriers(const Smem<Cfg>& smem) {
  for (int s = 0; s < Cfg::kStages; ++s) {
    ptx::mbarrier_init(smem.full(s), Cfg::kWeightWarps + 1);
    ptx::mbarrier_init(smem.empty(s), Cfg::kReaders);
  }
  ptx::mbarrier_init(smem.exchanged(), 1);
  ptx::fence_mbarrier_init();
}

template <class Cfg>
__global__ void __launch_bounds__(kThreads<Cfg>, kResident<Cfg>)
    decode(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char raw[];
  const Smem<Cfg> smem{raw};
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 0) init_barriers<Cfg>(smem);
  const bool brings_weights = warp >= kConsumerWarps && warp < kConsumerWarps + Cfg::kWeightWarps;
  WeightStart start;
  if (brings_weights) start = prepare_weights<Cfg>(p);
  __syncthreads();
  if (split_of<Cfg>(p) > 1) ptx::cluster_arrive_relaxed();
  if (warp < kConsumerWarps) {
    consume_all<Cfg>(p, smem);
  } else if (brings_weights) {
    produce_weights<Cfg>(p, smem, start);
  } else {
    produce_activations<Cfg>(p, smem);
  }
}

}  // namespace sluice::cuda::sm90::decode
