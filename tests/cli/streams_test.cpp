// SPDX-License-Identifier: Apache-2.0
// Output that does not arrive, and options that nothing reads: neither is success.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "process.hpp"
#include "results_file.hpp"

namespace sluice::tests {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Words = std::vector<std::string>;

TEST(Output, AFullDeviceIsTold) {
  for (const Words& words :
       {Words{"verify", "4x64x96", "--device", "cpu"},
        {"info"},
        {"info", "--json", "-"},
        {"explain", "4x64x96", "--device", "cpu"},
        {"bench", "4x64x96", "--quick", "--no-ceilings", "--device", "cpu"},
        {"bench", "4x64x96", "--quick", "--no-ceilings", "--device", "cpu", "--json", "-"},
        {"list", "tokens"},
        {"list", "models"},
        {"memory"},
        {"--help"},
        {"--version"}}) {
    const Outcome full = sluice(words, {}, {.out = "/dev/full"});
    EXPECT_EQ(full.code, 2) << words[0] << full.err;
    EXPECT_THAT(full.err, HasSubstr("sluice: standard output: cannot be written")) << words[0];
    const Outcome closed = sluice(words, {}, {.out = ""});
    EXPECT_EQ(closed.code, 2) << words[0] << closed.err;
  }
}

// What is read is not replaced, and a path that is no name is told.
TEST(Output, AnInputIsNoOutput) {
  const Folder folder;
  const std::string cases = folder.write("cases.txt", "4x64x96\n");
  const Outcome bench = sluice({"bench", "--file", cases, "--json", cases, "--device", "cpu"});
  EXPECT_EQ(bench.code, 2);
  EXPECT_THAT(bench.err, HasSubstr("cases.txt: is read, and would be replaced"));
  EXPECT_EQ(read_file(cases), "4x64x96\n");
  EXPECT_EQ(sluice({"report", cases, "-o", cases}).code, 2);
  EXPECT_EQ(read_file(cases), "4x64x96\n");
  const std::string cache = folder.write("cache", "");
  EXPECT_EQ(
      sluice({"bench", "4x64x96", "--tune-cache", cache, "--json", cache, "--device", "cpu"}).code,
      2);
  EXPECT_EQ(read_file(cache), "");
  for (const Words& words :
       {Words{"report", cases, "-o", "-"},
        {"pack", cases, "--out", "config.json", "--block", "8"},
        {"bench", "4x64x96", "--quick", "--device", "cpu", "--json", ""},
        {"verify", "4x64x96", "--device", "cpu", "--foreign", ""},
        {"verify", "4x64x96", "--device", "cpu", "--variant", ""},
        {"verify", "4x64x96", "--device", "cpu", "--config", ""},
        {"bench", "4x64x96", "--quick", "--device", "cpu", "--dtype", ""},
        {"bench", "4x64x96", "--quick", "--device", "cpu", "--checkpoint", ""},
        {"verify", "4x64x96:weight_grad:minimal", "--device", "cpu"},
        {"explain", "4x64x96", "--device", "cpu", "--tune-cache", folder.path("none")}}) {
    EXPECT_EQ(sluice(words).code, 2) << words[0];
  }
}

// A pipe has one document, whatever the bench's time.
TEST(Output, APipeIsWrittenOnce) {
  const Folder folder;
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::string text;
  std::thread reader([&] { text = read_file(pipe); });
  const Outcome bench =
      sluice({"bench", "4x64x96", "5x64x96", "6x64x96", "--quick", "--no-ceilings", "--device",
              "cpu", "--milliseconds", "600", "--json", pipe});
  reader.join();
  EXPECT_EQ(bench.code, 0) << bench.err;
  EXPECT_EQ(read_results(text)["rows"].size(), 3U);
}

TEST(Output, AZeroByteIsNoText) {
  const Folder folder;
  const std::string cases = folder.write("cases.txt", std::string("4x64x96\0:bogus\n", 15));
  const Outcome verify = sluice({"verify", "--file", cases, "--device", "cpu"});
  EXPECT_EQ(verify.code, 2);
  EXPECT_THAT(verify.err, HasSubstr("cases.txt: holds a zero byte, wanted text"));
  const std::string last = folder.write("last.txt", "# none\n\n4x64x96");  // no end of line
  EXPECT_EQ(sluice({"verify", "--file", last, "--device", "cpu"}).code, 0);
}

TEST(Output, ALongLineIsNoCase) {
  const Folder folder;
  const std::string cases = folder.write("cases.txt", "4x64x96\n" + std::string(8192, ' '));
  const Outcome verify = sluice({"verify", "--file", cases, "--device", "cpu"});
  EXPECT_EQ(verify.code, 2);
  EXPECT_THAT(verify.err, HasSubstr("cannot be read to its end"));
}

TEST(Output, ATunedFileIsKeptWhereTheTableIsLost) {
  const Folder folder;
  const std::string cache = folder.path("cache");
  const Outcome full = sluice({"tune", "--device", "cpu", "--memory", "4", "--seconds", "0.1",
                               "1x64x96", "--tune-cache", cache},
                              {}, {.out = "/dev/full"});
  EXPECT_EQ(full.code, 2) << full.err;
  EXPECT_THAT(read_file(cache), StartsWith("sluice tune 2\n"));
}

TEST(Output, ALostStandardErrorChangesNoExitCode) {
  for (const char* err : {"", "/dev/full"}) {
    const Streams streams{.err = err};
    EXPECT_EQ(sluice({"bench", "4x64x96", "--quick", "--no-ceilings", "--device", "cpu",
                      "--baseline", "cublaslt_chain", "--milliseconds", "2"},
                     {}, streams)
                  .code,
              0);
    EXPECT_EQ(sluice({}, {}, streams).code, 2);
    EXPECT_EQ(sluice({"purr"}, {}, streams).code, 2);
    EXPECT_EQ(sluice({"verify"}, {}, streams).code, 2);
    EXPECT_EQ(sluice({"verify", "4x64"}, {}, streams).code, 2);
    EXPECT_EQ(sluice({"bench", "4x64x96", "--purple"}, {}, streams).code, 2);
    EXPECT_EQ(sluice({"explain", "4x64x96", "--device", "cuda:99"}, {}, streams).code, 3);
  }
}

// What is told on a closed standard error must not land in the next file that is opened.
TEST(Output, AClosedStandardErrorWritesIntoNoFile) {
  const Folder folder;
  const std::string file = folder.path("out.json");
  const Outcome bench = sluice({"bench", "4x64x96", "--quick", "--no-ceilings", "--device", "cpu",
                                "--baseline", "cublaslt_chain", "--json", file},
                               {}, {.err = ""});
  EXPECT_EQ(bench.code, 0);
  EXPECT_TRUE(nlohmann::json::accept(read_file(file)));
}

TEST(Output, AFailedBenchLeavesTheFileOfAnEarlierOne) {
  const Folder folder;
  const std::string file = folder.write("out.json", "earlier");
  const Words common = {"--quick", "--no-ceilings", "--device", "cpu", "--json"};
  for (const Words& wrong : {Words{"4x64x96", "--variant", "cpu.magic"},
                             {"--checkpoint", folder.path("none.safetensors")},
                             {"4x64x96:fp64", "--variant", "cpu.simd"},
                             {"0x64x96"}}) {
    for (const std::string& path : {file, folder.path("absent.json")}) {
      Words words = {"bench"};
      words.insert(words.end(), wrong.begin(), wrong.end());
      words.insert(words.end(), common.begin(), common.end());
      words.push_back(path);
      EXPECT_THAT(sluice(words).code, AnyOf(2, 3)) << wrong[0];
    }
    EXPECT_EQ(read_file(file), "earlier") << wrong[0];
    EXPECT_EQ(read_file(folder.path("absent.json")), "") << wrong[0];
  }
}

TEST(Options, WhatNothingReadsIsAnError) {
  const Folder folder;
  const auto usage = [](const Words& words, const std::string& text) {
    const Outcome outcome = sluice(words);
    EXPECT_EQ(outcome.code, 2) << words[0] << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr(text)) << words[0];
  };
  for (const char* option : {"--config", "--variant", "--tune-cache"}) {
    usage({"verify", "4x64x96", "--all-variants", option, "nonsense", "--device", "cpu"}, option);
  }
  for (const char* verb : {"bench", "tune"}) {
    usage({verb, "4x64x96", "--tp", "8", "--device", "cpu"}, "tp: is read only with --model");
    usage({verb, "4x64x96", "--tokens", "7", "--device", "cpu"},
          "tokens: is read only with --model or --checkpoint");
    usage({verb, "--checkpoint", folder.path("none"), "--dtype", "fp16", "--device", "cpu"},
          "dtype: is read only with cases, --file or --model");
  }
  usage({"bench", "--checkpoint", folder.path("none"), "--baseline", "own_unfused"},
        "--baseline is not read");
}

