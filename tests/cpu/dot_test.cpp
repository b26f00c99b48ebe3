// SPDX-License-Identifier: Apache-2.0
// Dot products of every target on small integers, where every sum is exact, for every number of
// rows, tokens and tail; and that a row's sum does not depend on the rows beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/blocking.hpp"
#include "harness/quantise.hpp"
#include "math/block_types.hpp"
#include "targets.hpp"

namespace sluice::cpu {
namespace {

struct Operands {
  Operands(DType dtype, int rows, int tokens, std::int64_t k, bool integers) {
    stride = round_up(k, kMaxLanes);
    std::uint64_t state = 1;
    const auto next = [&] {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      const auto v = static_cast<double>(state >> 40) * 0x1p-24 - 0.5;
      return integers ? std::floor(v * 8) : v;
    };
    for (int i = 0; i < rows; ++i) {
      // Of its very size each, for AddressSanitizer.
      auto& row = weights.emplace_back(static_cast<std::size_t>(bytes_of(dtype, k)));
      for (std::int64_t j = 0; j < k; j += block_elems(dtype)) {
        unsigned char* const to = row.data() + bytes_of(dtype, j);
        if (!is_block_type(dtype)) {
          math::store(to, dtype, next());
          continue;
        }
        std::array<float, kBlockElems> values{};
        for (float& v : values)
          v = static_cast<float>(integers ? std::clamp(next(), -1.0, 1.0) : next());
        if (integers) {
          harness::encode_units(dtype, values, static_cast<int>((i + j / kBlockElems) % 3), to);
        } else {
          harness::quantise_block(dtype, values, to);
        }
      }
    }
    for (const auto& row : weights) lines.push_back(row.data());
    // Looked ahead at, never read: no address will do better than a bad one.
    lines.resize(lines.size() + DotKernels::kAheadLines);
    x.resize(static_cast<std::size_t>(stride * tokens));
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t j = 0; j < k; ++j) {
        x[static_cast<std::size_t>(t * stride + j)] = static_cast<float>(next());
      }
    }
  }
  [[nodiscard]] double weight(DType dtype, std::size_t row, std::int64_t col) const {
    return math::load(weights[row].data() + bytes_of(dtype, col), dtype, col);
  }

  std::vector<std::vector<unsigned char>> weights;
  std::vector<const void*> lines;
  std::vector<float> x;
  std::int64_t stride = 0;
};

class Dot : public testing::TestWithParam<SimdTarget> {};

constexpr DType kBlockTypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1};

// Sums of integers, which any order gives exactly, and -1 in the gap behind each token's rows.
void expect_products(const Operands& data, DType dtype, int rows, int tokens, std::int64_t k,
                     const std::vector<float>& out, std::int64_t ldo) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = 0; i < ldo; ++i) {
      double expected = i < rows ? 0 : -1;
      for (std::int64_t j = 0; i < rows && j < k; ++j) {
        expected += data.weight(dtype, static_cast<std::size_t>(i), j) *
                    static_cast<double>(data.x[static_cast<std::size_t>(t * data.stride + j)]);
      }
      ASSERT_EQ(static_cast<double>(out[static_cast<std::size_t>(t * ldo + i)]), expected)
          << to_string(dtype) << " rows " << rows << " tokens " << tokens << " k " << k << " at "
          << t << ", " << i;
    }
  }
}

void expect_exact(const DotKernels& kernels, DType dtype, const std::vector<std::int64_t>& widths) {
  for (const int rows : {1, 2, 3, 7, 8, 9, 21, 43}) {
    for (const int tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16}) {
      for (const std::int64_t k : widths) {
        if (k > 100 && rows != 9) continue;
        const Operands data(dtype, rows, tokens, k, true);
        const std::int64_t ldo = rows + 3;
        std::vector<float> out(static_cast<std::size_t>(ldo * tokens), -1.0F);
        kernels.dots[static_cast<std::size_t>(dtype)](data.lines.data(), rows, data.x.data(),
                                                      data.stride, tokens, k, out.data(), ldo);
        ASSERT_NO_FATAL_FAILURE(expect_products(data, dtype, rows, tokens, k, out, ldo));
      }
    }
  }
}

TEST_P(Dot, ExactForAllRowsTokensAndTails) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    expect_exact(dot_kernels(GetParam()), dtype, {1, 3, 15, 16, 17, 40, 4096, 4097, 8199});
  }
}

