// SPDX-License-Identifier: Apache-2.0
// The results writer and the ceilings it reports.
#include "harness/results.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "harness/ceilings.hpp"
#include "harness/rig.hpp"

namespace sluice::harness {
namespace {

using ::testing::HasSubstr;

TEST(Results, AbsentValuesAreNullsAndKeysStay) {
  const auto row = to_json(Row{});
  for (const char* key : {"model", "roof_fraction", "baseline", "baseline_us", "ratio", "rel_err",
                          "baseline_extra_bytes"}) {
    ASSERT_TRUE(row.contains(key)) << key;
    EXPECT_TRUE(row[key].is_null()) << key;
  }
  const auto meta = to_json(Meta{});
  for (const char* key : {"max_simd", "driver", "cuda", "read_tbps", "copy_tbps", "gemm_tflops",
                          "mma_sync_tflops", "fma_gflops", "bf16_gflops"}) {
    ASSERT_TRUE(meta.contains(key)) << key;
    EXPECT_TRUE(meta[key].is_null()) << key;
  }
}

TEST(Results, ValuesRoundTrip) {
  Row row;
  row.op = "mlp";
  row.model = "m";
  row.us = 1.0 / 3;
  row.ratio = 2.5;
  row.m = std::int64_t{1} << 40;
  const std::string text = results_json(Meta{}, {&row, 1}).dump();
  const auto back = nlohmann::json::parse(text)["rows"][0];
  EXPECT_EQ(back["op"], "mlp");
  EXPECT_EQ(back["model"], "m");
  EXPECT_EQ(back["us"].get<double>(), 1.0 / 3);
  EXPECT_EQ(back["ratio"], 2.5);
  EXPECT_EQ(back["m"], std::int64_t{1} << 40);
}

TEST(Results, AnUnwritableFileIsAnError) {
  const Status status = write_text("/nowhere/at/all", "text");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.error().message, HasSubstr("/nowhere/at/all: cannot be written"));
  const Status early = check_writable("/nowhere/at/all");
  ASSERT_FALSE(early);
  EXPECT_STREQ(early.error().message, status.error().message);
  EXPECT_TRUE(check_writable("-"));
  EXPECT_TRUE(check_writable(""));
}

TEST(Ceilings, TheFloorIsTheSlowerLimit) {
  Ceilings c;
  EXPECT_FALSE(floor_us(c, 1, 1));
  c.read_tbps = 2;  // 2e12 bytes a second: 2e6 a microsecond
  EXPECT_DOUBLE_EQ(floor_us(c, 6e6, 1e18).value(), 3);
  c.fma_gflops = 5;  // 5e3 FLOPs a microsecond
  EXPECT_DOUBLE_EQ(floor_us(c, 6e6, 1e3).value(), 3);
  EXPECT_DOUBLE_EQ(floor_us(c, 6e6, 5e5).value(), 100);
  c.bf16_gflops = 10;
  EXPECT_DOUBLE_EQ(floor_us(c, 6e6, 5e5, Arithmetic::kBf16Dots).value(), 50);
  c.gemm_tflops = 4;  // 4e6 FLOPs a microsecond; the FMA ceiling no longer counts
  EXPECT_DOUBLE_EQ(floor_us(c, 6e6, 40e6).value(), 10);
}

TEST(Ceilings, OfThisCpuAreWithinPhysics) {
  const auto rig = open_rig("cpu");
  ASSERT_TRUE(rig);
  const auto c = measure_ceilings(**rig, {.threads = 1, .quick = true});
  ASSERT_TRUE(c) << c.error().message;
  // One thread of any x86-64 machine: between a byte a nanosecond and 1 TB/s; between one FLOP a
  // nanosecond and 64 a cycle at 10 GHz.
  EXPECT_GT(*c->read_tbps, 1e-3);
  EXPECT_LT(*c->read_tbps, 1);
  EXPECT_GT(*c->copy_tbps, 1e-3);
  EXPECT_LT(*c->copy_tbps, 1);
  EXPECT_GT(*c->fma_gflops, 1);
  EXPECT_LT(*c->fma_gflops, 640);
  const bool has_dots = (cpu_device().simd_targets >> 3 & 1U) != 0;
  EXPECT_EQ(c->bf16_gflops.has_value(), has_dots);
  if (has_dots) {
    EXPECT_GT(*c->bf16_gflops, 1);
    EXPECT_LT(*c->bf16_gflops, 1280);
  }
  EXPECT_FALSE(c->gemm_tflops);
}

}  // namespace
}  // namespace sluice::harness
