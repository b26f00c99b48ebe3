// SPDX-License-Identifier: Apache-2.0
// The arithmetic of tensor maps: every element that a view's dimensions and strides reach is the
// element the layout names, nothing is reached outside the matrices, and what has no view says why.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/host/tensor_map.hpp"
#include "cuda/sm90/boxes.hpp"
#include "tests/device/pair_coords.hpp"

namespace sluice::cuda {
namespace {

constexpr std::int32_t kBoxK = 64;

OperandSpec spec_of(std::int64_t rows, std::int64_t cols, Layout layout,
                    DType dtype = DType::kBF16) {
  OperandSpec spec;
  spec.name = "w_gate";
  spec.dtype = dtype;
  spec.rows = rows;
  spec.cols = cols;
  spec.layout = layout;
  if (layout.row_stride_bytes == kContiguous) {
    spec.layout.row_stride_bytes = cols * size_bytes(dtype);
  }
  return spec;
}

const void* pointer(std::int64_t at) {
  return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(at));
}

// Byte offset from the base of the box element with these indices, innermost first.
std::int64_t reach(const TensorView& view, const std::vector<std::int64_t>& index) {
  std::int64_t at = 0;
  for (int i = 0; i < view.rank; ++i) {
    at += index[static_cast<std::size_t>(i)] * view.strides_bytes[i];
  }
  return at;
}

// Walks all copies of a pair view in order, as shared memory would receive them, and checks each
// row's address against the layout.
void expect_rows_in_order(const OperandSpec& spec, std::int64_t gate_at, std::int64_t up_at,
                          std::int32_t box_groups, std::int32_t longest_run = 1) {
  const auto made =
      make_pair_view(spec, pointer(gate_at), pointer(up_at), kBoxK, box_groups, longest_run);
  ASSERT_TRUE(made) << made.error().message;
  const PairView& pair = *made;
  const TensorView& view = pair.view;
  EXPECT_EQ(pair.up_first, up_at < gate_at);
  EXPECT_GE(pair.groups_a_copy, 1);
  EXPECT_EQ(box_groups % pair.groups_a_copy, 0);
  EXPECT_EQ(view.dims[0], spec.cols);
  EXPECT_EQ(view.strides_bytes[0], size_bytes(spec.dtype));
  for (int i = 1; i < view.rank; ++i) {
    EXPECT_EQ(view.strides_bytes[i] % kTensorStrideMultiple, 0);
    EXPECT_LE(view.box[i], kTensorBoxLimit);
  }
  const std::int64_t base = pair.up_first ? up_at : gate_at;
  std::set<std::int64_t> seen;
  // And copies behind the last block, of tiles that reach beyond it.
  const std::int64_t end = (spec.rows / 8 / box_groups + 2) * box_groups;
  for (std::int64_t group = 0; group < end; group += pair.groups_a_copy) {
    const TensorCoords start = pair_coords(pair, 0, group);
    // Box rows in the order of shared memory: the second dimension fastest.
    std::vector<std::int64_t> at(static_cast<std::size_t>(view.rank), 0);
    for (std::int64_t box_row = 0; box_row < 16 * pair.groups_a_copy; ++box_row) {
      std::vector<std::int64_t> index(at);
      bool inside = true;
      for (int i = 0; i < view.rank; ++i) {
        const auto d = static_cast<std::size_t>(i);
        index[d] += start.at[i];
        inside = inside && index[d] < view.dims[i];
      }
      const std::int64_t chunk = 2 * group + box_row / 8;  // of eight rows
      const std::int64_t turn = pair.groups_a_run;
      const std::int64_t row = (chunk / (2 * turn) * turn + chunk % turn) * 8 + box_row % 8;
      const bool second = chunk / turn % 2 == 1;
      EXPECT_EQ(inside, row < spec.rows);
      if (inside) {
        const std::int64_t matrix = second == pair.up_first ? gate_at : up_at;
        EXPECT_EQ(base + reach(view, index), matrix + offset_bytes(spec.layout, spec.dtype, row, 0))
            << "row " << row << (second ? " of half 1" : " of half 0");
        seen.insert(base + reach(view, index));
      }
      for (std::size_t i = 1; i < at.size(); ++i) {
        if (++at[i] < view.box[i]) break;
        at[i] = 0;
      }
    }
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(2 * spec.rows));
}

TEST(TensorView, PlainRowsInEveryPlacement) {
  for (const std::int64_t rows : {8, 64, 72, 200}) {
    const OperandSpec spec = spec_of(rows, 72, {});
    const std::int64_t half = rows * 144;
    for (const auto& [gate, up] :
         {std::pair{std::int64_t{4096}, 4096 + half}, std::pair{4096 + half, std::int64_t{4096}},
          std::pair{std::int64_t{4096}, 4096 + half + 16 * 12345}}) {
      expect_rows_in_order(spec, gate, up, 4);
    }
    expect_rows_in_order(spec_of(rows, 72, {.row_stride_bytes = 160}), 0, 160 * rows, 8);
  }
}

TEST(TensorView, InterleavedBlocksInEitherOrder) {
  constexpr std::int64_t kCols = 72;
  for (const std::int64_t b : {1, 2, 4, 8, 16, 24, 32, 64}) {
    const OperandSpec spec = spec_of(192, kCols, interleaved_rows(b, kCols, DType::kBF16));
    for (const std::int32_t box_groups : {1, 2, 3, 4, 8, 12}) {
      expect_rows_in_order(spec, 256, 256 + b * kCols * 2, box_groups);
      expect_rows_in_order(spec, 256 + b * kCols * 2, 256, box_groups);
    }
  }
}

// Blocks whose groups divide the longest turn are one plain matrix, where they take turns.
TEST(TensorView, BlocksThatTakeTurnsComeAsTheyLie) {
  constexpr std::int64_t kCols = 72;
  constexpr std::int64_t kRow = kCols * 2;
  const auto turn_of = [](const OperandSpec& spec, std::int64_t apart, std::int32_t longest) {
    const PairView pair =
        make_pair_view(spec, pointer(0), pointer(apart), kBoxK, 6, longest).value();
    EXPECT_EQ(pair.view.rank == 2, pair.groups_a_run > 1);
    return pair.groups_a_run;
  };
  for (const auto& [b, longest, turn] : {std::array{8, 4, 1},
                                         {16, 1, 1},
                                         {16, 2, 2},
                                         {16, 4, 2},
                                         {24, 4, 1},
                                         {32, 2, 1},
                                         {32, 4, 4}}) {
    const OperandSpec spec = spec_of(192, kCols, interleaved_rows(b, kCols, DType::kBF16));
    EXPECT_EQ(turn_of(spec, b * kRow, longest), turn) << b << " " << longest;
    // Up of another buffer.
    EXPECT_EQ(turn_of(spec, 400 * kRow, longest), 1);
    for (const std::int32_t box_groups : {4, 6, 12}) {
      expect_rows_in_order(spec, 256, 256 + b * kRow, box_groups, longest);
      expect_rows_in_order(spec, 256 + b * kRow, 256, box_groups, longest);
    }
  }
  // Room for more than a block between two.
  const OperandSpec apart = spec_of(
      192, kCols, {.row_stride_bytes = kRow, .block_rows = 16, .block_stride_bytes = 48 * kRow});
  EXPECT_FALSE(blocks_alternate(apart.layout));
  EXPECT_EQ(turn_of(apart, 16 * kRow, 4), 1);
  expect_rows_in_order(apart, 256, 256 + 16 * kRow, 6, 4);
}

// A plain copy of both matrices has twice their rows: where those are beyond a limit, blocks come
// as others do.
TEST(TensorView, BlocksThatTakeTurnsKeepTheLimitsOfBothMatrices) {
  constexpr std::int64_t kRow = 16;
  const Layout layout = interleaved_rows(16, 8, DType::kBF16);
  const auto view_of = [&](std::int64_t rows, std::int32_t box_groups) {
    const OperandSpec spec = spec_of(rows, 8, layout);
    return make_pair_view(spec, pointer(0), pointer(16 * kRow), 8, box_groups, 2).value();
  };
  for (const auto& [rows, box_groups, turn] : {std::tuple{std::int64_t{1024}, 16, 2},
                                               {std::int64_t{1024}, 18, 1},
                                               {(std::int64_t{1} << 31) - 16, 8, 2},
                                               {std::int64_t{1} << 31, 8, 1}}) {
    const PairView pair = view_of(rows, box_groups);
    EXPECT_EQ(pair.groups_a_run, turn) << rows << " " << box_groups;
    for (int i = 0; i < pair.view.rank; ++i) {
      EXPECT_LE(pair.view.box[i], kTensorBoxLimit) << rows << " " << box_groups;
      EXPECT_LT(pair.view.dims[i], kTensorDimLimit) << rows << " " << box_groups;
    }
  }
  expect_rows_in_order(spec_of(1024, 8, layout), 0, 16 * kRow, 16, 2);
  expect_rows_in_order(spec_of(1024, 8, layout), 0, 16 * kRow, 18, 2);
}

TEST(TensorView, OnlyBlocksTakeTurns) {
  EXPECT_TRUE(blocks_alternate(interleaved_rows(16, 8, DType::kBF16)));
  EXPECT_FALSE(blocks_alternate({}));
  EXPECT_FALSE(blocks_alternate({.row_stride_bytes = 16}));
}

TEST(TensorView, RanksAreTheDocumentedOnes) {
  const auto rank_of = [](std::int64_t b) {
    const OperandSpec spec =
        spec_of(192, 64, b == 0 ? Layout{} : interleaved_rows(b, 64, DType::kBF16));
    const std::int64_t apart = b == 0 ? 192 * 128 : b * 128;
    return make_pair_view(spec, pointer(0), pointer(apart), kBoxK, 8).value().view.rank;
  };
  EXPECT_EQ(rank_of(0), 4);
  EXPECT_EQ(rank_of(1), 4);
  EXPECT_EQ(rank_of(2), 5);
  EXPECT_EQ(rank_of(4), 5);
  EXPECT_EQ(rank_of(8), 4);
  EXPECT_EQ(rank_of(16), 5);
  EXPECT_EQ(rank_of(192), 4);  // a single block
}

TEST(TensorView, ACopyStaysInABlockOrTakesWholeOnes) {
  const auto groups_of = [](std::int64_t b, std::int32_t wanted) {
    const OperandSpec spec = spec_of(192, 64, interleaved_rows(b, 64, DType::kBF16));
    return make_pair_view(spec, pointer(0), pointer(b * 128), kBoxK, wanted).value().groups_a_copy;
  };
  EXPECT_EQ(groups_of(16, 8), 8);    // four blocks of two groups
  EXPECT_EQ(groups_of(64, 4), 4);    // half a block of eight
  EXPECT_EQ(groups_of(24, 8), 1);    // blocks of three: nothing larger divides both
  EXPECT_EQ(groups_of(48, 8), 2);    // blocks of six
  EXPECT_EQ(groups_of(24, 12), 12);  // four blocks of three
}

struct RefusalCase {
  const char* name;
  OperandSpec spec;
  std::int64_t gate;
  std::int64_t up;
  const char* reason;
};

TEST(TensorView, WhatHasNoViewSaysWhy) {
  const auto interleaved = [](std::int64_t rows, std::int64_t b) {
    return spec_of(rows, 64, interleaved_rows(b, 64, DType::kBF16));
  };
  const std::int64_t far = std::int64_t{1} << 40;
  const std::vector<RefusalCase> cases = {
      {"short last group", spec_of(12, 64, {}), 0, 4096, "rows are no multiple of 8"},
      {"odd width", spec_of(16, 63, {}), 0, 4096, "no multiple of 16"},
      {"zero stride", spec_of(16, 64, {.row_stride_bytes = 0}), 0, 4096, "more than 0"},
      {"blocks of three", interleaved(24, 3), 0, 384, "neither divide 8"},
      {"blocks of twelve", interleaved(48, 12), 0, 1536, "neither divide 8"},
      {"short last block", interleaved(40, 16), 0, 2048, "short last block"},
      {"blocks off eight rows",
       spec_of(64, 64, {.row_stride_bytes = 128, .block_rows = 16, .block_stride_bytes = 33 * 128}),
       0, 2048, "no multiple of eight rows"},
      {"blocks far apart",
       spec_of(64, 64,
               {.row_stride_bytes = 128, .block_rows = 16, .block_stride_bytes = far - 1024}),
       0, 2048, "wanted below 2^31"},
      {"many rows in long blocks", interleaved(std::int64_t{1} << 20, std::int64_t{1} << 19), 0,
       std::int64_t{1} << 26, "wanted a product below 2^38"},
      {"gate off", spec_of(16, 64, {}), 8, 4096, "no multiple of 16"},
      {"up off", spec_of(16, 64, {}), 0, 4104, "no multiple of 16"},
      {"same pointer", spec_of(16, 64, {}), 4096, 4096, "more than 0"},
      {"too far", spec_of(16, 64, {}), 0, far, "not below 2^40"},
      {"too far, up lower", spec_of(16, 64, {}), far + 16, 16, "not below 2^40"},
      {"stride too large", spec_of(16, 64, {.row_stride_bytes = far}), 0, 4096, "not below 2^40"},
      {"eight rows too far", spec_of(16, 64, {.row_stride_bytes = far / 8}), 0, 4096,
       "not below 2^40"},
      {"fp64", spec_of(16, 64, {}, DType::kF64), 0, 16 * 512, "fp64"},
      {"wide", spec_of(8, std::int64_t{1} << 32, {}), 0, std::int64_t{1} << 37, "2^32"},
  };
  for (const RefusalCase& c : cases) {
    const auto made = make_pair_view(c.spec, pointer(c.gate), pointer(c.up), kBoxK, 4);
    ASSERT_FALSE(made) << c.name;
    EXPECT_EQ(made.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(made.error().text().find(c.reason), std::string_view::npos)
        << c.name << ": " << made.error().message;
  }
}

// As the kernels divide: the first groups of each q and the last whose product stays below 2^32.
TEST(TensorView, ReciprocalsDivide) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 32;
  const auto walk_of = [](std::int64_t q, int a_block) {
    return sm90::PairWalk{4, sm90::PairWalk::reciprocal(q), 1, a_block, 1, 1};
  };
  for (std::int64_t q = 2; q < 65536; q += 1 + q / 40) {
    const sm90::PairWalk walk = walk_of(q, 3);
    const std::int64_t end = std::min((kLimit - 1) / q, std::int64_t{1} << 28);
    for (std::int64_t at = 0; at < std::min(4 * q, end); ++at) {
      for (const std::int64_t group : {at, end - at}) {
        ASSERT_EQ(walk.last_coordinate(static_cast<int>(group)), group + 3 * (group / q))
            << group << " / " << q;
      }
    }
  }
  EXPECT_EQ(walk_of(1, 0).last_coordinate(12345), 12345);
}

TEST(TensorView, LargestDistanceBelowTheLimit) {
  const std::int64_t far = (std::int64_t{1} << 40) - 16;
  EXPECT_TRUE(make_pair_view(spec_of(16, 64, {}), pointer(16), pointer(16 + far), kBoxK, 4));
}

TEST(TensorView, BoxesHaveLimits) {
  const OperandSpec spec = spec_of(16, 64, {});
  EXPECT_TRUE(make_pair_view(spec, pointer(0), pointer(4096), 256, 256));
  EXPECT_FALSE(make_pair_view(spec, pointer(0), pointer(4096), 257, 4));
  EXPECT_FALSE(make_pair_view(spec, pointer(0), pointer(4096), 64, 0));
  EXPECT_FALSE(make_matrix_view(spec, pointer(0), 64, 257));
}

TEST(TensorView, SupportsAndRunAgree) {
  for (std::int64_t b = 1; b <= 40; ++b) {
    for (const std::int64_t rows : {16, 24, 40, 80}) {
      const OperandSpec spec = spec_of(rows, 64, interleaved_rows(b, 64, DType::kBF16));
      EXPECT_EQ(pair_view_refusal(spec).empty(),
                make_pair_view(spec, pointer(0), pointer(b * 128), kBoxK, 4).has_value())
          << b << " " << rows;
    }
  }
}

TEST(TensorView, PlainMatrices) {
  OperandSpec spec = spec_of(33, 61, {.row_stride_bytes = 160});
  const auto view = make_matrix_view(spec, pointer(256), 64, 32);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->rank, 2);
  EXPECT_EQ(view->dims[0], 61);
  EXPECT_EQ(view->dims[1], 33);
  EXPECT_EQ(view->strides_bytes[1], 160);
  EXPECT_FALSE(make_matrix_view(spec_of(33, 61, {}), pointer(0), 64, 32));  // 122 bytes a row
  EXPECT_FALSE(make_matrix_view(spec, pointer(8), 64, 32));
  EXPECT_FALSE(
      make_matrix_view(spec_of(33, 64, interleaved_rows(4, 64, DType::kBF16)), pointer(0), 64, 32));
  spec.layout.row_stride_bytes = 0;
  EXPECT_FALSE(make_matrix_view(spec, pointer(0), 64, 32));
  // One row walks no stride: any is right, and the driver is given a legal one.
  const auto one = make_matrix_view(spec_of(1, 61, {}), pointer(0), 64, 32);
  ASSERT_TRUE(one);
  EXPECT_EQ(one->strides_bytes[1] % kTensorStrideMultiple, 0);
}

}  // namespace
}  // namespace sluice::cuda
