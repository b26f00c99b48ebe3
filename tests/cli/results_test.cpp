// SPDX-License-Identifier: Apache-2.0
// The results writer and the ceilings it reports.
#include "harness/results.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "harness/ceilings.hpp"
#include "harness/results_read.hpp"
#include "harness/rig.hpp"

namespace sluice::harness {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

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

// The library is loaded into processes that chose one.
TEST(Results, NumbersHaveAPointInEveryLocale) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("sluice-locale-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string made = (folder / "de_DE.UTF-8").string();
  const bool there =
      std::system(("localedef -i de_DE -f UTF-8 " + made + " > /dev/null 2>&1").c_str()) == 0;
  setenv("LOCPATH", folder.c_str(), 1);
  const char* const chosen = there ? setlocale(LC_ALL, "de_DE.UTF-8") : nullptr;
  Meta meta;
  meta.read_tbps = 1.5;
  const std::string text = results_text(meta, {});
  setlocale(LC_ALL, "C");
  unsetenv("LOCPATH");
  std::filesystem::remove_all(folder);
  if (chosen == nullptr) GTEST_SKIP() << "no locale with a decimal comma can be made here";
  EXPECT_THAT(text, HasSubstr("\"read_tbps\": 1.5,"));
}

// The form that sluice.results writes and reads too (tests/python/test_results.py).
TEST(Results, ATextHasItsForm) {
  const nlohmann::ordered_json lists = {
      {"rows",
       {{{"op", "mlp"}, {"m", 1}, {"us", 1234.56}, {"model", nullptr}, {"clocks", "a"}},
        {{"op", "mlp"}, {"m", 2}, {"us", 1e-5}, {"model", nullptr}, {"clocks", "a"}},
        {{"op", "mlp"}, {"m", 123456}, {"us", NAN}, {"clocks", "a"}}}},
      {"checks", {{{"m", 1}, {"rel_err", 0.00129804}}, {{"m", 1}, {"note", "\xff"}}}}};
  Meta meta;
  meta.read_tbps = 0.0123456;
  const std::string text = results_text(meta, lists);
  EXPECT_THAT(text, StartsWith("{\n  \"meta\": {\n    \"device\": \"\",\n"));
  EXPECT_THAT(text, HasSubstr("    \"read_tbps\": 0.01235,\n"));
  EXPECT_THAT(text, EndsWith(R"(    "clocks": "",
    "op": "mlp",
    "model": null
  },
  "columns": ["m","us","clocks"],
  "rows": [
  [1,1235.0,"a"],
  [2,1e-05,"a"],
  [123456,null,"a"]
],
  "checks": {
    "meta": {
      "m": 1
    },
    "columns": ["rel_err","note"],
    "rows": [
  [0.001298,null],
  [null,")"
                             "\xef\xbf\xbd"
                             R"("]
]
  }
}
)"));
}

// A column of few words has them once.
TEST(Results, WordsOfManyRowsStandOnce) {
  nlohmann::ordered_json rows;
  for (int i = 0; i < 9; ++i) {
    rows.push_back({{"m", i}, {"config", i < 4 ? "lt0" : "lt1"}, {"case", std::to_string(i)}});
  }
  rows[8]["config"] = nullptr;
  const std::string text = results_text(Meta{}, {{"rows", rows}});
  EXPECT_THAT(text, HasSubstr("\"columns\": [\"m\",{\"config\":[\"lt0\",\"lt1\"]},\"case\"],\n"
                              "  \"rows\": [\n  [0,0,\"0\"],\n"));
  EXPECT_THAT(text, HasSubstr("[7,1,\"7\"],\n  [8,null,\"8\"]"));
  const auto read = read_results(text, "a.json");
  ASSERT_TRUE(read) << read.error().message;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const char* field : {"m", "config", "case"})
      EXPECT_EQ(read->rows[i][field], rows[i][field]);
  }
}

TEST(Results, OneRowIsAllInMeta) {
  Row row;
  row.op = "mlp";
  row.us = 1.0 / 3;
  row.m = std::int64_t{1} << 40;
  const std::string text = results_text(Meta{}, {{"rows", to_json(std::span(&row, 1))}});
  EXPECT_THAT(text, HasSubstr("\"columns\": [],\n  \"rows\": [\n  []\n]\n}\n"));
  const auto meta = nlohmann::json::parse(text)["meta"];
  EXPECT_EQ(meta["op"], "mlp");
  EXPECT_EQ(meta["us"], 0.3333);
  EXPECT_EQ(meta["m"], std::int64_t{1} << 40);
}

TEST(Results, ListsMayBeEmptyOrAbsent) {
  const auto none = nlohmann::ordered_json::array();
  EXPECT_THAT(results_text(Meta{}, {{"rows", none}}),
              EndsWith("  },\n  \"columns\": [],\n  \"rows\": []\n}\n"));
  const std::string text = results_text(Meta{}, {{"memory", none}});
  EXPECT_THAT(text, EndsWith("  \"memory\": {\n    \"meta\": {},\n    \"columns\": [],\n"
                             "    \"rows\": []\n  }\n}\n"));
  EXPECT_FALSE(nlohmann::json::parse(text).contains("rows"));
}

TEST(Results, RoundingIsHalfOfTheLastDigitOfOne) {
  EXPECT_DOUBLE_EQ(kRounding, 0.5 * std::pow(10, 1 - kSignificantDigits));
}

TEST(Results, AnUnwritableFileIsAnError) {
  const Status status = write_text("/nowhere/at/all", "text");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.error().message, HasSubstr("/nowhere/at/all: cannot be written"));
  const Status early = check_writable("/nowhere/at/all");
  ASSERT_FALSE(early);
  EXPECT_STREQ(early.error().message, status.error().message);
  EXPECT_FALSE(write_text("/dev/full", "text"));
  EXPECT_TRUE(write_text("/dev/null", "text"));
  EXPECT_TRUE(check_writable("/dev/null"));
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
  // One thread of any x86-64 machine: below 1 TB/s and 64 FLOPs a cycle at 10 GHz. There is no
  // lower limit: under a sanitizer on a busy machine copies came to 0.4 GB/s.
  EXPECT_GT(*c->read_tbps, 0);
  EXPECT_LT(*c->read_tbps, 1);
  EXPECT_GT(*c->copy_tbps, 0);
  EXPECT_LT(*c->copy_tbps, 1);
  EXPECT_GT(*c->fma_gflops, 0);
  EXPECT_LT(*c->fma_gflops, 640);
  const bool has_dots = (cpu_device().simd_targets >> 3 & 1U) != 0;
  EXPECT_EQ(c->bf16_gflops.has_value(), has_dots);
  if (has_dots) {
    EXPECT_GT(*c->bf16_gflops, 0);
    EXPECT_LT(*c->bf16_gflops, 1280);
  }
  EXPECT_FALSE(c->gemm_tflops);
}

}  // namespace
}  // namespace sluice::harness
