// SPDX-License-Identifier: Apache-2.0
// Weights in blocks as pairs of bf16: the integers of a block are bf16 exactly, so that its scale
// is all that is left to multiply with. Included by bf16_dots.cpp.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "math/block_types.hpp"

// After everything that may be inlined from the standard library.
#include "cpu/bf16_pairs-inl.hpp"

namespace sluice::cpu {
namespace {

constexpr std::uint16_t bf16_bits(int value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16);
}

template <class T, std::size_t kSize, class Value>
constexpr std::array<T, kSize> table_of(const Value& value) {
  std::array<T, kSize> out{};
  for (std::size_t i = 0; i < kSize; ++i) out[i] = static_cast<T>(value(static_cast<int>(i)));
  return out;
}
template <class Value>
constexpr auto word_table(const Value& value) {
  return table_of<std::uint16_t, 32>(value);
}
template <class Value>
constexpr auto byte_table(const Value& value) {
  return table_of<std::uint8_t, 64>(value);
}

// Which words of a step are the scales of its blocks, one for each of 16 lanes.
template <class Block, int kBlocks>
constexpr auto kScaleWords = word_table([](int i) {
  return i < 16 ? i / (16 / kBlocks) * static_cast<int>(sizeof(Block) / sizeof(std::uint16_t)) : 0;
});

// A nibble's weight, by the low five bits of a word: the fifth is the next nibble's.
constexpr auto kNibbleWeights = word_table([](int i) { return bf16_bits(i % 16 - 8); });
// The nibbles of block b come to lie in the b-th 128 bits; of the last block 6 bytes are here.
constexpr auto kNibbleBytes = byte_table([](int i) {
  const int at = i / 16 * static_cast<int>(sizeof(math::Q4_0)) + 2 + i % 16;
  return at < 64 ? at : 0;
});
// The low (kShift 0) or high bytes of the bf16 of kFirst and the 63 integers behind it.
template <int kFirst, int kShift>
constexpr auto kByteWeights = byte_table([](int i) {
  return bf16_bits(kFirst + i) >> kShift & 0xFF;
});

}  // namespace
}  // namespace sluice::cpu

HWY_PUSH_ATTRIBUTES(SLUICE_AVX512_BF16)
namespace sluice::cpu {
namespace {

// A constant that stays in a register: GCC would read it from memory at each use, and loads are
// what limits these loops.
inline __m512i constant(const void* table) {
  __m512i out = load(table);
  asm("" : "+v"(out));
  return out;
}

inline __m512i load_bytes(const char* p, std::int64_t n) {
  return _mm512_maskz_loadu_epi8(n < 64 ? (__mmask64{1} << n) - 1 : ~__mmask64{0}, p);
}

inline __m512 scales(__m512i step, __m512i words) {
  return _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_permutexvar_epi16(words, step)));
}

// Steps of kCols columns: `weights` are their integers in the order of pair_order(), `scale` what
// the sums in each lane are to be multiplied with. A last step may have fewer blocks; the others
// are anything finite, with a scale of zero. No byte behind them is read. in_order() puts the
// columns back into their own order, where a block is a vector.
class Q4_0Steps {
 public:
  static constexpr DType kDType = DType::kQ4_0;
  static constexpr std::int64_t kCols = 4 * kBlockElems;
  static constexpr int kVecs = 4;

  // Written out, as an implicit one would not be compiled for the target.
  Q4_0Steps()
      : scale_words_(constant(kScaleWords<math::Q4_0, 4>.data())),
        nibble_bytes_(constant(kNibbleBytes.data())),
        weights_(constant(kNibbleWeights.data())) {}

  void load_step(const char* p, __m512i (&weights)[kVecs], __m512& scale) const {
    const __m512i most = load(p);
    const auto* const rest = reinterpret_cast<const __m128i*>(p + 64);
    // The last 8 bytes of the last block.
    finish(most, _mm512_mask_broadcastq_epi64(nibbles(most), 0x80, _mm_loadl_epi64(rest)), weights,
           scale);
  }
  void load_last(const char* p, int blocks, __m512i (&weights)[kVecs], __m512& scale) const {
    const __m512i most = load_bytes(p, blocks * std::int64_t{sizeof(math::Q4_0)});
    finish(most, nibbles(most), weights, scale);
  }

