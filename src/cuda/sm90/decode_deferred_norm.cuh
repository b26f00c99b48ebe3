// SPDX-License-Identifier: Apache-2.0
// The decode kernel's deferred norm. n = r s (w + offset) with one s = 1 / sqrt(mean(r^2) + eps) a
// token: gate_up multiplies r (w + offset), which needs no other column, sums the squares of r
// meanwhile, and multiplies the finished sums by s. So no product waits for a row's sum, and no
// launch stands before this one. docs/kernels/mlp_decode.md, section 5.
//
// stage    activations: m rows of x, m of the residual where there is one; then, behind kNormRows
//          rows, the norm's weight, which comes with the weights before anybody waits | weights
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/prefetch.cuh"
#include "cuda/sm90/decode_span.cuh"

namespace sluice::cuda::sm90 {

/// Rows of activations of a stage of gate_up.
template <class Cfg>
__device__ __forceinline__ int activation_rows(const DecodeParams& p) {
  if constexpr (!Cfg::kNorm) return p.m;
  return (p.norm.residual.base != nullptr ? 2 : 1) * p.m;
}

/// Row `i` of them.
template <class Cfg>
__device__ __forceinline__ const char* activation_row(const DecodeParams& p, int i) {
  const RowMajor& residual = p.norm.residual;
  if (Cfg::kNorm && i >= p.m) {
    return static_cast<const char*>(residual.base) + (i - p.m) * residual.row_bytes;
  }
  return static_cast<const char*>(p.x.base) + i * p.x.row_bytes;
}

/// A layer's weights have streamed through L2 since the residual was there last. Asks for it before
/// it may be read, each CTA for other lines. One warp.
__device__ __forceinline__ void prefetch_residual(const DecodeParams& p) {
  constexpr int kLineBytes = 128;
  const RowMajor& residual = p.norm.residual;
  if (residual.base == nullptr) return;
  const int line = static_cast<int>(blockIdx.x) * 32 + static_cast<int>(threadIdx.x) % 32;
  const int step = static_cast<int>(gridDim.x) * 32;
  for (int at = line * kLineBytes; at < p.d * 2; at += step * kLineBytes) {
    for (int token = 0; token < p.m; ++token) {
      ptx::prefetch_l2(static_cast<const char*>(residual.base) + token * residual.row_bytes + at);
    }
  }
}

/// f on pairs of bf16 columns of a lane's share of a span.
template <class F, class... Rows>
__device__ __forceinline__ SpanRow on_pairs(const F& f, const Rows&... rows) {
  SpanRow out;
  const auto pair = [](const std::uint32_t& word) {
    return reinterpret_cast<const __nv_bfloat162&>(word);
  };
  const auto set = [](std::uint32_t& word, __nv_bfloat162 value) {
    word = reinterpret_cast<const std::uint32_t&>(value);
  };
  set(out.low.x, f(pair(rows.low.x)...));
  set(out.low.y, f(pair(rows.low.y)...));
  set(out.low.z, f(pair(rows.low.z)...));
  set(out.low.w, f(pair(rows.low.w)...));
  set(out.high.x, f(pair(rows.high.x)...));
  set(out.high.y, f(pair(rows.high.y)...));
  set(out.high.z, f(pair(rows.high.z)...));
  set(out.high.w, f(pair(rows.high.w)...));
  return out;
}

// The B operand: r (w + offset), rounded once behind r. The first row tile's warps also sum the
// squares of r, once: all blocks of a CTA have the same tokens.
template <class Cfg>
class NormedTokens {
  using Element = typename Cfg::Element;
  static_assert(std::is_same_v<Element, __nv_bfloat16>);

 public:
  __device__ __forceinline__ explicit NormedTokens(const DecodeParams& p)
      : residual_at_(p.m * Cfg::kTokenBytes),
        offset_mask_(p.norm.weight_offset != 0 ? ~0U : 0U),
        sums_squares_(static_cast<int>(threadIdx.x) / 32 < Cfg::kDepthWarps) {
    const bool is_token = static_cast<int>(threadIdx.x) % 32 / 4 < p.m;
    x_units_ = is_token ? kSpanUnits : 0;
    residual_units_ = is_token && p.norm.residual.base != nullptr ? kSpanUnits : 0;
  }

  // Without a branch: all loads are under way before the first is waited for. What is not there is
  // 0.
  __device__ __forceinline__ SpanRow operand(const char* activations, const char* row, int at,
                                             int units, int /*swizzle*/) {
    const SpanRow x = SpanRow::load(row + at, min(units, x_units_));
    const SpanRow residual = SpanRow::load(row + residual_at_ + at, min(units, residual_units_));
    const SpanRow weight = SpanRow::load(activations + Cfg::kNormWeightAt + at, units);
    const SpanRow r = on_pairs([](auto a, auto b) { return __hadd2_rn(a, b); }, x, residual);
    if (sums_squares_) add_squares(r);
    // The offset is 0 or 1: r w + r has one rounding too.
    return on_pairs(
        [this](auto a, auto w) {
          const std::uint32_t offset = reinterpret_cast<const std::uint32_t&>(a) & offset_mask_;
          return __hfma2(a, w, reinterpret_cast<const __nv_bfloat162&>(offset));
        },
        r, weight);
  }

  /// This warp's sums behind the first block, for the others to read: [depth warp][token].
  __device__ __forceinline__ void write_squares(float* squares) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int token = lane / 4;
    if (sums_squares_ && lane % 4 == token / 2) {
      squares[warp * kSliceTokens + token] = token % 2 == 0 ? products_[0] : products_[1];
    }
    sums_squares_ = false;
  }

  /// The sums of all, in the order of the warps, for scale() of the token whose results this thread
  /// stores.
  __device__ __forceinline__ void read_squares(const DecodeParams& p, const float* squares,
                                               int token) {
    if (token >= p.m) return;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < Cfg::kDepthWarps; ++w) sum += squares[w * kSliceTokens + token];
    scale_ = rsqrtf(sum / static_cast<float>(p.d) + p.norm.eps);
  }

  [[nodiscard]] __device__ __forceinline__ float scale() const { return scale_; }

 private:
  // r rT by the tensor cores: a lane's columns of r as B are, with zeros for rows 8 to 15, those of
  // A, and the diagonal is what is wanted.
  __device__ __forceinline__ void add_squares(const SpanRow& r) {
#pragma unroll
    for (int step = 0; step < kSpanColumns / 16; ++step) {
      const uint2 b = r.step(step);
      const std::uint32_t a[4] = {b.x, 0, b.y, 0};
      ptx::mma_m16n8k16<Element>(products_, a, b.x, b.y);
    }
  }

  static constexpr int kSpanUnits = kSpanBytes / 16;
  int residual_at_;  // bytes from a token's row of x to that of the residual
  std::uint32_t offset_mask_;
  bool sums_squares_;
  int x_units_;  // of a span that this lane reads
  int residual_units_;
  float products_[4] = {};
  float scale_ = 0;
};

template <class Cfg>
using Tokens = std::conditional_t<Cfg::kNorm, NormedTokens<Cfg>, PlainTokens<Cfg>>;

}  // namespace sluice::cuda::sm90