// Runs of 16 blocks, sums of 8 runs: both sides of each edge.
TEST_P(Dot, ExactForAllRowsTokensAndBlocks) {
  for (const DType dtype : kBlockTypes) {
    expect_exact(dot_kernels(GetParam()), dtype, {32, 64, 480, 512, 544, 4096, 4128, 8736});
  }
}

// Every byte that a block may hold, with a scale of either sign, next to scales that are special.
TEST_P(Dot, BlocksMayHoldAnything) {
  constexpr std::uint16_t kScales[] = {0x3C00, 0xB800, 0x0001, 0x83FF,
                                       0x7BFF, 0x7C00, 0xFC00, 0x7E00};
  constexpr std::size_t kColumn = 7;
  for (const DType dtype : kBlockTypes) {
    const auto block_bytes = static_cast<std::size_t>(size_bytes(dtype));
    for (const std::uint16_t scale : kScales) {
      for (int byte = 0; byte < 256; ++byte) {
        std::vector<unsigned char> row(block_bytes, static_cast<unsigned char>(byte));
        std::memcpy(row.data(), &scale, sizeof(scale));
        const std::uint16_t least = 0xC100;  // -2.5
        if (dtype == DType::kQ4_1) std::memcpy(row.data() + 2, &least, sizeof(least));
        std::vector<float> x(kBlockElems, 0.0F);
        x[kColumn] = 1.0F;
        const void* const lines[1 + DotKernels::kAheadLines] = {row.data()};
        float got = 0;
        dot_kernels(GetParam())
            .dots[static_cast<std::size_t>(dtype)](lines, 1, x.data(), kBlockElems, 1, kBlockElems,
                                                   &got, 1);
        const double expected = math::load(row.data(), dtype, kColumn);
        if (std::isfinite(math::load(row.data(), dtype, 0) + expected) &&
            (scale & 0x7C00) != 0x7C00) {
          ASSERT_EQ(static_cast<double>(got), expected)
              << to_string(dtype) << " scale " << scale << " byte " << byte;
        } else {  // the other columns are infinity times 0
          ASSERT_TRUE(std::isnan(got)) << to_string(dtype) << " scale " << scale;
        }
      }
    }
  }
}

TEST_P(Dot, BitsDoNotDependOnTheRowsBeside) {
  for (const DType dtype : {DType::kBF16, DType::kQ8_0, DType::kQ4_1}) {
    const DotKernels& kernels = dot_kernels(GetParam());
    const auto dots = kernels.dots[static_cast<std::size_t>(dtype)];
    constexpr int kRows = 21;
    const std::int64_t kK = is_block_type(dtype) ? 5024 : 5003;
    for (const int tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12}) {
      const Operands data(dtype, kRows, tokens, kK, false);
      std::vector<float> together(static_cast<std::size_t>(kRows * tokens));
      dots(data.lines.data(), kRows, data.x.data(), data.stride, tokens, kK, together.data(),
           kRows);
      for (std::size_t i = 0; i < kRows; ++i) {
        std::vector<float> alone(static_cast<std::size_t>(tokens));
        dots(data.lines.data() + i, 1, data.x.data(), data.stride, tokens, kK, alone.data(), 1);
        for (std::size_t t = 0; t < alone.size(); ++t) {
          ASSERT_EQ(together[t * kRows + i], alone[t]) << "row " << i << " token " << t;
        }
      }
    }
  }
}

// The token of `data` in the type of the weights, zeros behind it.
std::vector<std::uint16_t> own_token(const Operands& data, DType dtype) {
  std::vector<std::uint16_t> out(data.x.size());
  for (std::size_t j = 0; j < out.size(); ++j) {
    math::store(&out[j], dtype, static_cast<double>(data.x[j]));
  }
  return out;
}

TEST_P(Dot, OneTokenOfTheWeightsTypeIsExactForAllRowsAndTails) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const auto dots = dot_kernels(GetParam()).own_dots[static_cast<std::size_t>(dtype)];
    for (const int rows : {1, 2, 3, 15, 16, 17, 43}) {
      for (const std::int64_t k : {1, 3, 15, 16, 17, 63, 64, 65, 200, 4097, 8199}) {
        const Operands data(dtype, rows, 1, k, true);
        const auto x = own_token(data, dtype);
        std::vector<float> out(static_cast<std::size_t>(rows + 3), -1.0F);
        dots(data.lines.data(), rows, x.data(), k, out.data());
        ASSERT_NO_FATAL_FAILURE(expect_products(data, dtype, rows, 1, k, out, rows + 3));
      }
    }
  }
}