  static void in_order(__m512i (&w)[kVecs]) {
    // Even bytes beside odd ones: 8 columns of each block, four times. Then those of each block.
    const __m512i a = _mm512_unpacklo_epi16(w[0], w[2]);
    const __m512i b = _mm512_unpackhi_epi16(w[0], w[2]);
    const __m512i c = _mm512_unpacklo_epi16(w[1], w[3]);
    const __m512i d = _mm512_unpackhi_epi16(w[1], w[3]);
    constexpr int kFirst = 0x44;  // the first two 128 bits of each
    constexpr int kLast = 0xEE;
    constexpr int kEven = 0x88;
    constexpr int kOdd = 0xDD;
    const __m512i ab01 = _mm512_shuffle_i32x4(a, b, kFirst);
    const __m512i ab23 = _mm512_shuffle_i32x4(a, b, kLast);
    const __m512i cd01 = _mm512_shuffle_i32x4(c, d, kFirst);
    const __m512i cd23 = _mm512_shuffle_i32x4(c, d, kLast);
    w[0] = _mm512_shuffle_i32x4(ab01, cd01, kEven);
    w[1] = _mm512_shuffle_i32x4(ab01, cd01, kOdd);
    w[2] = _mm512_shuffle_i32x4(ab23, cd23, kEven);
    w[3] = _mm512_shuffle_i32x4(ab23, cd23, kOdd);
  }

 private:
  [[nodiscard]] __m512i nibbles(__m512i step) const {
    return _mm512_permutexvar_epi8(nibble_bytes_, step);
  }
  void finish(__m512i step, __m512i nibbles, __m512i (&weights)[kVecs], __m512& scale) const {
    scale = scales(step, scale_words_);
    weights[0] = _mm512_permutexvar_epi16(nibbles, weights_);
    weights[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(nibbles, 4), weights_);
    weights[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(nibbles, 8), weights_);
    weights[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(nibbles, 12), weights_);
  }

  __m512i scale_words_;
  __m512i nibble_bytes_;
  __m512i weights_;
};

class Q8_0Steps {
 public:
  static constexpr DType kDType = DType::kQ8_0;
  static constexpr std::int64_t kCols = 2 * kBlockElems;
  static constexpr int kVecs = 2;

  Q8_0Steps()
      : scale_words_(constant(kScaleWords<math::Q8_0, 2>.data())),
        low_{constant(kByteWeights<0, 0>.data()), constant(kByteWeights<64, 0>.data())},
        high_{constant(kByteWeights<0, 8>.data()), constant(kByteWeights<64, 8>.data())},
        sign_(_mm512_set1_epi8(INT8_MIN)),
        high_of_128_(_mm512_set1_epi8(bf16_bits(128) >> 8)) {}

  void load_step(const char* p, __m512i (&weights)[kVecs], __m512& scale) const {
    // The second block begins two bytes, its scale, behind the first one's end.
    const __m512i q = _mm512_mask_loadu_epi64(load(p + 2), 0xF0, p + 4);
    finish(load(p), q, weights, scale);
  }
  void load_last(const char* p, int /*blocks: one*/, __m512i (&weights)[kVecs],
                 __m512& scale) const {
    finish(load_bytes(p, sizeof(math::Q8_0)), load_bytes(p + 2, kBlockElems), weights, scale);
  }

  static void in_order(__m512i (&w)[kVecs]) {
    const __m512i even = w[0];
    const __m512i first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    const __m512i second = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    w[0] = _mm512_permutex2var_epi64(even, first, w[1]);
    w[1] = _mm512_permutex2var_epi64(even, second, w[1]);
  }

 private:
  void finish(__m512i step, __m512i q, __m512i (&weights)[kVecs], __m512& scale) const {
    scale = scales(step, scale_words_);
    const __m512i magnitude = _mm512_abs_epi8(q);
    const __m512i low = _mm512_permutex2var_epi8(low_[0], magnitude, low_[1]);
    __m512i high = _mm512_permutex2var_epi8(high_[0], magnitude, high_[1]);
    high = _mm512_or_si512(high, _mm512_and_si512(q, sign_));
    // Of -128 the tables have seen 0: its low byte is right.
    high = _mm512_mask_add_epi8(high, _mm512_movepi8_mask(magnitude), high, high_of_128_);
    weights[0] = _mm512_unpacklo_epi8(low, high);
    weights[1] = _mm512_unpackhi_epi8(low, high);
  }

  __m512i scale_words_;
  __m512i low_[2];
  __m512i high_[2];
  __m512i sign_;
  __m512i high_of_128_;
};

}  // namespace
}  // namespace sluice::cpu
HWY_POP_ATTRIBUTES
