// SPDX-License-Identifier: Apache-2.0
// verify --foreign: libraries with planted errors (planted.c), and those that are none.
#include "sluice/foreign.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "process.hpp"
#include "results_file.hpp"

namespace sluice::tests {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

std::string module(const std::string& name) {
  return std::string(std::getenv("SLUICE_TEST_MODULES")) + "/libsluice_tests_" + name + ".so";
}

// The library of loops with this planted error; the cases of all its operators without any.
Outcome check(const std::string& plant, const std::vector<std::string>& words = {}) {
  std::vector<std::string> arguments = {"verify", "--device", "cpu", "--foreign",
                                        module("planted")};
  arguments.insert(arguments.end(), words.begin(), words.end());
  return sluice(arguments, {"SLUICE_TEST_PLANT=" + plant});
}

TEST(Foreign, LoopsPassTheTestsOwnCases) {
  const Outcome all = check("");
  EXPECT_EQ(all.code, 0) << all.out << all.err;
  EXPECT_THAT(all.out, ContainsRegex("\nmlp +[0-9]{3} +0 +[0-9]+\n"));
  EXPECT_THAT(all.out, ContainsRegex("\ngate_mul +[0-9]{3} +0 +[0-9]+\n"));
  EXPECT_THAT(all.out, Not(HasSubstr("passed 5x")));
  EXPECT_THAT(all.out, HasSubstr("skipped 5x48x72:fp16: types: bf16, fp32, fp64\n"));
  EXPECT_THAT(all.err, IsEmpty());
}

TEST(Foreign, ACaseIsReportedAsVerifyDoes) {
  const Outcome one = check("", {"4x64x96:fp32"});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, StartsWith("passed 4x64x96:fp32\n  y: 256 elements within bound"));
  const Outcome some = check("", {"4x64x96", "4x64x96:gate_up", "4x64x96:norm", "--seed", "7"});
  EXPECT_EQ(some.code, 0) << some.err;
  EXPECT_THAT(some.out, HasSubstr("passed 4x64x96:seed=7\n"));
  EXPECT_THAT(some.out,
              HasSubstr("skipped 4x64x96:gate_up:seed=7: has no sluice_foreign_gate_up\n"));
  EXPECT_THAT(some.out, HasSubstr("skipped 4x64x96:norm:seed=7: norm\n"));
  EXPECT_THAT(some.out, ContainsRegex("\nmlp +1 +0 +1\n"));
}

// By one case that shows it; what a tolerance hides also by the tests' own cases.
TEST(Foreign, PlantedErrorsAreCaught) {
  struct Plant {
    const char* name;
    const char* test_case;
    const char* finding;
  };
  for (const Plant& plant : {
           Plant{"rounding", "8x64x96:gate_mul", "h: [0-9]+ of 768 elements out of bound"},
           Plant{"last_row", "8x64x96:gate_mul", "h: 96 of 768 elements out of bound"},
           Plant{"last_row", "8x64x96", "y: 64 of 512 elements out of bound"},
           Plant{"last_row", "40x64x96:gate_mul:fill=special", "h: [0-9]+ of 3840 elements out of"},
           Plant{"past_end", "8x64x96:gate_mul", "stray write: h: a write 1 bytes behind its last"},
           Plant{"past_end", "8x64x96:pad=8", "stray write: y: a write 1 bytes behind its last"},
           Plant{"swap", "8x64x96:gate_mul", "h: [0-9]+ of 768 elements out of bound"},
           Plant{"swap", "8x64x96:concat", "y: [0-9]+ of 512 elements out of bound"},
           Plant{"column", "8x64x96:gate_mul", "h: [0-9]+ of 768 elements out of bound"},
           Plant{"column", "8x64x96:fp32",
                 "y: 8 of 512 elements out of bound; worst at \\([0-9], 63"},
           Plant{"input", "8x64x96", "stray write: x: the input was written to"},
           Plant{"error", "8x64x96:gate_mul", "error: the kernel did not start"},
       }) {
    SCOPED_TRACE(std::string(plant.name) + " " + plant.test_case);
    const Outcome one = check(plant.name, {plant.test_case});
    EXPECT_EQ(one.code, 1) << one.out << one.err;
    EXPECT_THAT(one.out, StartsWith(std::string("FAILED ") + plant.test_case));
    EXPECT_THAT(one.out, ContainsRegex(plant.finding));
    EXPECT_THAT(one.out, HasSubstr("repeat with: sluice verify --foreign " + module("planted") +
                                   " --device cpu '" + plant.test_case + "'\n"));
  }
  for (const char* plant : {"rounding", "column"}) {
    const Outcome all = check(plant);
    EXPECT_EQ(all.code, 1) << plant;
    EXPECT_THAT(all.out, HasSubstr("FAILED ")) << plant;
  }
}

