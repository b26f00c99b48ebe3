// SPDX-License-Identifier: Apache-2.0
// sluice bench --random as a process, and the list of all models.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "process.hpp"
#include "results_file.hpp"

namespace sluice::tests {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Small shapes of few tokens, one copy of their weights each, little time.
Outcome draw(std::vector<std::string> more, const char* memory = "24",
             const char* milliseconds = "1") {
  std::vector<std::string> words = {
      "bench",      "--random", "12",           "--seed", "169",      "--tokens", "1-2",
      "--memory",   memory,     "--layers",     "1",      "--device", "cpu",      "--milliseconds",
      milliseconds, "--quick",  "--no-ceilings"};
  words.insert(words.end(), more.begin(), more.end());
  return sluice(words);
}

std::set<std::string> shapes_of(const json& rows) {
  std::set<std::string> out;
  for (const json& row : rows) {
    out.insert(row["m"].dump() + "x" + row["d"].dump() + "x" + row["h"].dump());
  }
  return out;
}

// It is drawn from, not listed.
TEST(Random, TheRangeOfTokensMayBeLong) {
  const Outcome outcome =
      sluice({"bench", "--random", "2", "--tokens", "1-1048576", "--memory", "1", "--device", "cpu",
              "--quick", "--no-ceilings", "--json", "-"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(read_results(outcome.out)["meta"]["skipped"].get<std::string>(), HasSubstr(" "));
}

TEST(Random, PartsEndInOneFileWithItsSummary) {
  const Folder folder;
  const Outcome whole = draw({"--json", "-"});
  ASSERT_EQ(whole.code, 0) << whole.err;
  const json all = read_results(whole.out);
  ASSERT_EQ(all["rows"].size(), 5U) << "shapes 1, 2, 3, 4 and 10 are small";
  const std::string skipped = all["meta"]["skipped"];
  EXPECT_EQ(all["rows"].size() + 1 + static_cast<std::size_t>(std::ranges::count(skipped, ' ')),
            12U);

  const std::string file = folder.path("out.json");
  for (const char* part : {"1/2", "2/2", "1/2"}) {  // a part that is run again replaces its rows
    const Outcome outcome = draw({"--part", part, "--json", file});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("own_unfused over sluice"));
  }
  const json parts = read_results(read_file(file));
  EXPECT_EQ(parts["rows"].size(), all["rows"].size());
  EXPECT_EQ(shapes_of(parts["rows"]), shapes_of(all["rows"]));
  for (std::size_t i = 0; i < all["rows"].size(); ++i) {
    for (const char* field : {"op", "m", "d", "h", "dtype", "gate", "layout", "baseline"}) {
      EXPECT_EQ(parts["rows"][i][field], all["rows"][i][field]) << i << field;
    }
  }
  const std::string parts_skipped = parts["meta"]["skipped"];
  EXPECT_EQ(parts_skipped.size(), skipped.size());
  // A part that only skips says so, and leaves the rows of others: shape 6 alone.
  const std::string six = folder.write("six.json", read_file(file));
  ASSERT_EQ(draw({"--part", "6/12", "--json", six}).code, 0);
  EXPECT_EQ(read_results(read_file(six))["rows"].size(), all["rows"].size());
  EXPECT_EQ(read_results(read_file(six))["meta"]["skipped"].get<std::string>().size(),
            skipped.size());

  // The summary is of all rows, those of the other part too.
  double logarithms = 0;
  double lowest = HUGE_VAL;
  for (const json& row : parts["rows"]) {
    EXPECT_EQ(row["op"], "mlp");
    EXPECT_TRUE(row["m"] >= 1 && row["m"] <= 2);
    logarithms += std::log(row["ratio"].get<double>());
    lowest = std::min(lowest, row["ratio"].get<double>());
  }
  const json& meta = parts["meta"];
  EXPECT_EQ(meta["ratio_shapes"], parts["rows"].size());
  const double mean = std::exp(logarithms / static_cast<double>(parts["rows"].size()));
  EXPECT_NEAR(meta["ratio_mean"], mean, 2 * harness::kRounding * mean);
  EXPECT_NEAR(meta["ratio_lowest"], lowest, 2 * harness::kRounding * lowest);
  EXPECT_GE(meta["ratio_p5"], meta["ratio_lowest"]);
  EXPECT_THAT(meta["ratio_lowest_case"].get<std::string>(), HasSubstr(":bf16:"));

  // Rows of another draw are not mixed with these.
  const std::string before = read_file(file);
  const Outcome other = draw({"--part", "1/2", "--dtype", "fp16", "--json", file});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("which is none of this --random"));
  EXPECT_EQ(read_file(file), before);
  const Outcome gate_up = draw({"--part", "1/2", "--op", "gate_up", "--json", file});
  EXPECT_EQ(gate_up.code, 2);
  EXPECT_THAT(gate_up.err, HasSubstr(":mlp (fwd), which is none of this --random"));
  EXPECT_EQ(read_file(file), before);
  const Outcome threads = draw({"--part", "1/2", "--threads", "1", "--json", file});
  EXPECT_EQ(threads.code, 2);
  EXPECT_THAT(threads.err, HasSubstr("name another --json for other options"));
  EXPECT_EQ(read_file(file), before);
  EXPECT_EQ(draw({"--part=1/2", "-q", "--json=" + file}).code, 0);
  const std::string notes = folder.write("notes", "mine");
  EXPECT_EQ(draw({"--part", "1/2", "--json", notes}).code, 2);
  EXPECT_EQ(read_file(notes), "mine");
}

// Seed 3 draws one shape of a token as its 565th and its 794th.
TEST(Random, AShapeThatComesAgainIsMeasuredOnce) {
  const Folder folder;
  const std::string file = folder.path("out.json");
  for (const char* part : {"565/1000", "794/1000"}) {
    ASSERT_LE(sluice({"bench",         "--random", "1000", "--seed",         "3", "--tokens",
                      "1-1",           "--part",   part,   "--layers",       "1", "--memory",
                      "300",           "--device", "cpu",  "--milliseconds", "1", "--quick",
                      "--no-ceilings", "--json",   file})
                  .code,
              2);
  }
  std::set<std::string> names;
  const json rows = read_results(read_file(file))["rows"];
  for (const json& row : rows) names.insert(row["case"]);
  EXPECT_EQ(names.size(), rows.size());
}

TEST(Random, APartOfWhichAllIsSkippedSaysSo) {
  const Folder folder;
  const std::string file = folder.path("out.json");
  ASSERT_EQ(draw({"--part", "1/2", "--json", file}).code, 0);
  ASSERT_FALSE(read_results(read_file(file))["rows"].empty());
  ASSERT_EQ(draw({"--part", "1/2", "--json", file}, "1").code, 0);
  const json again = read_results(read_file(file));
  EXPECT_THAT(again["rows"], SizeIs(0));
  const std::string skipped = again["meta"]["skipped"];
  EXPECT_EQ(std::ranges::count(skipped, ' '), 5);
  const std::string earlier = read_file(file);
  ASSERT_EQ(draw({"--json", file}, "1").code, 0);
  EXPECT_EQ(read_file(file), earlier) << "no part: an earlier file is worth more";
  const std::string all = folder.path("all.json");
  ASSERT_EQ(draw({"--json", all}, "1").code, 0);
  EXPECT_EQ(
      std::ranges::count(read_results(read_file(all))["meta"]["skipped"].get<std::string>(), ' '),
      11);
}

TEST(Random, PartsAtOnceKeepEachOthersRows) {
  const Folder folder;
  const std::string file = folder.path("out.json");
  std::thread slow([&] {
    EXPECT_EQ(draw({"--part", "1/2", "--json", file}, "24", "200").code, 0);
  });
  for (int i = 0; i < 6000 && read_file(file).empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(draw({"--part", "2/2", "--json", file}).code, 0);
  slow.join();
  EXPECT_THAT(read_results(read_file(file))["rows"], SizeIs(5));
}

// A part reads the file, then writes it: another's write between the two would be lost.
TEST(Random, APartWaitsWhileAnotherChangesTheFile) {
  const Folder folder;
  const std::string file = folder.path("out.json");
  const int lock = open((file + ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
  ASSERT_GE(lock, 0);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  std::thread part([&] { EXPECT_EQ(draw({"--part", "1/2", "--json", file}).code, 0); });
  std::this_thread::sleep_for(std::chrono::seconds(2));  // four times what the part takes
  EXPECT_EQ(read_file(file), "");
  close(lock);
  part.join();
  EXPECT_THAT(read_results(read_file(file))["rows"], SizeIs(2));
}

TEST(Random, RegretIsOfEveryFifthShape) {
  const Outcome outcome = draw({"--regret", "--part", "1/5", "--json", "-"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json results = read_results(outcome.out);
  ASSERT_EQ(results["rows"].size(), 1U);
  for (const json& row : results["rows"]) {
    ASSERT_TRUE(row.contains("regret"));
    EXPECT_GE(row["regret"], 0);
  }
  const Outcome none = draw({"--regret", "--part", "2/5", "--json", "-"});
  const json others = read_results(none.out);
  ASSERT_EQ(others["rows"].size(), 1U);
  EXPECT_FALSE(others["rows"][0].contains("regret"));
}

TEST(Random, SamplesOfEveryConfigAreKeptWhereAsked) {
  const auto rows = [](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"--regret", "--part", "1/5", "--json", "-"};
    words.insert(words.end(), more.begin(), more.end());
    return read_results(draw(words).out)["rows"];
  };
  EXPECT_FALSE(rows({})[0].contains("samples"));
  const json row = rows({"--samples"})[0];
  EXPECT_THAT(row["samples"].get<std::string>(), HasSubstr("cpu.simd mlp="));
}

TEST(Random, GateUpAloneIsTheSameDraw) {
  const json whole = read_results(draw({"--json", "-"}).out)["rows"];
  const json alone = read_results(draw({"--op", "gate_up", "--json", "-"}).out)["rows"];
  ASSERT_EQ(alone.size(), whole.size());
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(alone[i]["op"], "gate_up");
    for (const char* field : {"m", "d", "h", "gate"}) EXPECT_EQ(alone[i][field], whole[i][field]);
  }
}

TEST(Random, OptionsThatDoNotFitAreTwo) {
  struct Case {
    std::vector<std::string> words;
    std::vector<const char*> named;
  };
  const Case cases[] = {
      {{"--random", "2", "4x64x96"}, {"--random", "case"}},
      {{"--random", "2", "--file", "list.txt"}, {"--random", "--file"}},
      {{"--random", "2", "--model", "phi-4"}, {"--random", "--model"}},
      {{"--random", "2", "--checkpoint", "x.safetensors"}, {"--random", "--checkpoint"}},
      {{"--random", "2", "--pass", "bwd"}, {"--random", "--pass bwd"}},
      {{"--random", "2", "--tokens", "1,16"}, {"--random", "--tokens"}},
      {{"--random", "2", "--tokens", "1-1048577"}, {"--random", "1048576"}},
      {{"--random", "2", "--tp", "2"}, {"--random", "--tp"}},
      {{"--random", "2", "--tp", "1"}, {"--random", "--tp"}},
      {{"--random", "2", "--baseline", "own_unfused", "--baseline", "cublaslt_chain"},
       {"--random", "--baseline"}},
      {{"--random", "2", "--regret", "--variant", "cpu.simd"}, {"--regret", "--variant"}},
      {{"--random", "2", "--regret", "--config", "mlp=avx2"}, {"--regret", "--config"}},
      {{"--random", "2", "--samples"}, {"--samples", "--regret"}},
      {{"--random", "2", "--part", "3/3"}, {"--random 2", "--part 3/3"}},
      {{"4x64x96", "--seed", "2"}, {"--seed", "--random"}},
      {{"4x64x96", "--part", "1/2"}, {"--part", "--random"}},
      {{"4x64x96", "--regret"}, {"--regret", "--random"}},
      {{"4x64x96", "--op", "gate_up"}, {"--op", "--random"}},
      {{"4x64x96", "--memory", "9"}, {"--memory", "--random"}},
  };
  for (const Case& c : cases) {
    std::vector<std::string> words = {"bench", "--device", "cpu", "--quick", "--no-ceilings"};
    words.insert(words.end(), c.words.begin(), c.words.end());
    const Outcome outcome = sluice(words);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_THAT(lines_of(outcome.err), SizeIs(1));
    for (const char* name : c.named) EXPECT_THAT(outcome.err, HasSubstr(name));
  }
  for (const char* part : {"0/2", "3/2", "1", "1/", "/2", "1/2x", "-1/2"}) {
    EXPECT_EQ(draw({std::string("--part=") + part}).code, 2) << part;
  }
  for (const char* count : {"0", "-1", "x"}) {
    EXPECT_EQ(sluice({"bench", std::string("--random=") + count}).code, 2) << count;
  }
}

// Each shape of the list once, at the sizes that its model has.
TEST(AllModels, AtSeveralTensorParallelSizes) {
  const Outcome named = sluice({"bench", "--model", "qwen3-0.6b", "--tp", "2,4", "--tokens", "1",
                                "--quick", "--no-ceilings", "--milliseconds", "1", "--layers", "1",
                                "--device", "cpu", "--json", "-"});
  ASSERT_EQ(named.code, 0) << named.err;
  const json rows = read_results(named.out)["rows"];
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["tp"], 2);
  EXPECT_EQ(rows[0]["h"], 3072 / 2);
  EXPECT_EQ(rows[1]["tp"], 4);
  EXPECT_EQ(rows[1]["h"], 3072 / 4);
  const Outcome unfit = sluice({"bench", "--model", "phi-4", "--tp", "2,4", "--device", "cpu"});
  EXPECT_EQ(unfit.code, 2);
  EXPECT_THAT(unfit.err, HasSubstr("tp: got 4, wanted one that fits phi-4"));
  const Outcome none = sluice({"bench", "--model", "all", "--tp", "3", "--device", "cpu"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("tp: got 3, wanted one that fits a model"));
}

// By tune, which times nothing in no time, but lists every shape.
TEST(AllModels, ListEachShapeOnce) {
  const Folder folder;
  const Outcome all = sluice({"tune", "--model", "all", "--tp", "8", "--tokens", "1", "--seconds",
                              "1e-9", "--device", "cpu", "--tune-cache", folder.path("cache")});
  ASSERT_EQ(all.code, 0) << all.err;
  std::multiset<std::pair<std::string, std::string>> widths;
  for (const std::string& line : lines_of(all.out)) {
    std::istringstream words(line);
    std::string op, m, d, h;
    if (words >> op >> m >> d >> h && op == "mlp") widths.emplace(d, h);
  }
  EXPECT_EQ(widths.count({"4096", "1792"}), 1U) << "of Llama-3.1-8B and Mistral-7B\n" << all.out;
  EXPECT_EQ(widths.count({"2880", "360"}), 1U) << "of both sizes of gpt-oss";
  EXPECT_EQ(widths.count({"5120", "2240"}), 0U) << "phi-4 has no size of 8";
}

}  // namespace
}  // namespace sluice::tests