// Widening is exact, so that only the order of a long row's sum may tell the two apart.
TEST_P(Dot, OneTokenOfTheWeightsTypeHasTheBitsOfAWidenedOne) {
  constexpr int kRows = 21;
  constexpr std::int64_t kK = 4093;
  const DotKernels& kernels = dot_kernels(GetParam());
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const auto type = static_cast<std::size_t>(dtype);
    Operands data(dtype, kRows, 1, kK, false);
    const auto x = own_token(data, dtype);
    for (std::size_t j = 0; j < x.size(); ++j) {
      data.x[j] = static_cast<float>(math::load(&x[j], dtype, 0));
    }
    std::vector<float> own(kRows);
    std::vector<float> widened(kRows);
    kernels.own_dots[type](data.lines.data(), kRows, x.data(), kK, own.data());
    kernels.dots[type](data.lines.data(), kRows, data.x.data(), data.stride, 1, kK, widened.data(),
                       kRows);
    ASSERT_EQ(own, widened) << to_string(dtype);
    for (std::size_t i = 0; i < kRows; ++i) {
      float alone = 0;
      kernels.own_dots[type](data.lines.data() + i, 1, x.data(), kK, &alone);
      ASSERT_EQ(own[i], alone) << "row " << i;
    }
  }
}

constexpr DType kFixedTypes[] = {DType::kQ8_0, DType::kQ4_0};

// Tokens in fixed point, `stride` elements apart.
class Fixed {
 public:
  Fixed(const DotKernels& kernels, const std::vector<float>& x, std::int64_t stride, int tokens,
        std::int64_t k, DType dtype = DType::kBF16)
      : data_(static_cast<std::size_t>(FixedRows::stride_bytes(k) * tokens) / sizeof(Line)),
        rows_(data_.data(), k) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      kernels.to_fixed(&x[static_cast<std::size_t>(t * stride)], k, dtype, rows_.blocks(t),
                       rows_.scales(t));
    }
  }
  [[nodiscard]] const FixedRows& rows() const { return rows_; }

 private:
  struct Line {
    alignas(32) std::array<char, 32> bytes;
  };
  std::vector<Line> data_;
  FixedRows rows_;
};

TEST_P(Dot, FixedPointIsExactForAllRowsTokensAndBlocks) {
  const DotKernels& kernels = dot_kernels(GetParam());
  for (const DType dtype : kFixedTypes) {
    const auto dots = kernels.fixed_dots[static_cast<std::size_t>(dtype)];
    if (dots == nullptr) GTEST_SKIP() << "no integers";
    for (const int rows : {1, 2, 3, 7, 8, 9, 21, 43}) {
      for (int tokens = 1; tokens <= kernels.max_fixed_tokens; ++tokens) {
        for (const std::int64_t k : {32, 64, 480, 512, 544, 4096, 4128, 8736}) {
          if (k > 100 && rows != 9) continue;
          const Operands data(dtype, rows, tokens, k, true);
          const Fixed x(kernels, data.x, data.stride, tokens, k);
          const std::int64_t ldo = rows + 3;
          std::vector<float> out(static_cast<std::size_t>(ldo * tokens), -1.0F);
          dots(data.lines.data(), rows, x.rows(), tokens, k, out.data(), ldo);
          ASSERT_NO_FATAL_FAILURE(expect_products(data, dtype, rows, tokens, k, out, ldo));
        }
      }
    }
  }
}

// Every byte in every column, by the largest integers that 16 bits of a float become, of either
// sign: no sum may leave 32 bits nor, as fp32, be rounded.
TEST_P(Dot, FixedPointHoldsTheLargestSums) {
  const DotKernels& kernels = dot_kernels(GetParam());
  for (const DType dtype : kFixedTypes) {
    const auto dots = kernels.fixed_dots[static_cast<std::size_t>(dtype)];
    if (dots == nullptr) GTEST_SKIP() << "no integers";
    for (int byte = 0; byte < 256; ++byte) {
      for (const float largest : {65504.0F, -65504.0F, 0x1.FEp100F, -0x1.FEp-100F}) {
        std::vector<unsigned char> row(static_cast<std::size_t>(size_bytes(dtype)),
                                       static_cast<unsigned char>(byte));
        const std::uint16_t one = 0x3C00;
        std::memcpy(row.data(), &one, sizeof(one));
        const void* const lines[1 + DotKernels::kAheadLines] = {row.data()};
        double expected = 0;
        for (std::int64_t j = 0; j < kBlockElems; ++j) expected += math::load(row.data(), dtype, j);
        expected *= static_cast<double>(largest);
        const std::vector<float> x(kBlockElems, largest);
        const Fixed fixed(kernels, x, kBlockElems, 1, kBlockElems);
        float got = 0;
        dots(lines, 1, fixed.rows(), 1, kBlockElems, &got, 1);
        // A lane's sum is exact, and eight of them are added in three steps.
        ASSERT_NEAR(static_cast<double>(got), expected, std::abs(expected) * 3 * 0x1p-24)
            << to_string(dtype) << " byte " << byte << " x " << largest;
      }
    }
  }
}

