// SPDX-License-Identifier: Apache-2.0
// What the parts of the decode kernel share: the compile-time forms of its tilings, the map of
// shared memory, and who of the CTAs computes what. See docs/kernels/mlp_decode.md.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode_norm.cuh"
#include "cuda/sm90/decode_params.hpp"
#include "cuda/sm90/decode_schedule.hpp"

namespace sluice::cuda::sm90 {

inline constexpr int kSpanBytes = 2 * kSpanColumns;
inline constexpr int kWeightWarps =
    4;  // a warp issues 22 to 26 copies a microsecond, whatever one brings
// Floats of a slot's partial sums: 8 and a pad that keeps float2 writes and column reads apart.
inline constexpr int kPartialStride = 10;

/// A DecodeTiling by rows, up to kDecodeSpanTokens: weights by copies of rows, mma.sync.
template <class ElementType, int kTokenCount, int kRowCount, int kDepthCount, int kStageCount,
          int kNormRowCount = 0>
struct RowsConfig {
  using Element = ElementType;
  static constexpr bool kMeets = false;
  static constexpr int kTokens = kTokenCount;
  static constexpr int kRows = kRowCount;
  static constexpr int kDepth = kDepthCount;
  static constexpr int kStages = kStageCount;
  static constexpr bool kWeightBoxes = false;
  static constexpr int kNormRows = kNormRowCount;
  static constexpr bool kNorm = kNormRows > 0;
  static constexpr bool kActivationBoxes = kTokens > kDecodeRowTokens;
  static constexpr bool kTurns = false;
  static constexpr int kReaders = kConsumerWarps;  // of a stage
  // Consumer warps: groups of kTiles row tiles, and each group's shares of the columns. Two tiles a
  // warp where there are many: activations are read once for both.
  static constexpr int kTiles = kRows >= 4 * kMmaRows ? 2 : 1;
  static constexpr int kRowWarps = kRows / (kTiles * kMmaRows);
  static constexpr int kDepthWarps = kConsumerWarps / kRowWarps;
  static constexpr int kSlices = kTokens / kSliceTokens;
  static constexpr int kTokenBytes = kDepth * 2;
  static constexpr int kWeightRowBytes = kDepth * 2;
  static constexpr int kActivationsAt = 0;
  static constexpr int kNormWeightAt = kNormRows * kTokenBytes;
  static constexpr int kWeightsAt = (kNorm ? kNormRows + 1 : kTokens) * kTokenBytes;
  static constexpr int kStageBytes = (kWeightsAt + kRows * kWeightRowBytes + 1023) & ~1023;
  // A set of partial sums, and behind it those of the squares that a deferred norm needs.
  static constexpr int kSumFloats = kDepthWarps * kRows * kPartialStride;
  static constexpr int kPartialFloats = kSumFloats + (kNorm ? kDepthWarps * kSliceTokens : 0);
  static constexpr int kScratchBytes = 2 * kPartialFloats * 4;
  static_assert(kTokens % kSliceTokens == 0 && kDepth % (kSpanColumns * kDepthWarps) == 0);
  static_assert(kRows == kTiles * kRowWarps * kMmaRows && kRows <= 32 * kWeightWarps);
  static_assert(kDepthWarps * kRowWarps == kConsumerWarps);
  static_assert(!kNorm || kTokens <= kDecodeRowTokens);
};

inline constexpr int kWgmmaRows = 64;

/// A DecodeTiling by boxes: weights by boxes of 16 rows x 64 columns, wgmma.
template <class ElementType, int kTokenCount, int kRowCount, int kDepthCount, int kStageCount,
          int kNormRowCount = 0>
struct BoxesConfig {
  using Element = ElementType;
  static constexpr bool kMeets = false;
  static constexpr int kTokens = kTokenCount;
  static constexpr int kRows = kRowCount;
  static constexpr int kDepth = kDepthCount;
  static constexpr int kStages = kStageCount;
  static constexpr bool kWeightBoxes = true;
  static constexpr int kNormRows = kNormRowCount;
  static constexpr bool kNorm = kNormRows > 0;
  static constexpr bool kActivationBoxes = true;
  // 64 rows are one wgmma: the warpgroups take blocks of so many in turns, of twice as many half of
  // the rows each.
  static constexpr bool kTurns = kRows == kWgmmaRows;
  static constexpr int kReaders = kTurns ? kConsumerWarps / 2 : kConsumerWarps;  // of a stage
  static constexpr int kSpans = kDepth / kSpanColumns;
  static constexpr int kWeightsAt = 0;
  static constexpr int kActivationsAt = kRows * kDepth * 2;
  static constexpr int kNormWeightAt = kTokens * kDepth * 2;
  static constexpr int kStageBytes =
      (kActivationsAt + kNormWeightAt + (kNorm ? kDepth * 2 : 0) + 1023) & ~1023;
  // Sums that the CTAs of a cluster exchange, or, in a launch without clusters, those of the norm's
  // prologue. Not over the ring: who sends would wait until the others have read their last stages.
  // In gate_up with a deferred norm squares.
  static constexpr int kScratchBytes = kRows * kTokens * 4;
  static_assert(kScratchBytes >= 4 * kConsumerWarps && kScratchBytes >= 2 * kTokens * 4);
  static_assert(kTokens % (2 * kSliceTokens) == 0 && kRows % kMmaRows == 0 &&
                kDepth % kSpanColumns == 0);
  static_assert(kRows / kMmaRows * kSpans <= 32 * kWeightWarps);
  static_assert(kRows == kWgmmaRows || kRows == 2 * kWgmmaRows);
  // With a deferred norm the first half of the tokens is x's room, the second the residual's.
  static_assert(!kNorm || (kTurns && kNormRows == kTokens));
};

/// The same in a launch whose CTAs meet at grid barriers: with the norm's prologue, or with both
/// operators. A kernel of its own: its code between theirs cost the others time, most before their
/// first copy.
template <class Cfg>
struct Meeting : Cfg {
  static constexpr bool kMeets = true;
};

template <class Cfg>
inline constexpr int kUnitPairs = unit_size(Cfg::kWeightBoxes, true);
template <class Cfg>
inline constexpr int kUnitRows = unit_size(Cfg::kWeightBoxes, false);

template <class Cfg>
struct DecodeSmem {
  static constexpr int kBarriers = 2 * Cfg::kStages + 3;
  static constexpr int kBytes =
      Cfg::kStages * Cfg::kStageBytes + Cfg::kScratchBytes + kBarriers * 8;
  static_assert(kBytes <= 227 * 1024);

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
  __device__ std::uint64_t& ready(int i) const { return full(2 * Cfg::kStages + i); }
  __device__ std::uint64_t& exchanged() const { return ready(2); }
};

/// CTAs that fit an SM, of which each takes 1 KiB of its 228 KiB beside its own.
template <class Cfg>
inline constexpr int kResident = 2 * (DecodeSmem<Cfg>::kBytes + 1024) <= 228 * 1024 ? 2 : 1;

inline constexpr int kDecodeThreads = kConsumers + 32 * (kWeightWarps + 1);

/// The row slot of a stage, or box, that a lane of the weight warps brings: lane l of warp w has
/// 4 l + w.
__device__ __forceinline__ int weight_slot() {
  const unsigned warp = threadIdx.x / 32 - kConsumerWarps;
  return static_cast<int>(threadIdx.x % 32 * kWeightWarps + warp);
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
__device__ __forceinline__ int split_of(const DecodeParams& p) {
  return Cfg::kWeightBoxes && !Cfg::kMeets && !Cfg::kNorm ? p.split : 1;
}

// The phase that the launch has shares of: down, or gate_up where that is all.
template <class Cfg>
__device__ __forceinline__ DecodePhase last_phase(const DecodeParams& p, int columns) {
  const Group group(split_of<Cfg>(p));
  return p.shares.phase(group.index, group.rank, columns);
}

template <class Cfg>
__device__ __forceinline__ DecodePhase gate_up_phase(const DecodeParams& p) {
  if constexpr (Cfg::kMeets) {
    if (p.y.base != nullptr) {
      const UnitRange units = gate_up_beside_down(
          p.d, p.h, Cfg::kWeightBoxes, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
      return make_phase(units, Cfg::kRows / (2 * kUnitPairs<Cfg>), p.d, Cfg::kDepth);
    }
  }
  return last_phase<Cfg>(p, p.d);
}

template <class Cfg>
__device__ __forceinline__ DecodePhase down_phase(const DecodeParams& p) {
  return last_phase<Cfg>(p, p.h);
}

/// The phase that the launch begins with.
template <class Cfg>
__device__ __forceinline__ DecodePhase first_phase(const DecodeParams& p) {
  if constexpr (Cfg::kMeets) {
    return p.gate_up != 0 ? gate_up_phase<Cfg>(p) : down_phase<Cfg>(p);
  } else {
    return last_phase<Cfg>(p, p.gate_up != 0 ? p.d : p.h);
  }
}

}  // namespace sluice::cuda::sm90
