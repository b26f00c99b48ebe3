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
//          with a deferred norm: deferred_norm.cuh
// scratch  sums that the CTAs of a cluster exchange: [rank][slice][thread] four sums
// named barriers 2 + w, 256: "the ring is yours", from the other warpgroup to w. Without it w might
//          meet a stage's mbarrier a whole turn of the ring too early and take it for full. Behind
//          the wait for the block's last stage, before its products end: w is less than a turn
//          ahead until that stage is released.
#pragma once

#include <cstdint>

#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/tensor_copy.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/decode/deferred_norm.cuh"
#include "cuda/tile/activation.cuh"
#include "cuda/tile/ring.cuh"

namespace sluice::cuda::sm90::decode {

inline constexpr int kRingBarrier = 2;  // named, of each warpgroup
inline constexpr int kBoxBytes = kMmaRows * kSpanBytes;

// The first box of a block that this warpgroup multiplies.
template <class Cfg>
__device__ __forceinline__ int first_unit() {
  return Cfg::kAlternates ? 0 : static_cast<int>(threadIdx.x) / 128 * (kWgmmaRows / kMmaRows);
}

// One box of weights, columns from k, `last` its last coordinate.
template <bool kGated>
__device__ __forceinline__ void copy_box(const Params& p, char* to, int k, int last,
                                         std::uint64_t& full, std::uint64_t policy) {
  if constexpr (!kGated) {
    const std::int32_t at[5] = {k, last};
    ptx::tensor_copy<2>(to, p.w_down_map, at, full, policy);
  } else if (p.pair.rank == 4) {
    const std::int32_t at[5] = {k, 0, 0, last};
    ptx::tensor_copy<4>(to, p.w_pair_map, at, full, policy);
  } else {
    const std::int32_t at[5] = {k, 0, 0, 0, last};
    ptx::tensor_copy<5>(to, p.w_pair_map, at, full, policy);
  }
}

// Streams the weights of the phase.
template <class Cfg, bool kGated>
__device__ __forceinline__ void stream_boxes(const Params& p, const Smem<Cfg>& smem,
                                             const Phase& phase,
                                             tile::RingCursor<Cfg::kStages>& ring,
                                             std::uint64_t policy) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto box = static_cast<unsigned>(weight_slot<Cfg>());
  const int unit = static_cast<int>(box / Cfg::kSpans);
  const int span = static_cast<int>(box % Cfg::kSpans);
  const int offset = span * Cfg::kRows * kSpanBytes + unit * kBoxBytes;
  // A deferred norm's weight is one copy more, which all CTAs read in every block.
  static_assert(!Cfg::kNorm || Cfg::kRows / kMmaRows * Cfg::kSpans < 32 * Cfg::kWeightWarps);
  const bool is_norm = Cfg::kNorm && box == Cfg::kRows / kMmaRows * Cfg::kSpans;
  const bool has_norm = Cfg::kNorm && __any_sync(0xFFFFFFFFU, is_norm);
  for (int b = 0; b < phase.blocks; ++b) {
    const UnitRange block = phase.block(b);
    const int first = block.begin + unit;
    const int last = ptx::held(kGated ? p.pair.last_coordinate(first) : first * kMmaRows);
    for (int c = phase.chunks.begin; c < phase.chunks.end; ++c) {
      // A stage is whole: outside the matrix boxes read as 0.
      const bool mine = unit < block.size() && span < Cfg::kSpans;
      const int boxes = __popc(__ballot_sync(0xFFFFFFFFU, mine));
      const int norm_bytes = has_norm ? phase.chunk_columns(c, Cfg::kDepth) * 2 : 0;
      std::uint64_t& full = smem.full(ring.stage);
      ptx::mbarrier_wait(smem.empty(ring.stage), ring.parity);
      if (lane == 0)
        ptx::mbarrier_arrive_expect_bytes(
            full, static_cast<std::uint32_t>(boxes * kBoxBytes + norm_bytes));
      __syncwarp();
      if (mine) {
        copy_box<kGated>(p, smem.weights(ring.stage) + offset,
                         c * Cfg::kDepth + span * kSpanColumns, last, full, policy);
      }
      if constexpr (Cfg::kNorm) {
        if (is_norm) {
          ptx::bulk_copy(
              smem.activations(ring.stage) + Cfg::kNormWeightAt,
              static_cast<const char*>(p.norm.weight) + std::int64_t{c} * (Cfg::kDepth * 2),
              static_cast<std::uint32_t>(norm_bytes), full);
        }
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

  static __device__ __forceinline__ StageTiles of(const Smem<Cfg>& smem, int stage) {
    stage = ptx::warp_uniform(stage);
    const char* at = smem.weights(stage) + ptx::warp_uniform(first_unit<Cfg>()) * kBoxBytes;
    return {ptx::descriptor_sw128(ptx::shared_address(at)),
            ptx::descriptor_sw128(ptx::shared_address(smem.activations(stage)))};
  }
};

// d += the products of one stage, as one group.
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
}

// The CTAs of a cluster divide K and, of the sums, the slices of eight tokens: slice j is finished
// by CTA j % kSplit, which gets here the parts of all ranks and adds them in their order; they are
// then d[0], d[4], .. One block, so each thread sends once. Sums are counted where they arrive, and
// no CTA leaves while parts are on their way to it.
//
// NOTE: rank and addresses are constants or one value a peer, no branch stands between the slices:
// of a launch's end each instruction is its time.
template <class Cfg>
struct Exchange {
  static constexpr int kSlices = Cfg::kTokens / kSliceTokens;
  static constexpr int kThreads = Cfg::kAlternates ? kConsumers / 2 : kConsumers;
  static constexpr int kSumsBytes = kThreads * static_cast<int>(sizeof(float4));
  static_assert(kSlices * kSumsBytes <= Cfg::kScratchBytes);

  // Whether a rank finishes any slice.
  static __device__ __forceinline__ bool finishes(const Params& p, int rank) {
    return rank * kSliceTokens < p.m;
  }

  // Says what this CTA gets; one thread, before it sends.
  static __device__ __forceinline__ void expect(const Params& p, std::uint64_t& exchanged,
                                                int split, int rank) {
    const int parts = finishes(p, rank) ? kSlices / split * (split - 1) : 0;
    ptx::mbarrier_arrive_expect_bytes(exchanged, static_cast<std::uint32_t>(parts * kSumsBytes));
  }

  template <int kSplit, int kRank>
  static __device__ __forceinline__ void run_as(const Params& p, const Smem<Cfg>& smem,
                                                Sums<Cfg>& d) {
    static_assert(kSlices % kSplit == 0);
    constexpr int kEach = kSlices / kSplit;
    // [rank][slice of the receiver][thread]
    float4* const box =
        reinterpret_cast<float4*>(smem.scratch()) + static_cast<int>(threadIdx.x) % kThreads;
#pragma unroll
    for (int to = 0; to < kSplit; ++to) {
      if (to == kRank || !finishes(p, to)) continue;
      const std::uint32_t there = ptx::peer_address(box + kRank * kEach * kThreads, to);
      const std::uint32_t barrier = ptx::peer_address(&smem.exchanged(), to);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float* part = &d[(i * kSplit + to) * 4];
        ptx::store_to_peer(there + i * kSumsBytes, make_float4(part[0], part[1], part[2], part[3]),
                           barrier);
      }
    }
    if (!finishes(p, kRank)) return;
    // One block: the first phase.
    ptx::mbarrier_wait<ptx::Completer::kCluster>(smem.exchanged(), 0);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      float4 sum = {};
#pragma unroll
      for (int from = 0; from < kSplit; ++from) {
        const float* own = &d[(i * kSplit + kRank) * 4];
        const float4 part = from == kRank ? make_float4(own[0], own[1], own[2], own[3])
                                          : box[(from * kEach + i) * kThreads];
        if (from == 0) {
          sum = part;
        } else {
          sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
        }
      }
      d[i * 4] = sum.x;
      d[i * 4 + 1] = sum.y;
      d[i * 4 + 2] = sum.z;
      d[i * 4 + 3] = sum.w;
    }
  }

