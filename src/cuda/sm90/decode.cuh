// SPDX-License-Identifier: Apache-2.0
// The Hopper decode kernel: gate_up, down, or both in one launch, for up to 64 tokens. Weights
// stream through one ring of shared-memory stages that does not stop at the grid barrier.
// Budget and drawings: docs/kernels/mlp_decode.md; what was tried: docs/kernels/log/mlp_decode.md.
//
// roles (416 threads, a CTA for each SM; rows: decode_rows.cuh, boxes: decode_boxes.cuh)
//   warps 0-7    consumers. rows: all share each stage; boxes: two warpgroups, blocks in turns
//   warps 8-11   weight producers: a bulk copy a row, or a tensor copy a box; behind gate_up's last
//                mostly what down's launch reads first into L2
//   warp 12      activation producer: a bulk copy a token, or of many tokens a box a lane; also
//                meets the other CTAs at the grid barriers
// shared memory
//   stages x { activations and weights } | scratch: partial sums, those that clusters exchange, or
//   the norm's | mbarriers
// mbarriers
//   full[s]    an arrival of each producer warp (expect_tx) and the stage's bytes; consumers wait
//   empty[s]   kReaders arrivals (each consumer warp that has read the stage); every producer waits
//   ready[i]   8 arrivals (each consumer warp, when its rows of n (0) or h (1) are written); the
//              activation producer waits, then meets the other CTAs at the grid barrier (Meeting)
//   exchanged  an arrival (a consumer, expect_tx) and the sums of the CTAs that divide K; their
//              consumers wait
// named barrier 1: the 256 consumers, between writing and reading partial sums, and those of the
// norm's prologue
// named barriers 2, 3 (boxes in turns): a warpgroup hands the ring to the other
// named barriers 4, 5 (boxes with a deferred norm): 128, a warpgroup has written a stage's operand,
// or the sums of its squares
// cluster barrier, of the CTAs that divide K: all have begun, and initialised their mbarriers
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/sm90/decode_boxes.cuh"
#include "cuda/sm90/decode_norm.cuh"
#include "cuda/sm90/decode_rows.cuh"
#include "cuda/tile/grid_barrier.cuh"
#include "cuda/tile/ring.cuh"

