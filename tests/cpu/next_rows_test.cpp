// SPDX-License-Identifier: Apache-2.0
// What is prefetched: no result shows it, so addresses are checked.
#include "cpu/next_rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace sluice::cpu {
namespace {

constexpr int kRows = 4;

// Rows `row_bytes` long, one after the other, as many as a kernel may look at; never read.
class Rows {
 public:
  explicit Rows(std::int64_t row_bytes) {
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      lines_[i] = behind(kBase, row_bytes * static_cast<std::int64_t>(i));
    }
  }
  [[nodiscard]] const void* const* lines() const { return lines_.data(); }

  // Offsets from the first row that stream_ahead gives for its first kRows rows, at `begin`.
  [[nodiscard]] std::vector<std::int64_t> ahead(std::int64_t begin, std::int64_t end,
                                                std::int64_t row_bytes,
                                                std::int64_t ahead_bytes) const {
    std::array<const void*, kRows> to{};
    stream_ahead(lines(), kRows, begin, end, row_bytes, ahead_bytes, to.data());
    std::vector<std::int64_t> out(kRows);
    std::transform(to.begin(), to.end(), out.begin(), [&](const void* line) {
      return static_cast<const char*>(behind(line, begin)) - kBase;
    });
    return out;
  }

 private:
  static constexpr char kBase[1] = {};
  std::array<const void*, kRows + DotKernels::kAheadLines> lines_{};
};

TEST(StreamAhead, WholeRowsLookTheWantedBytesAhead) {
  const std::int64_t row = 1152;
  const std::int64_t third = 3 * row;  // 4096 bytes are three rows and a part
  EXPECT_EQ(Rows(row).ahead(0, row, row, 4096),
            (std::vector{third, third + row, third + 2 * row, third + 3 * row}));
}

TEST(StreamAhead, LooksAtOneRowAtLeastAndAtKAheadLinesAtMost) {
  const std::int64_t longer = 5000;
  EXPECT_EQ(Rows(longer).ahead(0, longer, longer, 4096)[0], longer);
  const std::int64_t shorter = 18;
  EXPECT_EQ(Rows(shorter).ahead(0, shorter, shorter, 4096)[0], shorter * DotKernels::kAheadLines);
}

TEST(StreamAhead, LongRowsThatFollowEachOtherLookAPartOfARowAhead) {
  const std::int64_t row = 20000;
  EXPECT_EQ(Rows(row).ahead(0, row, row, 4096),
            (std::vector<std::int64_t>{4096, row + 4096, 2 * row + 4096, 3 * row + 4096}));
  // With gaps between them a row ahead.
  EXPECT_EQ(Rows(row + 64).ahead(0, row, row, 4096)[0], row + 64);
  const std::int64_t short_enough = 16384;
  EXPECT_EQ(Rows(short_enough).ahead(0, short_enough, short_enough, 4096)[0], short_enough);
}

TEST(StreamAhead, PiecesOfRowsThatTakeTurnsAreOneStream) {
  const std::int64_t row = 10000;
  const Rows rows(row);
  EXPECT_EQ(rows.ahead(4096, 8192, row, 4096),
            (std::vector<std::int64_t>{row + 4096, 2 * row + 4096, 3 * row + 4096, 8192}));
  // Behind the last piece the next rows begin.
  EXPECT_EQ(rows.ahead(8192, row, row, 4096),
            (std::vector<std::int64_t>{row + 8192, 2 * row + 8192, 3 * row + 8192, 4 * row}));
}

TEST(ReadLines, LooksWhetherItIsOverEverySixteenLines) {
  // Of its very size, for AddressSanitizer.
  const std::vector<char> row(5000);
  const auto looks = [&](int over_at) {
    int count = 0;
    read_lines(row.data(), static_cast<std::int64_t>(row.size()),
               [&] { return ++count > over_at; });
    return count;
  };
  EXPECT_EQ(looks(100), 5);
  EXPECT_EQ(looks(0), 1);
  EXPECT_EQ(looks(2), 3);
}

TEST(NextRows, AreOneStreamOfRows) {
  const Rows rows(100);
  NextRows next(rows.lines(), 2, 100);
  const auto* const first = static_cast<const char*>(rows.lines()[0]);
  EXPECT_EQ(static_cast<const char*>(next.take(64)) - first, 0);
  EXPECT_EQ(static_cast<const char*>(next.take(64)) - first, 64);
  EXPECT_EQ(static_cast<const char*>(next.take(64)) - first, 128);
}

TEST(NextRows, PiecesOfAGroupOfRowsAskForTheNextGroupAsOneStream) {
  const Rows rows(1000);
  NextRows next(rows.lines(), kRows, 1000);
  const auto* const first = static_cast<const char*>(rows.lines()[0]);
  const auto asked = [&](std::int64_t begin, std::int64_t end) {
    std::array<const void*, 2> to{};
    next.beside(2, begin, end, to.data());
    std::vector<std::int64_t> out(to.size());
    std::transform(to.begin(), to.end(), out.begin(), [&](const void* line) {
      return static_cast<const char*>(behind(line, begin)) - first;
    });
    return out;
  };
  EXPECT_EQ(asked(0, 640), (std::vector<std::int64_t>{0, 640}));
  EXPECT_EQ(asked(640, 1000), (std::vector<std::int64_t>{1280, 1640}));
}

}  // namespace
}  // namespace sluice::cpu