TEST(Options, NumbersBeyondTheirRangeAreNamed) {
  const auto usage = [](const Words& words, const std::string& text) {
    const Outcome outcome = sluice(words);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr(text)) << words[0];
  };
  usage({"tune", "1x64x96", "--memory", "9223372036854775807"},
        "--memory: got 9223372036854775807, wanted an integer of at most 8796093022207");
  usage({"verify", "1x64x96", "--seed", "18446744073709551616"},
        "--seed: got 18446744073709551616, wanted an integer of at most 18446744073709551615");
  usage({"verify", "1x64x96", "--threads", "3000000000"},
        "--threads: got 3000000000, wanted an integer of at most 2147483647");
  usage({"memory", "--tokens", "100000000000000"},
        "--tokens: got 100000000000000, wanted an integer of at most 2147483648");
  const Outcome seeded = sluice(
      {"verify", "4x64x96", "--seed", "18446744073709551615", "--device", "cpu", "--threads", "1"});
  EXPECT_EQ(seeded.code, 0) << seeded.err;
  EXPECT_THAT(seeded.out, HasSubstr("seed=18446744073709551615"));
}

// Ranges are counted: behind the last number of 64 bits there is none.
TEST(Options, ATokenRangeMayEndAtTheLastNumber) {
  const std::string range = "9223372036854775806-9223372036854775807";
  const Folder folder;
  const Outcome tokens = sluice(
      {"tune", "--model", "llama-3.1-8b", "--tokens", range, "--device", "cpu", "--seconds", "1"});
  EXPECT_EQ(tokens.code, 2) << tokens.out;
  EXPECT_THAT(tokens.err, HasSubstr("9223372036854775806"));
  const Outcome file =
      sluice({"verify", "--file", folder.write("list.txt", range + "x64x96\n"), "--device", "cpu"});
  EXPECT_EQ(file.code, 2) << file.out;
}

TEST(Memory, TheMostTokensOfEveryModelStayPositive) {
  const Outcome memory =
      sluice({"memory", "--tokens", "2147483648", "--dtype", "fp64", "--json", "-"});
  ASSERT_EQ(memory.code, 0) << memory.err;
  const nlohmann::json lines = read_results(memory.out)["memory"];
  EXPECT_FALSE(lines.empty());
  for (const auto& line : lines) {
    EXPECT_GT(line["fused_bytes"].get<std::int64_t>(), 0) << line;
    EXPECT_GT(line["unfused_bytes"], line["fused_bytes"]) << line;
    EXPECT_LT(line["unfused_bytes"].get<std::int64_t>(), std::int64_t{1} << 62) << line;
  }
}

}  // namespace
}  // namespace sluice::tests