float kept(const FixedBlock& block, DType dtype, std::size_t j) {
  return static_cast<float>(math::load(&block.q[j], dtype));
}

// docs/numerics.md, "Fixed point".
TEST_P(Dot, FixedPointRoundsWithinItsBound) {
  const DotKernels& kernels = dot_kernels(GetParam());
  if (kernels.to_fixed == nullptr) GTEST_SKIP() << "no integers";
  std::uint64_t state = 1;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    // Of bf16 8 bits are significant, of fp16 11; 15 take part.
    const double exact_from = dtype == DType::kBF16 ? 0x1p-7 : 0x1p-4;
    for (int exponent = dtype == DType::kBF16 ? -133 : -24; exponent < 128; ++exponent) {
      if (dtype == DType::kF16 && exponent > 15) break;
      std::vector<float> x(kBlockElems);
      for (std::size_t j = 0; j < x.size(); ++j) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        const double v = (static_cast<double>(state >> 40) * 0x1p-23 - 1.0) *
                         std::ldexp(1.0, exponent - static_cast<int>(j));
        x[j] = dtype == DType::kBF16 ? math::widen(math::to_bf16(static_cast<float>(v)))
                                     : math::widen(math::to_f16(static_cast<float>(v)));
      }
      const Fixed fixed(kernels, x, kBlockElems, 1, kBlockElems, dtype);
      const FixedBlock& block = *fixed.rows().blocks(0);
      const auto scale = static_cast<double>(*fixed.rows().scales(0));
      if (*fixed.rows().scales(0) == kKept) {
        for (std::size_t j = 0; j < x.size(); ++j) ASSERT_EQ(kept(block, dtype, j), x[j]);
        continue;
      }
      double largest = 0;
      for (const float v : x) largest = std::max(largest, static_cast<double>(std::abs(v)));
      std::int32_t shift = 0;
      for (std::size_t j = 0; j < x.size(); ++j) {
        const double error = std::abs(scale * block.q[j] - static_cast<double>(x[j]));
        ASSERT_LE(error, std::max(largest * 0x1p-15, 0x1p-127)) << exponent << " at " << j;
        const double power = std::ldexp(1.0, std::ilogb(largest > 0 ? largest : 1.0));
        if (std::abs(static_cast<double>(x[j])) >= power * exact_from && largest > 0x1p-112) {
          ASSERT_EQ(error, 0) << exponent << " at " << j;
        }
        shift -= 8 * block.q[j];
      }
      for (const std::int32_t lane : block.nibble_shift) shift -= lane;
      ASSERT_EQ(shift, 0);
    }
  }
}

TEST_P(Dot, FixedPointKeepsWhatIsNoNumber) {
  const DotKernels& kernels = dot_kernels(GetParam());
  if (kernels.to_fixed == nullptr) GTEST_SKIP() << "no integers";
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float special : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      std::vector<float> x(2 * kBlockElems, 3.0F);
      x[5] = special;
      const Fixed fixed(kernels, x, 2 * kBlockElems, 1, 2 * kBlockElems, dtype);
      const FixedBlock* const blocks = fixed.rows().blocks(0);
      EXPECT_EQ(fixed.rows().scales(0)[0], kKept);
      EXPECT_EQ(fixed.rows().scales(0)[1] * static_cast<float>(blocks[1].q[5]), 3.0F);
      for (std::size_t j = 0; j < kBlockElems; ++j) {
        const float got = kept(blocks[0], dtype, j);
        EXPECT_TRUE(got == x[j] || (std::isnan(got) && std::isnan(x[j]))) << j;
      }
    }
  }
}

