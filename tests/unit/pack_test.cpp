// SPDX-License-Identifier: Apache-2.0
// Packing of gate and up against the index formula, for every block and both orders; what is
// refused; and that kernels read what was packed.
#include "sluice/pack.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "expect_error.hpp"
#include "sluice/sluice.h"
#include "sluice/sluice.hpp"

namespace sluice {
namespace {

using test::refuses;
using test::succeeds;
using Bytes = std::vector<unsigned char>;

constexpr unsigned char kGap = 0xA5;

// Elements of padding behind the rows of the three matrices.
struct Pads {
  std::int64_t gate = 0;
  std::int64_t up = 0;
  std::int64_t packed = 0;
};

std::int64_t row_bytes(const Packing& p) { return p.d * p.element_bytes; }

std::int64_t distance(const Packing& p, std::int64_t stride_bytes) {
  return stride_bytes == kContiguous ? row_bytes(p) : stride_bytes;
}

Packing packing(std::int64_t h, std::int64_t d, std::int64_t element_bytes, std::int64_t block_rows,
                PackOrder order, const Pads& pads = {}) {
  const auto stride = [&](std::int64_t pad) {
    return pad == 0 ? kContiguous : (d + pad) * element_bytes;
  };
  return {h,
          d,
          element_bytes,
          block_rows,
          order,
          stride(pads.gate),
          stride(pads.up),
          stride(pads.packed)};
}

// Byte `at` of row r of the gate (first = 0) or up matrix: both matrices and near rows differ.
unsigned char byte_of(int matrix, std::int64_t row, std::int64_t at) {
  return static_cast<unsigned char>((row * 37 + at * 3 + matrix * 101) % 251);
}

Bytes matrix(const Packing& p, int which, std::int64_t stride_bytes) {
  const std::int64_t step = distance(p, stride_bytes);
  Bytes out(static_cast<std::size_t>(p.h * step), kGap);
  for (std::int64_t r = 0; r < p.h; ++r) {
    for (std::int64_t i = 0; i < row_bytes(p); ++i) {
      out[static_cast<std::size_t>(r * step + i)] = byte_of(which, r, i);
    }
  }
  return out;
}

// By the packed row's own index, as the header does not put it: slot by slot.
Bytes packed_by_index(const Packing& p) {
  const std::int64_t step = distance(p, p.packed_stride_bytes);
  Bytes out(static_cast<std::size_t>(2 * p.h * step), kGap);
  for (std::int64_t row = 0; row < 2 * p.h; ++row) {
    const std::int64_t slot = row / p.block_rows;
    const bool second = slot % 2 == 1;
    const bool is_up = second == (p.order == PackOrder::kGateUp);
    for (std::int64_t i = 0; i < row_bytes(p); ++i) {
      out[static_cast<std::size_t>(row * step + i)] =
          byte_of(is_up ? 1 : 0, slot / 2 * p.block_rows + row % p.block_rows, i);
    }
  }
  return out;
}

Bytes pack(const Packing& p) {
  const Bytes gate = matrix(p, 0, p.gate_stride_bytes);
  const Bytes up = matrix(p, 1, p.up_stride_bytes);
  Bytes packed(static_cast<std::size_t>(2 * p.h * distance(p, p.packed_stride_bytes)), kGap);
  EXPECT_TRUE(succeeds(pack_gate_up(p, gate.data(), up.data(), packed.data())));
  return packed;
}

void expect_round_trip(const Packing& p) {
  const Bytes packed = pack(p);
  ASSERT_EQ(packed, packed_by_index(p));
  Bytes gate(static_cast<std::size_t>(p.h * distance(p, p.gate_stride_bytes)), kGap);
  Bytes up(static_cast<std::size_t>(p.h * distance(p, p.up_stride_bytes)), kGap);
  ASSERT_TRUE(succeeds(unpack_gate_up(p, packed.data(), gate.data(), up.data())));
  ASSERT_EQ(gate, matrix(p, 0, p.gate_stride_bytes));
  ASSERT_EQ(up, matrix(p, 1, p.up_stride_bytes));
}

TEST(Pack, EveryBlockInBothOrdersIsTheIndexFormulaAndComesBack) {
  for (const std::int64_t h : {1, 7, 12, 15, 64, 128}) {
    for (std::int64_t block = 1; block <= h; ++block) {
      if (h % block != 0) continue;
      for (const PackOrder order : {PackOrder::kGateUp, PackOrder::kUpGate}) {
        for (const std::int64_t element : {1, 2, 4, 8}) {
          for (const std::int64_t d : {1, 3, 16}) {
            for (const Pads& pads : {Pads{}, Pads{1, 0, 0}, Pads{0, 5, 2}, Pads{3, 1, 0}}) {
              SCOPED_TRACE("h " + std::to_string(h) + " block " + std::to_string(block) +
                           " element " + std::to_string(element) + " d " + std::to_string(d));
              ASSERT_NO_FATAL_FAILURE(
                  expect_round_trip(packing(h, d, element, block, order, pads)));
            }
          }
        }
      }
    }
  }
}

// The check above sees a swapped order and another block.
TEST(Pack, AnotherOrderOrBlockIsAnotherTensor) {
  const Packing right = packing(12, 3, 2, 4, PackOrder::kGateUp);
  for (const Packing& wrong :
       {packing(12, 3, 2, 4, PackOrder::kUpGate), packing(12, 3, 2, 2, PackOrder::kGateUp)}) {
    EXPECT_NE(pack(wrong), packed_by_index(right));
    const Bytes packed = pack(right);
    Bytes gate(12 * 6);
    Bytes up(12 * 6);
    ASSERT_TRUE(succeeds(unpack_gate_up(wrong, packed.data(), gate.data(), up.data())));
    EXPECT_NE(gate, matrix(right, 0, kContiguous));
  }
}

TEST(Pack, GateAndUpMayBeViewsOfOneTensor) {
  const Packing pairs = packing(12, 3, 2, 4, PackOrder::kUpGate);
  Packing views = pairs;  // gate and up as the rows of a tensor of single rows
  views.gate_stride_bytes = views.up_stride_bytes = 2 * row_bytes(pairs);
  const Bytes singles = pack(packing(12, 3, 2, 1, PackOrder::kGateUp));
  Bytes packed(singles.size());
  ASSERT_TRUE(succeeds(
      pack_gate_up(views, singles.data(), singles.data() + row_bytes(pairs), packed.data())));
  EXPECT_EQ(packed, pack(pairs));
}

// Three matrices of [4, 2] elements of 2 bytes, far enough apart.
struct Buffers {
  alignas(8) unsigned char bytes[128] = {};
  unsigned char* gate = bytes;
  unsigned char* up = bytes + 32;
  unsigned char* packed = bytes + 64;
};

Packing small() { return packing(4, 2, 2, 2, PackOrder::kGateUp); }

TEST(Pack, RefusesByName) {
  const struct {
    std::int64_t Packing::*member;
    std::int64_t value;
    const char* message;
  } cases[] = {
      {&Packing::h, 0, "h: got 0, wanted at least 1"},
      {&Packing::d, -1, "d: got -1, wanted at least 1"},
      {&Packing::element_bytes, 3, "element_bytes: got 3, wanted 1, 2, 4 or 8"},
      {&Packing::element_bytes, 16, "element_bytes: got 16"},
      {&Packing::block_rows, 0, "block_rows: got 0, wanted a divisor of H = 4"},
      {&Packing::block_rows, 3, "block_rows: got 3, wanted a divisor of H = 4"},
      {&Packing::block_rows, 8, "block_rows: got 8, wanted a divisor of H = 4"},
      {&Packing::gate_stride_bytes, 2, "gate_stride_bytes: got 2, wanted a multiple of"},
      {&Packing::up_stride_bytes, 0, "up_stride_bytes: got 0, wanted a multiple of"},
      {&Packing::packed_stride_bytes, 5, "packed_stride_bytes: got 5, wanted a multiple of"},
      {&Packing::packed_stride_bytes, -4, "packed_stride_bytes: got -4, wanted a multiple of"},
      {&Packing::d, std::int64_t{1} << 62, "gate: got 4 x 4611686018427387904 elements of 2 bytes"},
      {&Packing::d, std::int64_t{1} << 57, "gate: got 4 x"},
      {&Packing::packed_stride_bytes, std::int64_t{1} << 60, "packed: got 4 x 2 elements"},
      {&Packing::up_stride_bytes, std::int64_t{1} << 62, "up: got 4 x 2 elements"},
  };
  for (const auto& c : cases) {
    Packing p = small();
    p.*c.member = c.value;
    Buffers b;
    EXPECT_TRUE(refuses(pack_gate_up(p, b.gate, b.up, b.packed), c.message));
    EXPECT_TRUE(refuses(unpack_gate_up(p, b.packed, b.gate, b.up), c.message));
  }
  Packing p = small();
  p.h = p.block_rows = std::int64_t{1} << 62;
  Buffers b;
  EXPECT_TRUE(refuses(pack_gate_up(p, b.gate, b.up, b.packed), "gate: got 4611686018427387904 x"));
  p = small();
  p.order = static_cast<PackOrder>(2);
  EXPECT_TRUE(refuses(pack_gate_up(p, b.gate, b.up, b.packed), "order: got 2, wanted 0"));
}

TEST(Pack, RefusesPointersByName) {
  const Packing p = small();
  Buffers b;
  const auto expect = [&](unsigned char* Buffers::*member, unsigned char* value,
                          const char* message) {
    Buffers wrong;
    const std::ptrdiff_t offset = value == nullptr ? 0 : value - b.bytes;
    wrong.*member = value == nullptr ? nullptr : wrong.bytes + offset;
    EXPECT_TRUE(refuses(pack_gate_up(p, wrong.gate, wrong.up, wrong.packed), message));
    EXPECT_TRUE(refuses(unpack_gate_up(p, wrong.packed, wrong.gate, wrong.up), message));
  };
  expect(&Buffers::gate, nullptr, "gate: got null, wanted a pointer to [4, 2]");
  expect(&Buffers::up, nullptr, "up: got null, wanted a pointer to [4, 2]");
  expect(&Buffers::packed, nullptr, "packed: got null, wanted a pointer to [8, 2]");
  expect(&Buffers::gate, b.gate + 1, "gate: got pointer");
  expect(&Buffers::up, b.up + 1, "wanted a multiple of element_bytes = 2");
  expect(&Buffers::packed, b.packed + 1, "packed: got pointer");
  // One byte short of apart, on either side of packed [8, 2], which has 32 bytes.
  expect(&Buffers::gate, b.packed - 14, "overlaps");
  expect(&Buffers::up, b.packed + 30, "overlaps");
  expect(&Buffers::packed, b.up, "overlaps");
  EXPECT_TRUE(refuses(pack_gate_up(p, b.packed - 14, b.up, b.packed),
                      "packed: the output overlaps gate (14 bytes apart)"));
  // Extents that touch are apart; two inputs may be one.
  EXPECT_TRUE(succeeds(pack_gate_up(p, b.packed - 16, b.packed + 32, b.packed)));
  EXPECT_TRUE(succeeds(pack_gate_up(p, b.gate, b.gate, b.packed)));
  EXPECT_TRUE(refuses(unpack_gate_up(p, b.packed, b.gate, b.gate + 8),
                      "gate: the output overlaps up (-8 bytes apart)"));
}

// What is packed is what sluice_interleaved_rows() describes: fused operators read it without a
// copy, and add in the same order.
TEST(Pack, KernelsReadPackedWeightsWithTheSameBits) {
  constexpr std::int64_t kM = 3;
  constexpr std::int64_t kD = 40;
  constexpr std::int64_t kH = 48;
  const auto values = [](std::int64_t count, std::int64_t seed) {
    std::vector<float> out(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<float>((static_cast<std::int64_t>(i) * 7919 + seed) % 211 - 105) / 64;
    }
    return out;
  };
  const auto x = values(kM * kD, 1);
  const auto gate = values(kH * kD, 2);
  const auto up = values(kH * kD, 77);
  const auto hidden = [&](const Layout& layout, const float* w_gate, const float* w_up) {
    Problem problem{.op = Op::kGateUp,
                    .m = kM,
                    .d = kD,
                    .h = kH,
                    .x_dtype = DType::kF32,
                    .w_dtype = DType::kF32,
                    .alignment_bytes = 4};
    problem.layout.w_gate_up = layout;
    std::vector<float> h(kM * kH);
    const auto made = plan(problem, cpu_device());
    EXPECT_TRUE(succeeds(made));
    if (!made) return h;
    std::unique_ptr<void, decltype(&std::free)> memory(
        std::aligned_alloc(256, (made->workspace_bytes + 511) / 256 * 256), &std::free);
    const Workspace work{memory.get(), made->workspace_bytes};
    const Operands operands{.x = x.data(), .w_gate = w_gate, .w_up = w_up, .h = h.data()};
    if (made->workspace_bytes > 0) {
      EXPECT_TRUE(succeeds(workspace_init(work, cpu_device(), nullptr)));
    }
    EXPECT_TRUE(succeeds(run(*made, operands, work, nullptr)));
    return h;
  };
  const auto expected = hidden({}, gate.data(), up.data());
  for (const std::int64_t block : {1, 2, 8, 16, 48}) {
    for (const PackOrder order : {PackOrder::kGateUp, PackOrder::kUpGate}) {
      std::vector<float> packed(2 * kH * kD);
      ASSERT_TRUE(succeeds(
          pack_gate_up(packing(kH, kD, 4, block, order), gate.data(), up.data(), packed.data())));
      const float* first = packed.data();
      const float* second = first + block * kD;
      const bool gate_first = order == PackOrder::kGateUp;
      const Layout layout = interleaved_rows(block, kD, DType::kF32);
      EXPECT_EQ(hidden(layout, gate_first ? first : second, gate_first ? second : first), expected)
          << "block " << block;
      // The planted error: gate and up swapped.
      EXPECT_NE(hidden(layout, gate_first ? second : first, gate_first ? first : second), expected);
    }
  }
}

TEST(Pack, TheCAbiPacksTheSame) {
  const Packing p = packing(12, 3, 2, 4, PackOrder::kUpGate, {1, 0, 2});
  const sluice_packing c{sizeof(c),
                         p.h,
                         p.d,
                         p.block_rows,
                         2,
                         SLUICE_PACK_UP_GATE,
                         p.gate_stride_bytes,
                         SLUICE_CONTIGUOUS,
                         p.packed_stride_bytes};
  const Bytes gate = matrix(p, 0, p.gate_stride_bytes);
  const Bytes up = matrix(p, 1, p.up_stride_bytes);
  const Bytes expected = packed_by_index(p);
  Bytes packed(expected.size(), kGap);
  sluice_error error{};
  ASSERT_EQ(sluice_pack_gate_up(&c, gate.data(), up.data(), packed.data(), &error), SLUICE_OK);
  EXPECT_EQ(packed, expected);
  Bytes gate_again(gate.size(), kGap);
  Bytes up_again(up.size(), kGap);
  ASSERT_EQ(sluice_unpack_gate_up(&c, packed.data(), gate_again.data(), up_again.data(), &error),
            SLUICE_OK);
  EXPECT_EQ(gate_again, gate);
  EXPECT_EQ(up_again, up);

  EXPECT_EQ(sluice_pack_gate_up(nullptr, gate.data(), up.data(), packed.data(), &error),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "packing: got null");
  EXPECT_EQ(
      sluice_unpack_gate_up(nullptr, packed.data(), gate_again.data(), up_again.data(), nullptr),
      SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_unpack_gate_up(&c, nullptr, gate_again.data(), up_again.data(), &error),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "packed: got null, wanted a pointer to [24, 3]");
  sluice_packing wrong = c;
  wrong.order = 2;
  EXPECT_EQ(sluice_pack_gate_up(&wrong, gate.data(), up.data(), packed.data(), &error),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "order: got 2, wanted 0 (gate, up) or 1 (up, gate)");
  wrong = c;
  --wrong.struct_size;
  EXPECT_EQ(sluice_pack_gate_up(&wrong, gate.data(), up.data(), packed.data(), &error),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("packing: struct_size is"), std::string::npos);
}

}  // namespace
}  // namespace sluice