  static __device__ __forceinline__ void run(const Params& p, const Smem<Cfg>& smem, int split,
                                             int rank, Sums<Cfg>& d) {
    if (split == 2) {
      if (rank == 0) {
        run_as<2, 0>(p, smem, d);
      } else {
        run_as<2, 1>(p, smem, d);
      }
    } else if constexpr (kSlices % 4 == 0) {
      switch (rank) {
        case 0:
          return run_as<4, 0>(p, smem, d);
        case 1:
          return run_as<4, 1>(p, smem, d);
        case 2:
          return run_as<4, 2>(p, smem, d);
        default:
          return run_as<4, 3>(p, smem, d);
      }
    }
  }
};

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
  __device__ __forceinline__ Element* token(int behind, int further = 0) const {
    return reinterpret_cast<Element*>(behind == 0 ? at : at + row_bytes) + further;
  }
  __device__ __forceinline__ void advance() { at += step_bytes; }
};

// Slices that a thread finishes together: two, half of all, as many as a CTA of a pair has, or what
// registers hold; of 18 slices three. No branch stands between them: a slice alone is a chain of
// exponential, reciprocal and store, or of load and store, and few warps share a scheduler.
template <class Cfg>
inline constexpr int kTogether = Cfg::kTokens <= 32       ? 2
                                 : Cfg::kTokens <= 96     ? Cfg::kTokens / kSliceTokens / 2
                                 : Cfg::kTokens % 32 == 0 ? 4
                                                          : 3;