// What an unfused program may do is no error of one, and all else still is.
TEST(Foreign, UnfusedAllowsStoresBetweenOperators) {
  EXPECT_EQ(check("rounding", {"8x64x96:gate_mul", "--unfused"}).code, 0);
  for (const char* plant : {"last_row", "past_end", "swap"}) {
    const Outcome one = check(plant, {"8x64x96:gate_mul", "--unfused"});
    EXPECT_EQ(one.code, 1) << plant;
    EXPECT_THAT(one.out, HasSubstr(" --unfused --device cpu '8x64x96:gate_mul'\n"));
  }
  EXPECT_EQ(check("column", {"8x64x96:fp32", "--unfused"}).code, 1);
}

TEST(Foreign, JsonHasARecordForEachCase) {
  const Outcome outcome =
      check("column", {"8x64x96:fp32", "8x64x96:fp16", "0x64x96", "--json", "-"});
  EXPECT_EQ(outcome.code, 1);
  const auto results = read_results(outcome.out);
  const auto& checks = results["checks"];
  ASSERT_EQ(checks.size(), 3U);
  EXPECT_EQ(checks[0]["case"], "8x64x96:fp32");
  EXPECT_EQ(checks[0]["op"], "mlp");
  EXPECT_EQ(checks[0]["outcome"], "failed");
  EXPECT_GT(checks[0]["bound_share"].get<double>(), 1);
  EXPECT_EQ(checks[1]["outcome"], "skipped");
  EXPECT_EQ(checks[1]["reason"], "types: bf16, fp32, fp64");
  EXPECT_TRUE(checks[1]["bound_share"].is_null());
  EXPECT_EQ(checks[2]["outcome"], "passed");
}

TEST(Foreign, WhatIsNoLibraryIsTwoAndNamed) {
  const auto refused = [](const std::string& library, const std::string& why) {
    const Outcome outcome = sluice({"verify", "4x64x96", "--device", "cpu", "--foreign", library});
    EXPECT_EQ(outcome.code, 2) << library;
    EXPECT_THAT(outcome.err, AllOf(StartsWith("sluice: " + library + ": "), HasSubstr(why)));
    EXPECT_EQ(lines_of(outcome.err).size(), 1U) << outcome.err;
    EXPECT_THAT(outcome.out, IsEmpty());
  };
  const Folder folder;
  refused("none.so", "no such file");
  refused(folder.write("text.so", "no machine code"), "cannot be loaded: ");
  refused(module("missing_symbol"), "undefined symbol: not_linked_with");
  refused(module("no_version"), "has no sluice_foreign_version; sluice/foreign.h says");
  refused(module("no_operator"), "has no operator, such as sluice_foreign_mlp");
  const Outcome version = check("version", {"4x64x96"});
  EXPECT_EQ(version.code, 2);
  EXPECT_THAT(version.err, HasSubstr(": sluice_foreign_version is 2, wanted 1\n"));
}

TEST(Foreign, OptionsThatNothingReadsAreErrors) {
  for (const char* word : {"--all-variants", "--step", "--variant=cpu.simd", "--threads=1"}) {
    EXPECT_EQ(check("", {"4x64x96", word}).code, 2) << word;
  }
  EXPECT_EQ(sluice({"verify", "4x64x96", "--device", "cpu", "--unfused"}).code, 2);
  EXPECT_EQ(sluice({"verify", "4x64x96", "--device", "cpu", "--json", "-"}).code, 2);
}

TEST(Foreign, WhatIsSkippedAloneIsThree) {
  const Outcome skipped = check("", {"4x64x96:fp16"});
  EXPECT_EQ(skipped.code, 3);
  EXPECT_THAT(skipped.out, HasSubstr("skipped 4x64x96:fp16: "));
  EXPECT_THAT(skipped.err, HasSubstr("every case was skipped"));
}

// Unloading the library would take the code from under its thread.
TEST(Foreign, AThreadOfTheLibraryMayOutliveItsCalls) {
  EXPECT_EQ(check("thread", {"4x64x96"}).code, 0);
}

TEST(Foreign, ALibraryIsFoundFromItsOwnFolder) {
  const std::string relative =
      std::filesystem::relative(module("planted"), std::filesystem::current_path()).string();
  EXPECT_EQ(sluice({"verify", "4x64x96", "--device", "cpu", "--foreign", relative}).code, 0);
}

}  // namespace
}  // namespace sluice::tests
