// SPDX-License-Identifier: Apache-2.0
// GGUF's blocks: every value that a block can hold, from bytes written here by hand.
#include "math/block_types.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "sluice/operands.hpp"

namespace sluice::math {
namespace {

// Little-endian fp16 of 0.5, -2 and 2^-24 (the smallest subnormal).
constexpr std::uint8_t kHalf[2] = {0x00, 0x38};
constexpr std::uint8_t kMinusTwo[2] = {0x00, 0xC0};
constexpr std::uint8_t kTiny[2] = {0x01, 0x00};

TEST(BlockTypes, SizesAreThoseOfTheFiles) {
  EXPECT_EQ(bytes_of(DType::kQ8_0, 4096), 128 * 34);
  EXPECT_EQ(bytes_of(DType::kQ4_0, 4096), 128 * 18);
  EXPECT_EQ(bytes_of(DType::kQ4_1, 4096), 128 * 20);
  EXPECT_EQ(bytes_of(DType::kQ8_0, 63), 34);  // offset of the block that holds column 63
  EXPECT_EQ(bytes_of(DType::kBF16, 63), 126);
}

TEST(BlockTypes, Q8HoldsASignedByteTimesItsScale) {
  for (int first = -128; first < 128; first += 32) {
    std::array<unsigned char, 34> block{};
    std::memcpy(block.data(), kHalf, 2);
    for (int j = 0; j < 32; ++j) {
      block[static_cast<std::size_t>(2 + j)] = static_cast<unsigned char>(first + j);
    }
    for (int j = 0; j < 32; ++j) {
      EXPECT_EQ(load(block.data(), DType::kQ8_0, j), 0.5 * (first + j));
      EXPECT_EQ(load(block.data(), DType::kQ8_0, 320 + j), 0.5 * (first + j));
    }
  }
}

TEST(BlockTypes, NibblesLieLowHalvesFirst) {
  std::array<unsigned char, 18> q4_0{};
  std::memcpy(q4_0.data(), kMinusTwo, 2);
  std::array<unsigned char, 20> q4_1{};
  std::memcpy(q4_1.data(), kHalf, 2);
  std::memcpy(q4_1.data() + 2, kMinusTwo, 2);
  for (int j = 0; j < 16; ++j) {  // low nibbles count up, high ones down
    const auto byte = static_cast<unsigned char>(j | (15 - j) << 4);
    q4_0[static_cast<std::size_t>(2 + j)] = byte;
    q4_1[static_cast<std::size_t>(4 + j)] = byte;
  }
  for (int j = 0; j < 32; ++j) {
    const int q = j < 16 ? j : 31 - j;
    EXPECT_EQ(load(q4_0.data(), DType::kQ4_0, j), -2.0 * (q - 8)) << j;
    EXPECT_EQ(load(q4_1.data(), DType::kQ4_1, j), 0.5 * q - 2.0) << j;
  }
}

TEST(BlockTypes, TheMinimumIsAddedWithOneRoundingToFp32) {
  std::array<unsigned char, 20> block{};
  std::memcpy(block.data(), kTiny, 2);
  const std::uint8_t large[2] = {0x00, 0x7B};  // 57344
  std::memcpy(block.data() + 2, large, 2);
  block[4] = 0x0F;
  EXPECT_EQ(load(block.data(), DType::kQ4_1, 0), 57344.0);  // 15 · 2^-24 is below its half unit
  std::memcpy(block.data() + 2, kHalf, 2);
  EXPECT_EQ(load(block.data(), DType::kQ4_1, 0), 0.5 + 15 * 0x1p-24);
}

// An operand's offsets lead to the block, its extent to the end of the last one.
TEST(BlockTypes, OffsetsAndExtentsCountBlocks) {
  Problem p{.op = Op::kDown, .m = 1, .d = 3, .h = 96, .w_dtype = DType::kQ4_0};
  p.layout.w_down.row_stride_bytes = 64;
  p.bias_down = true;
  const auto specs = operand_specs(p);
  const OperandSpec& w = specs[static_cast<std::size_t>(Operand::kWDown)];
  EXPECT_EQ(offset_bytes(w.layout, w.dtype, 2, 95), 2 * 64 + 2 * 18);
  EXPECT_EQ(extent_bytes(w), 2 * 64 + 3 * 18);
  EXPECT_EQ(specs[static_cast<std::size_t>(Operand::kBDown)].dtype, DType::kF32);
  EXPECT_EQ(bytes_moved(p), 96 * 2 + 3 * 3 * 18 + 3 * 4 + 3 * 2);
  EXPECT_EQ(interleaved_rows(4, 64, DType::kQ8_0).block_stride_bytes, 2 * 4 * 2 * 34);
}

}  // namespace
}  // namespace sluice::math