// Where a thread's results of a block go, and their biases, before its sums are there: of loads at
// a launch's end each is 0.5 us.
template <class Cfg, bool kGated>
struct BlockOutput {
  using Element = typename Cfg::Element;

  OwnTokens tokens;
  int column;  // of h or y: that of d[0]
  int rows;    // of those of d[0] and d[2] so many are in the block and the matrix; of a pair both
  TokenColumn<Element> out;
  Element bias[2] = {};  // gate's and up's, or of the rows of d[0] and d[2]; touched at the end

  __device__ BlockOutput(const Params& p, UnitRange block, const Group& group, int split)
      : BlockOutput(p, block, group, split,
                    block.begin + first_unit<Cfg>() + static_cast<int>(threadIdx.x % 128 / 32)) {}

 private:
  __device__ BlockOutput(const Params& p, UnitRange block, const Group& group, int split, int unit)
      : tokens(split, group.rank),
        column(unit *
               (kGated ? kUnitPairs<Cfg> : kUnitRows<Cfg>)+static_cast<int>(threadIdx.x % 32 / 4)),
        rows(unit >= block.end                       ? 0
             : kGated || column + kMmaRows / 2 < p.d ? 2
                                                     : 1),
        out(kGated ? p.h_out : p.y, tokens, column) {
    // NOTE: or the compiler computes them where they are used, behind the block's last stage.
    asm volatile("" : "+l"(out.at), "+l"(out.step_bytes));
    const void* const biases = kGated ? p.b_gate : p.b_down;
    if (biases == nullptr) return;
    if (rows > 0) bias[0] = static_cast<const Element*>(biases)[column];
    if (rows > 1) {
      bias[1] = kGated ? static_cast<const Element*>(p.b_up)[column]
                       : static_cast<const Element*>(biases)[column + kMmaRows / 2];
    }
  }
};