// A block with one element that dwarfs the others is kept; alone it is exact anyway.
TEST_P(Dot, FixedPointKeepsWhatOneElementDwarfs) {
  const DotKernels& kernels = dot_kernels(GetParam());
  if (kernels.to_fixed == nullptr) GTEST_SKIP() << "no integers";
  const auto is_kept = [&](float top, float other, int others) {
    std::vector<float> x(kBlockElems, 0.0F);
    for (int j = 0; j < others; ++j) x[static_cast<std::size_t>(j)] = -other;
    x[31] = top;
    return *Fixed(kernels, x, kBlockElems, 1, kBlockElems).rows().scales(0) == kKept;
  };
  EXPECT_FALSE(is_kept(62.0F, 1.0F, 31));
  EXPECT_TRUE(is_kept(62.5F, 1.0F, 31));
  EXPECT_TRUE(is_kept(-1000.0F, 1.0F, 31));
  EXPECT_TRUE(is_kept(3.0F, 1.0F, 1));
  EXPECT_FALSE(is_kept(2.0F, 1.0F, 1));
  EXPECT_TRUE(is_kept(0x1.FEp127F, 0x1p-126F, 1));
  EXPECT_FALSE(is_kept(0x1.FEp127F, 0x1.FEp127F, 31));
  EXPECT_FALSE(is_kept(5.0F, 0.0F, 31));
  EXPECT_FALSE(is_kept(0.0F, 0.0F, 31));
}

constexpr DType kPairTypes[] = {DType::kBF16, DType::kQ8_0, DType::kQ4_0};

// The tokens of `data` in bf16, which holds the integers exactly, in the order of the weights.
std::vector<std::uint16_t> bf16_tokens(const Operands& data, DType weights, std::int64_t tokens,
                                       std::int64_t k, std::int64_t ldx) {
  const DotKernels::PairOrder order = pair_order(weights);
  std::vector<std::uint16_t> out(static_cast<std::size_t>(tokens * ldx));
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t j = 0; j < k; ++j) {
      const std::int64_t in_unit = j % DotKernels::kPairElems;
      const std::int64_t at = t * ldx + j - in_unit + order[static_cast<std::size_t>(in_unit)];
      math::store(&out[static_cast<std::size_t>(at)], DType::kBF16,
                  static_cast<double>(data.x[static_cast<std::size_t>(t * data.stride + j)]));
    }
  }
  return out;
}

auto pair_dots(SimdTarget target, DType weights) {
  return dot_kernels(target).pair_dots[static_cast<std::size_t>(weights)];
}

TEST_P(Dot, PairsAreExactForAllRowsTokensAndTails) {
  for (const DType dtype : kPairTypes) {
    const auto dots = pair_dots(GetParam(), dtype);
    if (dots == nullptr) GTEST_SKIP() << "no products of bf16";
    for (const int rows : {1, 2, 3, 7, 8, 9, 15, 16, 17, 21}) {
      for (int tokens = 1; tokens <= DotKernels::kMaxPairTokens; ++tokens) {
        for (std::int64_t k : {1, 2, 31, 32, 33, 65, 97, 129, 255, 256, 257, 300, 1025, 16385}) {
          if (k > 300 && rows != 9) continue;
          k = round_up(k, block_elems(dtype));
          const Operands data(dtype, rows, tokens, k, true);
          const std::int64_t ldx = round_up(k, DotKernels::kPairElems);
          const auto x = bf16_tokens(data, dtype, tokens, k, ldx);
          const std::int64_t ldo = rows + 3;
          std::vector<float> out(static_cast<std::size_t>(ldo * tokens), -1.0F);
          dots(data.lines.data(), rows, x.data(), ldx, tokens, k, out.data(), ldo);
          ASSERT_NO_FATAL_FAILURE(expect_products(data, dtype, rows, tokens, k, out, ldo));
        }
      }
    }
  }
}

