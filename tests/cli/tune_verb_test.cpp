// SPDX-License-Identifier: Apache-2.0
// sluice tune as a process, and the verbs that use what it keeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "process.hpp"
#include "sluice/sluice.hpp"

namespace sluice::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// Arguments that keep a tuning short: little memory, so little to walk.
Outcome tune(std::vector<std::string> more, const std::vector<std::string>& environment = {}) {
  std::vector<std::string> words = {"tune", "--device", "cpu", "--memory", "4"};
  words.insert(words.end(), more.begin(), more.end());
  return sluice(words, environment);
}

bool one_target() { return std::popcount(cpu_device().simd_targets) < 2; }

TEST(Tune, KeepsChoicesThatExplainNames) {
  if (one_target()) GTEST_SKIP() << "one SIMD target: nothing to choose";
  const Folder folder;
  const std::string cache = folder.path("cache");
  const Outcome first = tune({"1x64x96", "4x64x96", "--tune-cache", cache});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.err, IsEmpty());
  EXPECT_THAT(first.out, HasSubstr("2 measured, 0 known"));
  EXPECT_THAT(first.out, HasSubstr("kept in " + cache));
  EXPECT_THAT(read_file(cache), StartsWith("sluice tune 2\n"));
  EXPECT_EQ(lines_of(read_file(cache)).size(), 3U);

  const Outcome exact = sluice({"explain", "4x64x96", "--device", "cpu", "--tune-cache", cache});
  EXPECT_EQ(exact.code, 0) << exact.err;
  EXPECT_THAT(exact.out, HasSubstr("chosen     cpu.simd (tuning table)"));
  EXPECT_THAT(exact.out, HasSubstr("entry      measured for 4x64x96: "));
  const Outcome near =
      sluice({"explain", "5x64x96", "--device", "cpu"}, {"SLUICE_TUNE_CACHE=" + cache});
  EXPECT_THAT(near.out, HasSubstr("chosen     cpu.simd (nearest entry)"));
  const Outcome far = sluice({"explain", "500x64x96", "--device", "cpu", "--tune-cache", cache});
  EXPECT_THAT(far.out, HasSubstr("chosen     cpu.simd (heuristic)"));
  EXPECT_THAT(far.out, Not(HasSubstr("entry ")));
  const Outcome without = sluice({"explain", "4x64x96", "--device", "cpu"});
  EXPECT_THAT(without.out, HasSubstr("(heuristic)"));
  const Outcome verified = sluice({"verify", "4x64x96", "--device", "cpu", "--tune-cache", cache});
  EXPECT_EQ(verified.code, 0);
  EXPECT_THAT(verified.out, HasSubstr("cpu.simd (tuning table)"));

  const Outcome second = tune({"1x64x96", "2x64x96", "--tune-cache", cache});
  EXPECT_THAT(second.out, HasSubstr("1 measured, 1 known"));
  EXPECT_EQ(lines_of(read_file(cache)).size(), 4U);
  const Outcome again = tune({"1x64x96", "--again", "--candidates", "--tune-cache", cache});
  EXPECT_THAT(again.out, HasSubstr("mlp=emulated  "));
  EXPECT_THAT(again.out, HasSubstr("1 measured, 0 known"));
}