// h of one block, from a warpgroup's sums.
template <class Cfg>
__device__ __forceinline__ void finish_pairs(const Params& p, BlockOutput<Cfg, true>& to,
                                             const Sums<Cfg>& d, const BoxTokens<Cfg>& tokens) {
  using Element = typename Cfg::Element;
  if (to.rows == 0) return;
  const float b_gate = static_cast<float>(to.bias[0]);
  const float b_up = static_cast<float>(to.bias[1]);
  const bool up_first = p.up_first != 0;
  tile::with_epilogue_gate(p.gate, p.plain_gate != 0, [&](const Gate& gate) {
    int token = to.tokens.first;
#pragma unroll
    for (int i = 0; i < Cfg::kTokens / kSliceTokens; i += kTogether<Cfg>) {
      if (token >= p.m) break;
      Element values[kTogether<Cfg>][2];
#pragma unroll
      for (int j = 0; j < kTogether<Cfg>; ++j) {
#pragma unroll
        for (int behind = 0; behind < 2; ++behind) {
          const float scale = tokens.scale(i + j, behind);
          const float first = d[(i + j) * 4 + behind] * scale;
          const float second = d[(i + j) * 4 + behind + 2] * scale;
          const float g = (up_first ? second : first) + b_gate;
          const float u = (up_first ? first : second) + b_up;
          values[j][behind] = Element(math::gate_mul(gate, g, u));
        }
      }
#pragma unroll
      for (int j = 0; j < kTogether<Cfg>; ++j) {
        if (token < p.m) *to.out.token(0) = values[j][0];
        if (token + 1 < p.m) *to.out.token(1) = values[j][1];
        to.out.advance();
        token += to.tokens.step;
      }
    }
  });
}

// The residual of a thread's results: of slice i [i][that of d[4 i], d[4 i + 2]][token].
template <class Cfg>
struct BlockResidual {
  using Element = typename Cfg::Element;
  // Of few tokens on its way while the block is multiplied, and touched no sooner; of more there
  // are no registers.
  static constexpr bool kEarly = Cfg::kTokens <= 32;
  static constexpr int kSlices = Cfg::kTokens / kSliceTokens;

  Element of[kSlices][2][2] = {};

  /// kCount slices from `first` on, which begins with `token`, where `from` stands.
  template <int kCount>
  __device__ __forceinline__ void load(int first, const Params& p, int rows, int step, int token,
                                       TokenColumn<Element>& from) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // From L2, where it is if the launch before this one wrote it.
        if (half < rows && token < p.m) {
          of[first + j][half][0] = __ldcg(from.token(0, half * (kMmaRows / 2)));
        }
        if (half < rows && token + 1 < p.m) {
          of[first + j][half][1] = __ldcg(from.token(1, half * (kMmaRows / 2)));
        }
      }
      from.advance();
      token += step;
    }
  }

  /// All of them, if there is a residual.
  static __device__ __forceinline__ BlockResidual load_early(const Params& p,
                                                             const BlockOutput<Cfg, false>& to) {
    BlockResidual residual;
    if (p.residual.base != nullptr) {
      TokenColumn<Element> from(p.residual, to.tokens, to.column);
      residual.template load<kSlices>(0, p, to.rows, to.tokens.step, to.tokens.first, from);
    }
    return residual;
  }
};

// y of one block.
template <class Cfg>
__device__ __forceinline__ void finish_down(const Params& p, BlockOutput<Cfg, false>& to,
                                            const Sums<Cfg>& d, BlockResidual<Cfg>& residual) {
  using Element = typename Cfg::Element;
  constexpr int kApart = kMmaRows / 2;
  const bool adds = p.residual.base != nullptr;
  const float bias[2] = {static_cast<float>(to.bias[0]), static_cast<float>(to.bias[1])};
  TokenColumn<Element> from(p.residual, to.tokens, to.column);
  int token = to.tokens.first;
#pragma unroll
  for (int i = 0; i < Cfg::kTokens / kSliceTokens; i += kTogether<Cfg>) {
    if (token >= p.m || to.rows == 0) break;
    if (adds && !BlockResidual<Cfg>::kEarly) {
      residual.template load<kTogether<Cfg>>(i, p, to.rows, to.tokens.step, token, from);
    }
#pragma unroll
    for (int j = 0; j < kTogether<Cfg>; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int behind = 0; behind < 2; ++behind) {
          float sum = d[(i + j) * 4 + half * 2 + behind] + bias[half];
          if (adds) sum += static_cast<float>(residual.of[i + j][half][behind]);
          if (half < to.rows && token + behind < p.m) {
            *to.out.token(behind, half * kApart) = Element(sum);
          }
        }
      }
      to.out.advance();
      token += to.tokens.step;
    }
  }
}