// Every byte that a block may hold in every place, with a scale of either sign.
TEST_P(Dot, PairsOfBlocksMayHoldAnything) {
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_0}) {
    const auto dots = pair_dots(GetParam(), dtype);
    if (dots == nullptr) GTEST_SKIP() << "no products of bf16";
    const DotKernels::PairOrder order = pair_order(dtype);
    constexpr std::int64_t kK = 5 * kBlockElems;  // a whole step, and one that is not
    const std::int64_t block_bytes = size_bytes(dtype);
    for (const int bits : {0x3C00, 0xB800, 0x0001, 0x83FF, 0x7BFF}) {
      const auto scale = static_cast<std::uint16_t>(bits);
      for (int byte = 0; byte < 256; ++byte) {
        for (const std::int64_t col : {0, 7, 8, 15, 16, 31, 33, 63, 78, 95, 96, 127, 128, 159}) {
          std::vector<unsigned char> row(static_cast<std::size_t>(bytes_of(dtype, kK)),
                                         static_cast<unsigned char>(byte));
          for (std::int64_t b = 0; b < kK / kBlockElems; ++b) {
            std::memcpy(row.data() + b * block_bytes, &scale, sizeof(scale));
          }
          std::array<std::uint16_t, 2 * DotKernels::kPairElems> x{};
          const std::int64_t in_unit = col % DotKernels::kPairElems;
          x[static_cast<std::size_t>(col - in_unit + order[static_cast<std::size_t>(in_unit)])] =
              std::uint16_t{0x3F80};  // 1
          const void* const lines[1 + DotKernels::kAheadLines] = {row.data()};
          float got = 0;
          dots(lines, 1, x.data(), static_cast<std::int64_t>(x.size()), 1, kK, &got, 1);
          const double expected =
              math::load(row.data() + col / kBlockElems * block_bytes, dtype, col);
          ASSERT_EQ(static_cast<double>(got), expected)
              << to_string(dtype) << " scale " << scale << " byte " << byte << " column " << col;
        }
      }
    }
  }
}

TEST_P(Dot, BitsOfPairsDoNotDependOnTheRowsBeside) {
  for (const DType dtype : kPairTypes) {
    const auto dots = pair_dots(GetParam(), dtype);
    if (dots == nullptr) GTEST_SKIP() << "no products of bf16";
    constexpr int kRows = 21;
    const std::int64_t k = is_block_type(dtype) ? 5024 : 5003;
    const std::int64_t ldx = round_up(k, DotKernels::kPairElems);
    for (int tokens = 1; tokens <= DotKernels::kMaxPairTokens; ++tokens) {
      const Operands data(dtype, kRows, tokens, k, false);
      const auto x = bf16_tokens(data, dtype, tokens, k, ldx);
      std::vector<float> together(static_cast<std::size_t>(kRows * tokens));
      dots(data.lines.data(), kRows, x.data(), ldx, tokens, k, together.data(), kRows);
      for (std::size_t i = 0; i < kRows; ++i) {
        std::vector<float> alone(static_cast<std::size_t>(tokens));
        dots(data.lines.data() + i, 1, x.data(), ldx, tokens, k, alone.data(), 1);
        for (std::size_t t = 0; t < alone.size(); ++t) {
          ASSERT_EQ(together[t * kRows + i], alone[t]) << "row " << i << " token " << t;
        }
      }
    }
  }
}

// What docs/numerics.md says of them: odd elements first, one rounding each, no subnormals.
TEST_P(Dot, PairsRoundAfterEachProduct) {
  const auto dots = pair_dots(GetParam(), DType::kBF16);
  if (dots == nullptr) GTEST_SKIP() << "no products of bf16";
  const auto sum = [&](std::vector<float> w, std::vector<float> x) {
    std::array<std::uint16_t, 64> w16{};
    std::array<std::uint16_t, 64> x16{};
    for (std::size_t i = 0; i < w.size(); ++i) {
      math::store(&w16[i], DType::kBF16, static_cast<double>(w[i]));
      math::store(&x16[i], DType::kBF16, static_cast<double>(x[i]));
    }
    const void* const lines[1 + DotKernels::kAheadLines] = {w16.data()};
    float out = 0;
    dots(lines, 1, x16.data(), 64, 1, static_cast<std::int64_t>(w.size()), &out, 1);
    return out;
  };
  EXPECT_EQ(sum({0x1p-24F, 1}, {1, 1}), 1);               // 1 + half an ulp, to even
  EXPECT_EQ(sum({-1, 0x1p-25F}, {1, 1}), -1 + 0x1p-25F);  // -1 last: one rounding, exact
  EXPECT_EQ(sum({0x1p-130F}, {0x1p120F}), 0);             // a subnormal is 0
  EXPECT_EQ(sum({0x1p-70F}, {0x1p-70F}), 0);              // and so is a subnormal sum
}

INSTANTIATE_TEST_SUITE_P(Targets, Dot, testing::ValuesIn(test::targets()),
                         [](const auto& info_of) { return std::string(to_string(info_of.param)); });

}  // namespace
}  // namespace sluice::cpu
