// SPDX-License-Identifier: Apache-2.0
// The decode kernel's deferred norm. n = r s (w + offset) with one s = 1 / sqrt(mean(r^2) + eps) a
// token: gate_up multiplies r (w + offset), which needs no other column, sums the squares of r
// meanwhile, and multiplies the finished sums by s. So no product waits for a row's sum, and no
// launch stands before this one. docs/kernels/mlp_decode.md, section 5.
//
// stage    weights | activations: spans of { x: 8 tokens x 64 | the residual: as many }, 128-byte
//          swizzle | the norm's weight, which comes with the weights before anybody waits
// scratch  squares, [warpgroup][token]
#pragma once

#include <cuda_bf16.h>

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "cuda/ptx/prefetch.cuh"
#include "cuda/ptx/tensor_store.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/sm90/decode/policy.cuh"
#include "cuda/tile/vector8.cuh"

namespace sluice::cuda::sm90::decode {

inline constexpr int kNormBarrier = 4;  // named, of each warpgroup of boxes

/// A layer's weights have streamed through L2 since the residual was there last. Asks for it before
/// it may be read, each CTA for other lines. One warp.
__device__ __forceinline__ void prefetch_residual(const Params& p) {
  constexpr int kLineBytes = 128;
  const RowMajor& residual = p.norm.residual;
  if (residual.base == nullptr) return;
  const int line = static_cast<int>(blockIdx.x) * 32 + static_cast<int>(threadIdx.x) % 32;
  const int step = static_cast<int>(gridDim.x) * 32;
  for (int at = line * kLineBytes; at < p.d * 2; at += step * kLineBytes) {
    for (int token = 0; token < p.m; ++token) {
      ptx::prefetch_l2(residual.base + token * residual.row_bytes + at);
    }
  }
}

/// f on the pairs of bf16 columns of units of eight.
template <class F, std::same_as<uint4>... Units>
__device__ __forceinline__ uint4 on_pairs(const F& f, const Units&... units) {
  uint4 out;
  const auto pair = [](const std::uint32_t& word) {
    return reinterpret_cast<const __nv_bfloat162&>(word);
  };
  const auto set = [](std::uint32_t& word, __nv_bfloat162 value) {
    word = reinterpret_cast<const std::uint32_t&>(value);
  };
  set(out.x, f(pair(units.x)...));
  set(out.y, f(pair(units.y)...));
  set(out.z, f(pair(units.z)...));
  set(out.w, f(pair(units.w)...));
  return out;
}

// r, by one warpgroup of each CTA that waits for its turn. No CTA may read what this overwrites:
// run() refuses an x_sum over x or the residual.
// NOTE: not by who has r at hand. It passes a fence before each stage, which waits for its stores:
// 3 to 7 % of a small model's layer. Nor by down, whose end they lengthen: 0.5 to 4 %.
__device__ __forceinline__ void store_sum(const Params& p) {
  using Element = __nv_bfloat16;
  if (p.norm.r.base == nullptr) return;
  constexpr int kThreads = 128;
  const int units = p.d / 8;
  const int ctas = static_cast<int>(gridDim.x);
  const int first = static_cast<int>(threadIdx.x) % kThreads * ctas + static_cast<int>(blockIdx.x);
  for (int i = first; i < p.m * units; i += kThreads * ctas) {
    const int token = i / units;
    const int column = i % units * 8;
    auto r = Vector8<Element>::load(element_at<Element>(p.x, token, column));
    if (p.norm.residual.base != nullptr) {
      const auto add = Vector8<Element>::load(element_at<Element>(p.norm.residual, token, column));
#pragma unroll
      for (int k = 0; k < 8; ++k) r.at[k] += add.at[k];
      r.round();
    }
    r.store(element_at<Element>(p.norm.r, token, column));
  }
}

// The B operand of wgmma: boxes of tokens as they lie in a stage.
struct PlainBoxes {
  __device__ __forceinline__ explicit PlainBoxes(const Params&) {}
  // What only a deferred norm has to do.
  static __device__ __forceinline__ void normalise(const Params&, char*, int) {}
  static __device__ __forceinline__ void finish_squares(const Params&, float*) {}
  static __device__ __forceinline__ float scale(int, int) { return 1; }
};

// With a deferred norm the warpgroup that multiplies a stage writes r (w + offset) over its x
// before. A thread has the same columns and tokens of all stages; it sums their squares in its
// first block, since all blocks of a CTA have the same tokens.
template <class Cfg>
class NormedBoxes {
  using Element = typename Cfg::Element;
  static_assert(std::is_same_v<Element, __nv_bfloat16>);

