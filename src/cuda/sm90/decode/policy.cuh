// SPDX-License-Identifier: Apache-2.0
// What the parts of the decode kernel share: the compile-time forms of its tilings, the map of
// shared memory, and who of the CTAs computes what. See docs/kernels/mlp_decode.md.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/ptx/mbarrier.cuh"
#include "cuda/sm90/decode/params.hpp"
#include "cuda/sm90/decode/schedule.hpp"
#include "cuda/sm90/decode/table.hpp"
#include "cuda/sm90/limits.hpp"

namespace sluice::cuda::sm90::decode {

inline constexpr int kConsumerWarps = 8;
inline constexpr int kConsumers = 32 * kConsumerWarps;
inline constexpr int kConsumerBarrier = 1;  // named, of all consumers
inline constexpr int kSpanBytes = 2 * kSpanColumns;
// Floats of a slot's partial sums: 8 and a pad that keeps float2 writes and column reads apart.
inline constexpr int kPartialStride = 10;

/// A Tiling by rows, up to kSpanTokens: weights by copies of rows, mma.sync.
template <class ElementType, Tiling kTiling>
struct RowsConfig {
  using Element = ElementType;
  static constexpr int kTokens = kTiling.tokens;
  static constexpr int kRows = kTiling.rows;
  static constexpr int kDepth = kTiling.depth;
  static constexpr int kStages = kTiling.stages;
  static constexpr bool kWeightBoxes = false;
  static constexpr bool kDivides = false;
  static constexpr bool kNorm = false;
  static constexpr bool kActivationBoxes = kTokens > kRowTokens;
  static constexpr bool kAlternates = false;
  static constexpr int kReaders = kConsumerWarps;  // of a stage
  static constexpr int kWeightWarps = 4;  // one issues 22 to 26 copies a us, whatever one brings
  // Consumer warps: groups of kTiles row tiles, and each group's shares of the columns. Two tiles a
  // warp where there are many: activations are read once for both.
  static constexpr int kTiles = kRows >= 4 * kMmaRows ? 2 : 1;
  static constexpr int kRowWarps = kRows / (kTiles * kMmaRows);
  static constexpr int kDepthWarps = kConsumerWarps / kRowWarps;
  static constexpr int kSlices = kTokens / kSliceTokens;
  static constexpr int kTokenBytes = kDepth * 2;
  static constexpr int kWeightRowBytes = kDepth * 2;
  static constexpr int kActivationsAt = 0;
  static constexpr int kWeightsAt = kTokens * kTokenBytes;
  static constexpr int kStageBytes = (kWeightsAt + kRows * kWeightRowBytes + 1023) & ~1023;
  static constexpr int kPartialFloats = kDepthWarps * kRows * kPartialStride;
  static constexpr int kScratchBytes = 2 * kPartialFloats * 4;
  static_assert(kTokens % kSliceTokens == 0 && kDepth % (kSpanColumns * kDepthWarps) == 0);
  static_assert(kRows == kTiles * kRowWarps * kMmaRows && kRows <= 32 * kWeightWarps);
  static_assert(kDepthWarps * kRowWarps == kConsumerWarps);
  static_assert(!kTiling.norm);
};

inline constexpr int kWgmmaRows = 64;

/// A Tiling by boxes: weights by boxes of 16 rows x 64 columns, wgmma.
template <class ElementType, Tiling kTiling>
struct BoxesConfig {
  using Element = ElementType;
  static constexpr int kTokens = kTiling.tokens;
  static constexpr int kRows = kTiling.rows;
  static constexpr int kDepth = kTiling.depth;
  static constexpr int kStages = kTiling.stages;
  static constexpr bool kWeightBoxes = true;
  static constexpr bool kDivides = divides(kTiling);
  static constexpr bool kNorm = kTiling.norm;
  static constexpr bool kActivationBoxes = true;
  // 64 rows are one wgmma: the warpgroups take blocks of so many in turns, of twice as many half of
  // the rows each.
  static constexpr bool kAlternates = kRows == kWgmmaRows;
  static constexpr int kReaders = kAlternates ? kConsumerWarps / 2 : kConsumerWarps;  // of a stage
  // Whether a stage's products are still under way while the next one's are issued. Else nobody
  // multiplies between two stages; but the one before is refilled a stage later, for which rings of
  // 64 tokens are too short. A choice at run time makes ptxas wait at each wgmma.
  static constexpr bool kPipelined = kTokens != 64 && kTokens > kSpanTokens;
  // With three a CTA has three warps a scheduler, and a thread up to 168 registers.
  static constexpr int kWeightWarps = kTokens > 96 ? 3 : 4;
  static constexpr int kSpans = kDepth / kSpanColumns;
  static constexpr int kWeightsAt = 0;
  static constexpr int kActivationsAt = kRows * kDepth * 2;
  static constexpr int kNormWeightAt = kTokens * kDepth * 2;
  static constexpr int kStageBytes =
      (kActivationsAt + kNormWeightAt + (kNorm ? kDepth * 2 : 0) + 1023) & ~1023;
  // Sums that the CTAs of a cluster exchange. Not over the ring: who sends would wait until the
  // others have read their last stages. In gate_up with a deferred norm squares.
  static constexpr int kScratchBytes = (kDivides || kNorm ? kRows : 2) * kTokens * 4;
  static_assert(kTokens % (2 * kSliceTokens) == 0 && kRows % kMmaRows == 0 &&
                kDepth % kSpanColumns == 0);
  static_assert(kRows / kMmaRows * kSpans <= 32 * kWeightWarps);
  static_assert(kRows == kWgmmaRows || kRows == 2 * kWgmmaRows);
  // With a deferred norm the first half of the tokens is x's room, the second the residual's.
  static_assert(!kNorm || kAlternates);
};

template <class Cfg>
inline constexpr int kUnitPairs = unit_size(Cfg::kWeightBoxes, true);
template <class Cfg>
inline constexpr int kUnitRows = unit_size(Cfg::kWeightBoxes, false);

template <class Cfg>
struct Smem {
  static constexpr int kBarriers = 2 * Cfg::kStages + 1;
  static constexpr int kBytes =
      Cfg::kStages * Cfg::kStageBytes + Cfg::kScratchBytes + kBarriers * 8;
  static_assert(kBytes <= kMaxSmemBytes);