namespace sluice::cuda::sm90 {

/// What a weight producer needs for its first copy.
struct WeightStart {
  DecodePhase phase;             // that the launch begins with
  const char* source = nullptr;  // of rows: own_row() of its first block
  std::uint64_t policy = 0;
};

// Computed while the mbarriers are initialised, since the SM has neither parameters nor
// instructions yet and the launch waits for its first copy.
template <class Cfg>
__device__ __forceinline__ WeightStart prepare_weights(const DecodeParams& p) {
  WeightStart start;
  start.phase = first_phase<Cfg>(p);
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
__device__ __forceinline__ void stream_weights(const DecodeParams& p, const DecodeSmem<Cfg>& smem,
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
// memory for nothing. CTAs that this launch has not get none. NOTE: earlier, with this CTA's last
// copies, it takes from them what it gains.
template <class Cfg>
__device__ __forceinline__ void prefetch_next(const DecodeParams& p, const DecodeSmem<Cfg>& smem,
                                              int steps) {
  constexpr int kStepsLeft = 3;  // copies under way by then
  static_assert(kStepsLeft <= Cfg::kStages);
  if (p.next.columns == 0 || steps < kStepsLeft) return;
  const int cta = static_cast<int>(blockIdx.x);
  const UnitRange rows = p.next.rows(cta);
  const int row = rows.begin + weight_slot();
  const int column = p.next.first_column(cta);
  const int columns = min(p.next.columns, p.h - column);
  tile::RingCursor<Cfg::kStages> ring;
  ring.skip_to(steps - kStepsLeft);
  ptx::mbarrier_wait(smem.full(ring.stage), ring.parity);
  if (row < min(rows.end, p.d) && columns > 0) {
    ptx::bulk_prefetch_l2(row_of(p.w_down, row) + std::int64_t{column} * 2,
                          static_cast<std::uint32_t>(columns * 2));
  }
}

template <class Cfg>
__device__ __forceinline__ void produce_weights(const DecodeParams& p, const DecodeSmem<Cfg>& smem,
                                                WeightStart start) {
  tile::RingCursor<Cfg::kStages> ring{0, 1};
  if (p.weights_static == 0) ptx::wait_for_prerequisites();
  if (p.gate_up != 0) {
    stream_weights<Cfg, true>(p, smem, start, ring);
    // Half rings, two CTAs on an SM, have no such gap.
    if constexpr (kResident<Cfg> == 1) {
      prefetch_next<Cfg>(p, smem, start.phase.blocks * start.phase.chunks.size());
    }
    if constexpr (Cfg::kMeets) {
      if (p.y.base == nullptr) return;
      start.phase = down_phase<Cfg>(p);
      if constexpr (!Cfg::kWeightBoxes) start.source = own_row<Cfg, false>(p, start.phase, 0);
    } else {
      return;
    }
  }
  if constexpr (!Cfg::kNorm) stream_weights<Cfg, false>(p, smem, start, ring);
}

// Streams the activations of one phase: a lane with a `row` brings its columns of a chunk (m lanes
// do), or a lane a box of all m tokens; of `inputs` matrices, x and then a deferred norm's
// residual, whose map a lane has. What the slots of other tokens hold reaches no output, for an mma
// keeps columns apart.
template <class Cfg>
__device__ __forceinline__ void stream_activations(const char* row, const CUtensorMap& map,
                                                   int inputs, int m, const DecodeSmem<Cfg>& smem,
                                                   const DecodePhase& phase,
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
          const int span = kNormByBoxes<Cfg> ? lane % kSpans : lane;
          const int first = span != lane ? Cfg::kNormRows / 2 : 0;
          const std::int32_t at[5] = {c * Cfg::kDepth + span * kSpanColumns, 0};
          ptx::tensor_copy_2d(to + (span * Cfg::kTokens + first) * kSpanBytes, map, at, full);
        } else {
          ptx::bulk_copy(to + lane * Cfg::kTokenBytes, row + std::int64_t{c} * Cfg::kTokenBytes,
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
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ptx::launch_dependents();
  if constexpr (Cfg::kNorm) prefetch_residual(p);
  // What is computed behind the wait delays the first copy.
  const bool gate_up = p.gate_up != 0;
  const DecodePhase first = first_phase<Cfg>(p);
  const int rows = activation_rows<Cfg>(p);
  const char* h_row = static_cast<const char*>(p.h_in.base) + lane * p.h_in.row_bytes;
  const char* row = !gate_up ? h_row : lane < rows ? activation_row<Cfg>(p, lane) : nullptr;
  const bool adds = kNormByBoxes<Cfg> && p.norm.residual.base != nullptr;
  const int inputs = adds ? 2 : 1;
  const bool brings_residual = adds && lane >= Cfg::kDepth / kSpanColumns;
  const CUtensorMap& map = brings_residual ? p.x_residual_map : gate_up ? p.x_map : p.h_map;
  if constexpr (Cfg::kActivationBoxes) {
    if (lane == 0 || (brings_residual && lane == Cfg::kDepth / kSpanColumns)) {
      ptx::prefetch_tensor_map(map);
    }
  }
  ptx::wait_for_prerequisites();
  if constexpr (Cfg::kMeets) {
    int barriers = 0;
    if (p.norm.n.base != nullptr) meet<Cfg>(p, smem.ready(0), barriers++);
    stream_activations<Cfg>(row, map, inputs, rows, smem, first, ring);
    if (!gate_up || p.y.base == nullptr) return;
    meet<Cfg>(p, smem.ready(1), barriers++);
    stream_activations<Cfg>(h_row, p.h_map, 1, p.m, smem, down_phase<Cfg>(p), ring);
  } else {
    stream_activations<Cfg>(row, map, inputs, gate_up ? rows : p.m, smem, first, ring);
  }
}

// One consumer's place in both phases.
template <class Cfg>
class Consumer {
 public:
  __device__ Consumer() {
    // The first block is the first warpgroup's.
    if (Cfg::kTurns && threadIdx.x / 128 == 1) {
      ptx::named_barrier_arrive(kRingBarrier, kConsumers);
    }
  }
  template <bool kGated>
  __device__ __forceinline__ void consume(const DecodeParams& p, const DecodeSmem<Cfg>& smem,
                                          const DecodePhase& phase) {
    if constexpr (Cfg::kWeightBoxes) {
      consume_boxes<Cfg, kGated>(p, smem, phase, turns_);
    } else {
      consume_rows<Cfg, kGated>(p, smem, phase, ring_, buffer_);
    }
  }

 private:
  tile::RingCursor<Cfg::kStages> ring_;
  int buffer_ = 0;
  Turns turns_;
};

template <class Cfg>
__device__ __forceinline__ void consume_all(const DecodeParams& p, const DecodeSmem<Cfg>& smem) {
  Consumer<Cfg> consumer;
  const DecodePhase first = first_phase<Cfg>(p);
  ptx::wait_for_prerequisites();  // biases, residual; and h and y may still be read or written
  if constexpr (Cfg::kMeets) {
    if (p.norm.n.base != nullptr) {
      normalise_rows<typename Cfg::Element>(p, smem.scratch());
      announce(smem.ready(0));
    }
  }
  if constexpr (Cfg::kNorm) {
    consumer.template consume<true>(p, smem, first);
  } else if (p.gate_up != 0) {
    consumer.template consume<true>(p, smem, first);
    if constexpr (Cfg::kMeets) {
      if (p.y.base == nullptr) return;
      announce(smem.ready(1));
      consumer.template consume<false>(p, smem, down_phase<Cfg>(p));
    }
  } else {
    consumer.template consume<false>(p, smem, first);
  }
}

// NOTE: by one thread. A lane for each takes ptx::mbarrier_init 80 clocks a lane, this ten.
template <class Cfg>
__device__ __forceinline__ void init_barriers(const DecodeSmem<Cfg>& smem) {
  for (int s = 0; s < Cfg::kStages; ++s) {
    ptx::mbarrier_init(smem.full(s), kWeightWarps + 1);
    ptx::mbarrier_init(smem.empty(s), Cfg::kReaders);
  }
  ptx::mbarrier_init(smem.ready(0), kConsumerWarps);
  ptx::mbarrier_init(smem.ready(1), kConsumerWarps);
  ptx::mbarrier_init(smem.exchanged(), 1);
  ptx::fence_mbarrier_init();
}

template <class Cfg>
__global__ void __launch_bounds__(kDecodeThreads, kResident<Cfg>)
    decode(const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(1024) char raw[];
  const DecodeSmem<Cfg> smem{raw};
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 0) init_barriers<Cfg>(smem);
  const bool brings_weights = warp >= kConsumerWarps && warp < kConsumerWarps + kWeightWarps;
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

}  // namespace sluice::cuda::sm90