  static constexpr int kThreads = 128;
  static constexpr int kTokens = Cfg::kTokens / 2;
  static constexpr int kUnits = Cfg::kDepth / 8;   // of 16 bytes, of a token
  static constexpr int kStep = kThreads / kUnits;  // tokens between those of a thread
  static constexpr int kEach = kTokens / kStep;
  static_assert(32 % kUnits == 0 && kTokens % kStep == 0);
  static_assert(kTokens == kSliceTokens);  // the residual lies under the same swizzle

 public:
  __device__ __forceinline__ explicit NormedBoxes(const Params& p)
      : offset_mask_(p.norm.weight_offset != 0 ? ~0U : 0U),
        adds_(p.norm.residual.base != nullptr),
        unit_(static_cast<int>(threadIdx.x) % kUnits),
        token_(static_cast<int>(threadIdx.x) % kThreads / kUnits) {}

  /// Chunk `c`, whose activations and norm's weight these are; all threads of the warpgroup meet.
  __device__ __forceinline__ void normalise(const Params& p, char* activations, int c) {
    // All loads are under way before the first is waited for. What is not there is 0.
    const auto load = [](const char* at, bool there) {
      return there ? *reinterpret_cast<const uint4*>(at) : uint4{};
    };
    const bool inside = c * Cfg::kDepth + unit_ * 8 < p.d;
    const uint4 weight = load(activations + Cfg::kNormWeightAt + unit_ * 16, inside);
    char* at[kEach];
    uint4 x[kEach];
    uint4 residual[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int token = token_ + i * kStep;
      at[i] =
          activations + (unit_ / 8 * Cfg::kTokens + token) * kSpanBytes + (unit_ % 8 ^ token) * 16;
      x[i] = load(at[i], token < p.m);
      residual[i] = load(at[i] + kTokens * kSpanBytes, token < p.m && adds_);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const uint4 r = on_pairs([](auto a, auto b) { return __hadd2_rn(a, b); }, x[i], residual[i]);
      if (sums_squares_) add_squares(r, squares_[i]);
      // The offset is 0 or 1: r w + r has one rounding too.
      const uint4 normed = on_pairs(
          [this](auto a, auto w) {
            const std::uint32_t offset = reinterpret_cast<const std::uint32_t&>(a) & offset_mask_;
            return __hfma2(a, w, reinterpret_cast<const __nv_bfloat162&>(offset));
          },
          r, weight);
      if (token_ + i * kStep < p.m) *reinterpret_cast<uint4*>(at[i]) = normed;
    }
    ptx::fence_shared_for_async();
    meet();
  }

  /// Behind a warpgroup's first block: the squares of each token over its columns, and from them
  /// scale(). `sums`: of each warpgroup kTokens.
  __device__ __forceinline__ void finish_squares(const Params& p, float* sums) {
    if (!sums_squares_) return;
    sums_squares_ = false;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    sums += warpgroup() * kTokens;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int distance = kUnits / 2; distance > 0; distance /= 2) {
        squares_[i] += __shfl_xor_sync(0xFFFFFFFFU, squares_[i], distance);
      }
      if (lane % kUnits == 0) sums[token_ + i * kStep] = squares_[i];
    }
    meet();
#pragma unroll
    for (int behind = 0; behind < 2; ++behind) {
      const float sum = sums[lane % 4 * 2 + behind];
      scale_[behind] = rsqrtf(sum / static_cast<float>(p.d) + p.norm.eps);
    }
  }

  /// Of this thread's first (`behind` 0) or second token of slice 0; the next has none.
  [[nodiscard]] __device__ __forceinline__ float scale(int /*slice*/, int behind) const {
    return scale_[behind];
  }

 private:
  static __device__ __forceinline__ int warpgroup() {
    return static_cast<int>(threadIdx.x) / kThreads;
  }
  static __device__ __forceinline__ void meet() {
    ptx::named_barrier_sync(kNormBarrier + warpgroup(), kThreads);
  }

  // Columns in their order.
  static __device__ __forceinline__ void add_squares(const uint4& r, float& sum) {
    const auto add = [&](const std::uint32_t& word) {
      const float2 pair = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(word));
      sum = fmaf(pair.x, pair.x, sum);
      sum = fmaf(pair.y, pair.y, sum);
    };
    add(r.x);
    add(r.y);
    add(r.z);
    add(r.w);
  }

  std::uint32_t offset_mask_;
  bool adds_;
  int unit_;
  int token_;  // the first
  bool sums_squares_ = true;
  float squares_[kEach] = {};
  float scale_[2] = {};
};

template <class Cfg>
using BoxTokens = std::conditional_t<Cfg::kNorm, NormedBoxes<Cfg>, PlainBoxes>;

}  // namespace sluice::cuda::sm90::decode
