// SPDX-License-Identifier: Apache-2.0
// Dot products of weight rows in blocks with a few tokens in fixed point (fixed_point.hpp): the
// integers of a block are multiplied as they are, and its sum, an exact one, by the product of the
// two scales. Included once per SIMD target that can.
//
// A block of q4_0 takes 9 vector instructions: bytes to words, and, shift, two vpmaddwd, two sums
// of integers, a conversion and an FMA. Vectors have 256 bits everywhere: wider ones take a shuffle
// more a block, and probably shut a vector port of Intel's while they are under way.
#if defined(SLUICE_CPU_DECODE_FIXED_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_DECODE_FIXED_INL
#undef SLUICE_CPU_DECODE_FIXED_INL
#else
#define SLUICE_CPU_DECODE_FIXED_INL
#endif

#include <algorithm>
#include <bit>
#include <iterator>

#include "cpu/decode_blocks-inl.hpp"
#include "cpu/fixed_point.hpp"
#include "math/block_types.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

using FixedSums = hn::CappedTag<float, FixedBlock::kLanes>;
using FixedInts = hn::RebindToSigned<FixedSums>;
using FixedWords = hn::Repartition<std::int16_t, FixedInts>;

HWY_INLINE hn::Vec<FixedInts> add_products(hn::Vec<FixedInts> sum, hn::Vec<FixedWords> a,
                                           hn::Vec<FixedWords> b) {
  auto unused = hn::Zero(FixedInts());  // on x86 the first sum takes all of them
  return hn::ReorderWidenMulAccumulate(FixedInts(), a, b, sum, unused);
}

// words[v] = columns [16 v, 16 v + 16) of a block: q8_0's integers, q4_0's nibbles.
template <class T>
HWY_INLINE void load_integers(const char* block, hn::Vec<FixedWords> (&words)[2]) {
  const FixedWords d;
  const char* const q = block + offsetof(T, q);
  if constexpr (T::kDType == DType::kQ8_0) {
    const hn::Rebind<std::int8_t, FixedWords> narrow;
    const auto* const at = reinterpret_cast<const std::int8_t*>(q);
    words[0] = hn::PromoteTo(d, hn::LoadU(narrow, at));
    words[1] = hn::PromoteTo(d, hn::LoadU(narrow, at + 16));
  } else {
    const hn::Rebind<std::uint8_t, FixedWords> narrow;
    const auto* const at = reinterpret_cast<const std::uint8_t*>(q);
    const auto bytes = hn::PromoteTo(d, hn::LoadU(narrow, at));
    words[0] = hn::And(bytes, hn::Set(d, 0xF));
    words[1] = hn::ShiftRight<4>(bytes);
  }
}

// How a group's blocks meet tokens in fixed point. A lane's sum of products is at most 2^24 in
// magnitude (4 · 128 · 2^15), so fp32 holds it exactly.
template <class T, int kRows, int kTokens>
class FixedProducts {
 public:
  using D = FixedSums;
  using Tokens = FixedRows;

  explicit FixedProducts(const FixedRows& tokens) : tokens_(tokens) {}

  HWY_INLINE void load_scales(int buffer, int i, const RunPosition<T, kRows>& run) {
    const D d;
    ScaleRun<T, D> weights;
    weights.load(run.row(i), run.blocks());
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
      const float* const x = tokens_.scales(t) + run.k / kBlockElems;
      for (int b = 0; b < kScaleRun; b += FixedBlock::kLanes) {
        hn::Store(hn::Mul(hn::Load(d, weights.d + b), hn::LoadU(d, x + b)), d,
                  scales_[buffer][i][t] + b);
      }
    }
  }
  HWY_INLINE void add_block(int buffer, const char* const (&line)[kRows], std::int64_t k, int b,
                            hn::Vec<D> (&sum)[kRows][kTokens]) const {
    const D d;
    const FixedInts di;
    const FixedWords dw;
    hn::Vec<FixedWords> w[kRows][2];
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const FixedBlock& x = tokens_.blocks(t)[k / kBlockElems + b];
      const auto low = hn::Load(dw, x.q);
      const auto high = hn::Load(dw, x.q + 16);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        if (t == 0) load_integers<T>(line[i] + b * sizeof(T), w[i]);
        auto products = T::kDType == DType::kQ4_0 ? hn::Load(di, x.nibble_shift) : hn::Zero(di);
        products = add_products(add_products(products, w[i][0], low), w[i][1], high);
        sum[i][t] =
            hn::MulAdd(hn::ConvertTo(d, products), hn::Set(d, scales_[buffer][i][t][b]), sum[i][t]);
      }
    }
  }

 private:
  FixedRows tokens_;
  alignas(64) float scales_[2][kRows][kTokens][kScaleRun];
};

template <class T>
void fixed_dots_of_blocks(const void* const* lines, int count, const FixedRows& x, int tokens,
                          std::int64_t k, float* out, std::int64_t ldo) {
  dot_blocks<FixedProducts, T>(lines, count, x, tokens, k, out, ldo);
}

// A block as it is, with a scale that takes it out of every sum.
inline void keep_block(const float* x, DType dtype, FixedBlock& block, float& scale) {
  scale = kKept;
  for (std::int64_t j = 0; j < kBlockElems; ++j) {
    math::store(&block.q[j], dtype, static_cast<double>(x[j]));
  }
  std::fill(std::begin(block.nibble_shift), std::end(block.nibble_shift), 0);
}

inline bool has_two_nonzero(const float* x) {
  return std::count_if(x, x + kBlockElems, [](float v) { return v != 0; }) > 1;
}

inline void to_fixed(const float* x, std::int64_t n, DType dtype, FixedBlock* blocks,
                     float* scales) {
  const FixedSums d;
  const FixedInts di;
  const FixedWords dw;
  const hn::Rebind<std::int16_t, FixedInts> half;
  constexpr std::int64_t kVec = FixedBlock::kLanes;
  for (std::int64_t b = 0; b < n / kBlockElems; ++b, x += kBlockElems) {
    auto largest = hn::Zero(di);
    for (std::int64_t j = 0; j < kBlockElems; j += kVec) {
      largest = hn::Max(largest, hn::BitCast(di, hn::Abs(hn::LoadU(d, x + j))));
    }
    const auto bits = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
    FixedBlock& block = blocks[b];
    if (HWY_UNLIKELY(bits >= 0x7F800000U)) {
      keep_block(x, dtype, block, scales[b]);
      continue;
    }
    scales[b] = fixed_scale(bits);
    const float factor = 1.0F / scales[b];
    auto magnitudes = hn::Zero(d);
    for (std::int64_t j = 0; j < kBlockElems; j += kVec) {
      const auto v = hn::Mul(hn::LoadU(d, x + j), hn::Set(d, factor));
      magnitudes = hn::Add(magnitudes, hn::Abs(v));
      hn::Store(hn::DemoteTo(half, hn::NearestInt(v)), half, block.q + j);
    }
    // In units, so that no sum overflows. A lone element is as well off in fixed point.
    const float top = std::bit_cast<float>(bits) * factor;
    const float others = hn::GetLane(hn::SumOfLanes(d, magnitudes)) - top;
    if (HWY_UNLIKELY(math::dwarfs_others(top, others)) && has_two_nonzero(x)) {
      keep_block(x, dtype, block, scales[b]);
      continue;
    }
    const auto eight = hn::Set(dw, -8);
    const auto low = add_products(hn::Zero(di), hn::Load(dw, block.q), eight);
    hn::Store(add_products(low, hn::Load(dw, block.q + 16), eight), di, block.nibble_shift);
  }
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