TEST(Tune, WhoStopsItKeepsWhatWasMeasured) {
  if (one_target()) GTEST_SKIP() << "one SIMD target: nothing to choose";
  const Folder folder;
  const std::string cache = folder.path("cache");
  const char* const program = std::getenv("SLUICE_TEST_PROGRAM");
  const pid_t child = fork();
  if (child == 0) {
    execl(program, program, "tune", "--device", "cpu", "--memory", "64", "--seconds", "60", "-q",
          "64x512x2048", "64x544x2048", "64x576x2048", "64x608x2048", "64x640x2048", "64x672x2048",
          "64x704x2048", "64x736x2048", "64x768x2048", "64x800x2048", "--tune-cache", cache.c_str(),
          nullptr);
    _exit(127);
  }
  for (int i = 0; i < 6000 && lines_of(read_file(cache)).size() < 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << "it was still measuring";
  EXPECT_GT(lines_of(read_file(cache)).size(), 1U);
}

TEST(Tune, TakesModelsAndTokenRanges) {
  const Folder folder;
  const Outcome model = sluice({"tune", "--device", "cpu", "--model", "smollm2-135m", "--tokens",
                                "1-3,2,8", "--dtype", "fp32", "--seconds", "0.001", "--memory",
                                "64", "--tune-cache", folder.path("cache")});
  ASSERT_EQ(model.code, 0) << model.err;
  EXPECT_THAT(model.out, HasSubstr("8  576  1536  fp32"));
  // A title, five problems, two last lines, and the device.
  EXPECT_EQ(lines_of(model.out).size(), 9U) << model.out;
}

TEST(Tune, KeepsInTheUsersFolderUnlessTold) {
  const Folder folder;
  const Outcome kept = tune({"1x64x96"}, {"XDG_CACHE_HOME=" + folder.path("home")});
  ASSERT_EQ(kept.code, 0) << kept.err;
  EXPECT_THAT(kept.out, HasSubstr("kept in " + folder.path("home/sluice/tune")));
  EXPECT_THAT(read_file(folder.path("home/sluice/tune")), StartsWith("sluice tune 2\n"));
}

TEST(Tune, SaysWhatItIgnores) {
  const Folder folder;
  const std::string cache =
      folder.write("cache", "sluice tune 2\nsome\tdamaged\tline\t0123456789abcdef\n");
  const Outcome explained =
      sluice({"explain", "4x64x96", "--device", "cpu", "--tune-cache", cache});
  EXPECT_EQ(explained.code, 0);
  EXPECT_EQ(explained.err, "sluice: " + cache + ": entries ignored: 1 damaged\n");
  EXPECT_THAT(explained.out, HasSubstr("(heuristic)"));
  const Outcome quiet =
      sluice({"-q", "explain", "4x64x96", "--device", "cpu", "--tune-cache", cache});
  EXPECT_THAT(quiet.err, IsEmpty());
}

TEST(Tune, WrongWordsAreTwo) {
  const Folder folder;
  const auto usage = [&](const Outcome& outcome, const std::string& text) {
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(text));
    EXPECT_THAT(outcome.out, IsEmpty());
  };
  const std::string cache = folder.path("cache");
  usage(tune({"--tune-cache", cache}), "tune: wanted cases, --file, --model or --checkpoint");
  usage(tune({"4x64", "--tune-cache", cache}), "4x64");
  usage(tune({"0x64x96", "--tune-cache", cache}), "m: got 0, wanted at least 1 to tune");
  usage(tune({"--model", "no-such", "--tune-cache", cache}), "no-such");
  usage(tune({"1x64x96", "--tune-cache", folder.path("no/folder/cache")}), "cannot be made");
  usage(tune({"1x64x96", "--tune-cache", folder.write("notes", "mine\n")}), "no tuning table");
  EXPECT_EQ(read_file(folder.path("notes")), "mine\n");
  for (const char* tokens : {"0", "5-3", "1-", "-1", "x"}) {
    const Outcome wrong = tune({"--model", "smollm2-135m", std::string("--tokens=") + tokens});
    EXPECT_EQ(wrong.code, 2) << tokens;
    EXPECT_THAT(wrong.err + wrong.out, HasSubstr("a range such as 1-64")) << tokens;
  }
  usage(tune({"--model", "smollm2-135m", "--tokens", "1-99999999"}),
        "a range of 99999999 numbers; wanted at most 65536");
  EXPECT_EQ(tune({"1x64x96", "--seconds", "0"}).code, 2);
}

}  // namespace
}  // namespace sluice::tests