// The phase of a consumer warpgroup: every second block, or its half of each.
template <class Cfg, bool kGated>
__device__ __forceinline__ void consume_boxes(const Params& p, const Smem<Cfg>& smem,
                                              const Phase& phase) {
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  const int split = split_of<Cfg>(p);
  const Group group(split);
  if constexpr (Cfg::kDivides) {
    if (split > 1) {
      if (threadIdx.x == 0) Exchange<Cfg>::expect(p, smem.exchanged(), split, group.rank);
      // The others have begun, and so have their mbarriers. Here, where stages are waited for
      // anyway.
      __syncwarp();
      ptx::cluster_wait();
    }
  }
  BoxTokens<Cfg> tokens(p);
  if constexpr (Cfg::kNorm) {
    if (warpgroup == 1) store_sum(p);
  }
  int step = 0;  // of the ring, both warpgroups'
  for (int b = 0; b < phase.blocks; ++b) {
    tile::RingCursor<Cfg::kStages> ring;
    ring.skip_to(step);
    step += phase.chunks.size();
    if (Cfg::kAlternates) {
      if (b % 2 != warpgroup) continue;
      ptx::named_barrier_sync(kRingBarrier + warpgroup, kConsumers);
    }
    BlockOutput<Cfg, kGated> output(p, phase.block(b), group, split);
    [[maybe_unused]] BlockResidual<Cfg> residual;
    if constexpr (!kGated && BlockResidual<Cfg>::kEarly) {
      residual = BlockResidual<Cfg>::load_early(p, output);
    }
    Sums<Cfg> d = {};
    [[maybe_unused]] int multiplied = ring.stage;  // the stage before
    for (int c = phase.chunks.begin; c < phase.chunks.end; ++c) {
      // Before the wait: behind one for h stages stand full, and what lies between their products
      // is time.
      const auto tiles = StageTiles<Cfg>::of(smem, ring.stage);
      ptx::mbarrier_wait(smem.full(ring.stage), ring.parity);
      tokens.normalise(p, smem.activations(ring.stage), c);
      multiply_boxes<Cfg>(tiles, d);
      if constexpr (Cfg::kPipelined) {
        ptx::wgmma_wait<1>();
        if (c > phase.chunks.begin) release<Cfg>(smem, multiplied);
        multiplied = ring.stage;
      } else {
        ptx::wgmma_wait<0>();
        release<Cfg>(smem, ring.stage);
      }
      ring.advance();
    }
    if (Cfg::kAlternates) ptx::named_barrier_arrive(kRingBarrier + (warpgroup ^ 1), kConsumers);
    if constexpr (Cfg::kPipelined) {
      ptx::wgmma_wait<0>();
      if (phase.chunks.size() > 0) release<Cfg>(smem, multiplied);
    }
    ptx::wgmma_fence_accumulators(d);
    if constexpr (Cfg::kDivides) {
      if (split > 1) Exchange<Cfg>::run(p, smem, split, group.rank, d);
    }
    if constexpr (kGated) {
      tokens.finish_squares(p, smem.scratch());
      finish_pairs<Cfg>(p, output, d, tokens);
    } else {
      finish_down<Cfg>(p, output, d, residual);
    }
  }
}

}  // namespace sluice::cuda::sm90::decode
