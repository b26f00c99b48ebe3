// SPDX-License-Identifier: Apache-2.0
// Tables: exact entries, and which of several is the nearest.
#include "tune/table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "problems.hpp"

namespace sluice::tune {
namespace {

using tests::entry_of;
using tests::mlp;

ProblemKey key(const Problem& p) { return key_of(p, cpu_device()); }

Entry entry(const Problem& p, const char* config = "c") {
  return entry_of(p, cpu_device(), "v", config);
}

Table table_of(const std::vector<Problem>& problems) {
  Table table;
  for (const Problem& p : problems) {
    const Entry e = entry(p);
    table.add({&e, 1});
  }
  return table;
}

// "MxDxH" of the nearest entry, "" where none is near.
std::string nearest(const Table& table, const Problem& p) {
  const Entry* found = table.nearest(key(p));
  if (found == nullptr) return "";
  return std::to_string(found->key.m) + "x" + std::to_string(found->key.d) + "x" +
         std::to_string(found->key.h);
}

TEST(Table, FindsExactEntriesAlone) {
  std::vector<Problem> problems;
  for (std::int64_t m = 1; m <= 64; ++m) {
    problems.push_back(mlp(m));
    problems.push_back(mlp(m, 128, 256));
  }
  const Table table = table_of(problems);
  EXPECT_EQ(table.entries().size(), problems.size());
  for (const Problem& p : problems) {
    const Entry* found = table.exact(key(p));
    ASSERT_NE(found, nullptr) << to_string(p);
    EXPECT_EQ(found->key, key(p));
  }
  EXPECT_EQ(table.exact(key(mlp(65))), nullptr);
  EXPECT_EQ(table.exact(key(mlp(1, 64, 97))), nullptr);
  EXPECT_EQ(Table().exact(key(mlp(1))), nullptr);
  EXPECT_EQ(Table().nearest(key(mlp(1))), nullptr);
}

TEST(Table, NewerEntriesReplaceOlder) {
  Table table;
  const std::vector<Entry> both = {entry(mlp(1), "first"), entry(mlp(1), "second")};
  table.add(both);
  ASSERT_EQ(table.entries().size(), 1U);
  EXPECT_STREQ(table.entries()[0].config, "second");
  const Entry third = entry(mlp(1), "third");
  table.add({&third, 1});
  ASSERT_EQ(table.entries().size(), 1U);
  EXPECT_STREQ(table.entries()[0].config, "third");
}

TEST(Table, NearestInTokens) {
  const Table table = table_of({mlp(1), mlp(8), mlp(64)});
  EXPECT_EQ(nearest(table, mlp(1)), "1x64x96");
  EXPECT_EQ(nearest(table, mlp(2)), "1x64x96") << "a factor of two is near";
  EXPECT_EQ(nearest(table, mlp(3)), "") << "more is not";
  EXPECT_EQ(nearest(table, mlp(4)), "8x64x96");
  EXPECT_EQ(nearest(table, mlp(16)), "8x64x96");
  EXPECT_EQ(nearest(table, mlp(17)), "");
  EXPECT_EQ(nearest(table, mlp(32)), "64x64x96");
  EXPECT_EQ(nearest(table, mlp(128)), "64x64x96");
  EXPECT_EQ(nearest(table, mlp(129)), "");
}

// The M of a GPU's nearest entry, 0 where none is near.
std::int64_t nearest_on_gpu(const std::vector<std::int64_t>& tokens, std::int64_t m) {
  Device gpu;
  gpu.backend = Backend::kCuda;
  Table table;
  for (const std::int64_t t : tokens) {
    const Entry e = entry_of(mlp(t), gpu, "v", "c");
    table.add({&e, 1});
  }
  const Entry* found = table.nearest(key_of(mlp(m), gpu));
  return found == nullptr ? 0 : found->key.m;
}

// Of 65 to 384 tokens on a GPU those are near that fill as many tiles of 32.
TEST(Table, NearTokensFillAsManyTiles) {
  const std::vector<std::int64_t> tokens = {64, 96, 128, 192, 256, 384, 512};
  const struct {
    std::int64_t m;
    std::int64_t found;
  } cases[] = {{40, 64}, {65, 96},   {96, 96},   {97, 128},  {128, 128}, {129, 0},    {136, 0},
               {160, 0}, {161, 192}, {192, 192}, {193, 0},   {225, 256}, {256, 256},  {257, 0},
               {352, 0}, {353, 384}, {384, 384}, {385, 512}, {700, 512}, {1024, 512}, {1025, 0}};
  for (const auto& c : cases) EXPECT_EQ(nearest_on_gpu(tokens, c.m), c.found) << c.m;
  EXPECT_EQ(nearest_on_gpu({384}, 385), 0);
  EXPECT_EQ(nearest_on_gpu({64}, 65), 0);
  EXPECT_EQ(nearest_on_gpu({128}, 64), 0);
}

TEST(Table, TokensAreNearByTheirRatioAndTiesGoUp) {
  const Table table = table_of({mlp(16), mlp(64)});
  EXPECT_EQ(nearest(table, mlp(31)), "16x64x96");
  EXPECT_EQ(nearest(table, mlp(33)), "64x64x96");
  EXPECT_EQ(nearest(table, mlp(32)), "64x64x96");
}

TEST(Table, WidthsAreNearWithinAQuarter) {
  const Table table = table_of({mlp(16, 4096, 14336)});
  EXPECT_EQ(nearest(table, mlp(16, 4096, 11472)), "16x4096x14336");
  EXPECT_EQ(nearest(table, mlp(16, 5120, 14336)), "16x4096x14336");
  EXPECT_EQ(nearest(table, mlp(16, 4096, 11456)), "");
  EXPECT_EQ(nearest(table, mlp(16, 5128, 14336)), "");
  EXPECT_EQ(nearest(table, mlp(16, 2048, 28672)), "") << "not the product of the widths";
}

TEST(Table, WidthsWeighMoreThanTokens) {
  const Table table = table_of({mlp(16, 4096, 14336), mlp(30, 4096, 12288)});
  EXPECT_EQ(nearest(table, mlp(30, 4096, 12544)), "30x4096x12288");
  EXPECT_EQ(nearest(table, mlp(28, 4096, 14336)), "16x4096x14336");
}

TEST(Table, AddsAreAWeakDifference) {
  Problem biased = mlp(16);
  biased.bias_gate_up = true;
  const Table table = table_of({biased, mlp(20)});
  EXPECT_EQ(nearest(table, mlp(16)), "16x64x96") << "the bias is less than four tokens";
  EXPECT_EQ(nearest(table, mlp(19)), "20x64x96");
}

TEST(Table, NeverAnswersForAnotherKind) {
  const Table table = table_of({mlp(16)});
  const auto none = [&](const char* what, auto&& change) {
    Problem p = mlp(16);
    change(p);
    EXPECT_EQ(nearest(table, p), "") << what;
  };
  none("op", [](Problem& p) { p.op = Op::kGateUp; });
  none("x", [](Problem& p) { p.x_dtype = DType::kF32; });
  none("w", [](Problem& p) { p.w_dtype = DType::kF16; });
  none("y", [](Problem& p) { p.y_dtype = DType::kF32; });
  none("norm", [](Problem& p) { p.norm.enabled = true; });
  none("save", [](Problem& p) { p.save_g_u = true; });
  none("static", [](Problem& p) { p.weights_static = false; });
  none("rows", [](Problem& p) { p.layout.w_gate_up = interleaved_rows(1, p.d, p.w_dtype); });
  Device more = cpu_device();
  more.threads += 1;
  EXPECT_EQ(table.nearest(key_of(mlp(16), more)), nullptr) << "threads";
  ProblemKey none_to_run = key(mlp(16));
  none_to_run.m = 0;
  EXPECT_EQ(table.nearest(none_to_run), nullptr);
}

// Against the definition, entry by entry.
TEST(Table, NearestIsTheSmallestDistance) {
  std::vector<Problem> problems;
  for (const std::int64_t m : {1, 2, 3, 5, 8, 13, 21, 34}) {
    for (const std::int64_t d : {512, 576, 640}) {
      for (const std::int64_t h : {1024, 1200}) problems.push_back(mlp(m, d, h));
    }
  }
  const Table table = table_of(problems);
  const auto steps = [](std::int64_t a, std::int64_t b) {
    return std::fabs(std::log2(static_cast<double>(a)) - std::log2(static_cast<double>(b)));
  };
  for (std::int64_t m = 1; m < 80; ++m) {
    for (const std::int64_t d : {480, 544, 600, 700}) {
      const Problem asked = mlp(m, d, 1100);
      double least = std::numeric_limits<double>::infinity();
      const auto distance = [&](const ProblemKey& k) {
        return steps(k.m, m) + 4 * (steps(k.d, d) + steps(k.h, 1100));
      };
      for (const Problem& p : problems) {
        const bool near = steps(p.m, m) <= kMaxTokenSteps && steps(p.d, d) <= kMaxWidthSteps &&
                          steps(p.h, 1100) <= kMaxWidthSteps;
        if (near) least = std::min(least, distance(key(p)));
      }
      const Entry* found = table.nearest(key(asked));
      ASSERT_EQ(found != nullptr, std::isfinite(least)) << to_string(asked);
      if (found != nullptr) {
        EXPECT_DOUBLE_EQ(distance(found->key), least) << to_string(asked);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::tune
