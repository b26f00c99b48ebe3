// SPDX-License-Identifier: Apache-2.0
// AVX-512 BF16 in intrinsics, as Highway 1.0.3 has no such target: what the files of
// SimdTarget::kAvx512Bf16 share. Comes after every header whose functions may be inlined there.
//
// vdpbf16ps adds two products to each fp32 lane: first the odd element's, then the even one's, each
// by a fused multiply-add that rounds to nearest even. It takes subnormal elements as zeros,
// flushes subnormal sums to zero and ignores MXCSR (Intel SDM, VDPBF16PS; the order was tried on
// Zen 5).
#pragma once

#include <cstdint>

#include "cpu/simd_targets.hpp"
#include "hwy/base.h"

// GCC bug 105593: undefined vectors inside of intrinsics.
#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif

// What cpu_device() asks the processor for.
#define SLUICE_AVX512_BF16 "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16"

HWY_PUSH_ATTRIBUTES(SLUICE_AVX512_BF16)
namespace sluice::cpu {
namespace {

constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kPairLanes = 2 * kLanes;  // elements of a vector

inline __m512 add_pairs(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

inline __m512i load(const void* p) { return _mm512_loadu_si512(p); }

}  // namespace
}  // namespace sluice::cpu
HWY_POP_ATTRIBUTES