  char* base;  // multiple of 1024, as is a stage where boxes are swizzled
  __device__ char* activations(int stage) const {
    return base + stage * Cfg::kStageBytes + Cfg::kActivationsAt;
  }
  __device__ char* weights(int stage) const {
    return base + stage * Cfg::kStageBytes + Cfg::kWeightsAt;
  }
  __device__ float* scratch() const {
    return reinterpret_cast<float*>(base + Cfg::kStages * Cfg::kStageBytes);
  }
  __device__ std::uint64_t& full(int stage) const {
    return reinterpret_cast<std::uint64_t*>(scratch() + Cfg::kScratchBytes / 4)[stage];
  }
  __device__ std::uint64_t& empty(int stage) const { return full(Cfg::kStages + stage); }
  __device__ std::uint64_t& exchanged() const { return full(2 * Cfg::kStages); }
};

/// CTAs that fit an SM, of which each takes 1 KiB of its 228 KiB beside its own.
template <class Cfg>
inline constexpr int kResident = 2 * (Smem<Cfg>::kBytes + 1024) <= 228 * 1024 ? 2 : 1;

/// The compile-time form of a tiling.
template <class Element, Tiling kTiling>
using DecodeConfig =
    std::conditional_t<kTiling.boxes, BoxesConfig<Element, kTiling>, RowsConfig<Element, kTiling>>;

template <class Cfg>
inline constexpr int kThreads = kConsumers + 32 * (Cfg::kWeightWarps + 1);

/// The row slot of a stage, or box, that a lane of the weight warps brings: of n warps lane l of
/// warp w has n l + w.
template <class Cfg>
__device__ __forceinline__ int weight_slot() {
  const unsigned warp = threadIdx.x / 32 - kConsumerWarps;
  return static_cast<int>(threadIdx.x % 32 * Cfg::kWeightWarps + warp);
}

// This CTA's place among the 1, 2 or 4 that share weight rows, a cluster, and theirs among all.
struct Group {
  int index;
  int rank;
  __device__ explicit Group(int split)  // no division: of 1, 2, 4 split / 2 is the logarithm
      : index(static_cast<int>(blockIdx.x >> (static_cast<unsigned>(split) / 2))),
        rank(static_cast<int>(blockIdx.x & static_cast<unsigned>(split - 1))) {}
};

template <class Cfg>
__device__ __forceinline__ int split_of(const Params& p) {
  return Cfg::kDivides ? p.split : 1;
}

/// What this CTA computes.
template <class Cfg>
__device__ __forceinline__ Phase own_phase(const Params& p) {
  const Group group(split_of<Cfg>(p));
  return p.shares.phase(group.index, group.rank, p.gate_up != 0 ? p.d : p.h);
}

template <class Element>
__device__ __forceinline__ Element* element_at(const RowMajor& matrix, int row, int column) {
  return reinterpret_cast<Element*>(matrix.base + row * matrix.row_bytes) + column;
}

// This consumer warp has read the stage.
template <class Cfg>
__device__ __forceinline__ void release(const Smem<Cfg>& smem, int stage) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(smem.empty(stage));
}

}  // namespace sluice::cuda::sm90::decode
