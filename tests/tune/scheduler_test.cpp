// SPDX-License-Identifier: Apache-2.0
// The scheduler as a whole: on the CPU at hand, with files, with plan() and explain().
#include "sluice/scheduler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <thread>

#include "problems.hpp"
#include "tests/unit/expect_error.hpp"
#include "tune/shipped.hpp"

namespace {
thread_local long allocations = 0;
}  // namespace

// gcc 12 at -O1 sees malloc behind one operator and free behind the other, and not that they pair.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

// Counted, so that find() can be shown not to allocate.
void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* pointer = std::malloc(bytes == 0 ? 1 : bytes)) return pointer;
  throw std::bad_alloc();
}
// std::stable_sort asks this one, and gives back to the plain delete.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }

namespace sluice::tune {
namespace {

using testing::HasSubstr;
using tests::content_of;
using tests::entry_of;
using tests::Folder;
using tests::gpu;
using tests::line_of;
using tests::mlp;

constexpr const char* kConfig = "mlp=emulated";  // on every CPU, and never plan()'s own choice

TuneOptions small() { return {.max_seconds = 10, .max_memory_bytes = 1 << 20}; }

// A cache with one line, for a Scheduler of this CPU.
std::string cache_of(const Problem& p, const char* variant = "cpu.simd",
                     const char* config = kConfig) {
  return std::string(kHeader) + line_of(entry_of(p, cpu_device(), variant, config), cpu_device());
}

TEST(Scheduler, TunesOnTheCpuAtHand) {
  const Device cpu = cpu_device();
  Scheduler scheduler(cpu);
  std::vector<Problem> problems = {mlp(1), mlp(5), mlp(2, 96, 64)};
  problems.push_back(mlp(3));
  problems.back().w_dtype = problems.back().x_dtype = problems.back().y_dtype = DType::kF32;
  problems.back().layout.w_gate_up = interleaved_rows(1, 64, DType::kF32);
  const auto outcomes = scheduler.tune(problems, small());
  ASSERT_TRUE(test::succeeds(outcomes));
  ASSERT_EQ(outcomes->size(), problems.size());
  if (std::popcount(cpu.simd_targets) < 2) GTEST_SKIP() << "one SIMD target: nothing to choose";
  EXPECT_EQ(scheduler.size(), problems.size());
  for (std::size_t i = 0; i < problems.size(); ++i) {
    const TuneOutcome& outcome = (*outcomes)[i];
    EXPECT_EQ(outcome.state, TuneState::kMeasured);
    EXPECT_GT(outcome.choice.us, 0);
    const auto made = plan(problems[i], cpu, {.tune = &scheduler});
    ASSERT_TRUE(test::succeeds(made));
    EXPECT_EQ(made->source, ChoiceSource::kTuneTable);
    EXPECT_EQ(made->config_name(), outcome.choice.config);
  }
}

// Rows so far apart that the extents of legal operands add up to more than 2^63 bytes.
TEST(Scheduler, OperandsBeyondAllMemoryAreRefused) {
  Problem p{.op = Op::kMlpGrad, .m = std::int64_t{1} << 28, .d = 8, .h = std::int64_t{1} << 28};
  const Layout apart{.row_stride_bytes = std::int64_t{1} << 32};
  for (Layout Layouts::*layout : {&Layouts::x, &Layouts::dy, &Layouts::g_u, &Layouts::dg_du,
                                  &Layouts::dx, &Layouts::w_gate_up, &Layouts::dw_gate_up}) {
    p.layout.*layout = apart;
  }
  p.save_dg_du = true;
  ASSERT_TRUE(test::succeeds(validate(p)));
  Scheduler scheduler(cpu_device());
  EXPECT_TRUE(test::fails(scheduler.tune(std::span(&p, 1), small()), ErrorCode::kOutOfMemory,
                          "1048576 may be used"));
}

// The same entries give the same choices; a problem that was never tuned gets its neighbour's.
TEST(Scheduler, SavesAndLoads) {
  const Folder folder;
  const std::string path = folder.write("cache", cache_of(mlp(16)));
  Scheduler first(cpu_device());
  const auto report = first.load(path.c_str());
  ASSERT_TRUE(test::succeeds(report));
  EXPECT_EQ(report->loaded, 1U);
  EXPECT_EQ(report->foreign + report->damaged, 0U);
  EXPECT_EQ(report->message, "");
  const std::string copy = folder.path("copy");
  ASSERT_TRUE(test::succeeds(first.save(copy.c_str())));
  EXPECT_EQ(content_of(copy), content_of(path));
  Scheduler second(cpu_device());
  ASSERT_TRUE(second.load(copy.c_str()));
  for (const Scheduler* scheduler : {&first, &second}) {
    const auto exact = plan(mlp(16), cpu_device(), {.tune = scheduler}).value();
    EXPECT_EQ(exact.config_name(), kConfig);
    EXPECT_EQ(exact.source, ChoiceSource::kTuneTable);
    const auto near = plan(mlp(20), cpu_device(), {.tune = scheduler}).value();
    EXPECT_EQ(near.config_name(), kConfig);
    EXPECT_EQ(near.source, ChoiceSource::kNearestEntry);
    const auto far = plan(mlp(64), cpu_device(), {.tune = scheduler}).value();
    EXPECT_EQ(far.source, ChoiceSource::kHeuristic);
  }
}

TEST(Scheduler, ExplainsWhereAChoiceCameFrom) {
  const Folder folder;
  Scheduler scheduler(cpu_device());
  ASSERT_TRUE(scheduler.load(folder.write("cache", cache_of(mlp(16))).c_str()));
  const Explanation exact = explain(mlp(16), cpu_device(), {.tune = &scheduler});
  EXPECT_EQ(exact.source, ChoiceSource::kTuneTable);
  EXPECT_EQ(exact.entry, "measured for 16x64x96: 82.3 us, untuned 90.1 us");
  const Explanation near = explain(mlp(12), cpu_device(), {.tune = &scheduler});
  EXPECT_STREQ(to_string(near.source), "nearest entry");
  EXPECT_THAT(near.entry, HasSubstr("for 16x64x96"));
  const Explanation forced =
      explain(mlp(16), cpu_device(), {.config = "mlp=fp64", .tune = &scheduler});
  EXPECT_EQ(forced.source, ChoiceSource::kForced);
  EXPECT_EQ(forced.entry, "");
  EXPECT_EQ(explain(mlp(1), cpu_device(), {.tune = &scheduler}).entry, "");
}

// An entry is of the threads that it was measured with.
TEST(Scheduler, PlansOfOtherThreadsAreNotAnswered) {
  const Folder folder;
  Scheduler scheduler(cpu_device());
  ASSERT_TRUE(scheduler.load(folder.write("cache", cache_of(mlp(16))).c_str()));
  const int threads = cpu_device().threads;
  EXPECT_EQ(plan(mlp(16), cpu_device(), {.tune = &scheduler, .threads = threads}).value().source,
            ChoiceSource::kTuneTable);
  EXPECT_EQ(
      plan(mlp(16), cpu_device(), {.tune = &scheduler, .threads = threads + 1}).value().source,
      ChoiceSource::kHeuristic);
}

TEST(Scheduler, AnswersForItsDeviceAlone) {
  const Folder folder;
  Scheduler scheduler(cpu_device());
  ASSERT_TRUE(scheduler.load(folder.write("cache", cache_of(mlp(16))).c_str()));
  EXPECT_TRUE(scheduler.find(mlp(16), cpu_device()).has_value());
  EXPECT_FALSE(scheduler.find(mlp(16), gpu()).has_value());
  EXPECT_FALSE(scheduler.find(mlp(0), cpu_device()).has_value());
}

TEST(Load, IgnoresForeignAndDamagedLinesAndSaysSo) {
  const Folder folder;
  const Device cpu = cpu_device();
  const auto own = [&](std::int64_t m) { return entry_of(mlp(m), cpu, "cpu.simd", kConfig); };
  std::string damaged = line_of(own(3), cpu);
  damaged[damaged.size() / 2] ^= 1;
  std::string text(kHeader);
  text += line_of(own(1), cpu);
  text += line_of(own(2), gpu());
  text += print_line({device_text(cpu), driver_text(cpu), "0.0.9 another build", own(4)});
  text += print_line({device_text(cpu), "driver 1, runtime 1", build_text(), own(5)});
  text += damaged;
  text += line_of(own(6), cpu);
  text += line_of(own(7), cpu).substr(0, 50);
  const std::string path = folder.write("cache", text);
  Scheduler scheduler(cpu);
  const auto report = scheduler.load(path.c_str());
  ASSERT_TRUE(test::succeeds(report));
  EXPECT_EQ(report->loaded, 2U);
  EXPECT_EQ(report->foreign, 3U);
  EXPECT_EQ(report->damaged, 2U);
  EXPECT_EQ(report->message,
            path + ": entries ignored: 3 of another device, driver, cuBLASLt or build, 2 damaged");
  for (const std::int64_t m : {1, 6}) {
    EXPECT_EQ(scheduler.find(mlp(m), cpu).value().source, ChoiceSource::kTuneTable) << m;
  }
  // Neighbours may answer for those, never the lines that were ignored.
  for (const std::int64_t m : {2, 3, 4, 5, 7}) {
    const auto found = scheduler.find(mlp(m), cpu);
    EXPECT_TRUE(!found || found->source == ChoiceSource::kNearestEntry) << m;
  }
}

TEST(Load, AMissingFileIsABeginning) {
  const Folder folder;
  Scheduler scheduler(cpu_device());
  const std::string path = folder.path("none");
  const auto report = scheduler.load(path.c_str());
  ASSERT_TRUE(test::succeeds(report));
  EXPECT_EQ(report->loaded, 0U);
  EXPECT_EQ(report->message, path + ": no such file");
  EXPECT_TRUE(test::succeeds(scheduler.load(folder.write("empty", "").c_str())));
}

TEST(Load, RefusesWhatIsNoCache) {
  const Folder folder;
  Scheduler scheduler(cpu_device());
  EXPECT_TRUE(test::refuses(scheduler.load(folder.write("a", "{}").c_str()), "no tuning table"));
  EXPECT_TRUE(test::refuses(scheduler.load(folder.write("b", "sluice tune 1\n").c_str()),
                            "another version"));
  EXPECT_TRUE(test::refuses(scheduler.load(folder.path("").c_str()),
                            "is a directory, wanted a regular file"));
  EXPECT_TRUE(test::refuses(scheduler.load(nullptr), "path: got null"));
}

// Whatever byte is broken, what is loaded is what was written, or nothing.
TEST(Load, NoBrokenByteChangesAChoice) {
  const Folder folder;
  const std::string text =
      cache_of(mlp(16)) +
      line_of(entry_of(mlp(1), cpu_device(), "cpu.reference", ""), cpu_device());
  std::mt19937 random(7);
  for (int i = 0; i < 400; ++i) {
    std::string broken = text;
    broken[random() % broken.size()] ^= static_cast<char>(1U << random() % 8);
    if (random() % 4 == 0) broken.resize(random() % broken.size());
    Scheduler scheduler(cpu_device());
    const auto report = scheduler.load(folder.write("cache", broken).c_str());
    if (!report) continue;
    if (const auto found = scheduler.find(mlp(16), cpu_device())) {
      EXPECT_STREQ(found->config, kConfig) << broken;
    }
  }
}

TEST(Save, KeepsTheEntriesOfOthersAndAddsWhatWasLoaded) {
  const Folder folder;
  const Device cpu = cpu_device();
  const auto line = [&](std::int64_t m, std::int64_t time_ns) {
    Entry entry = entry_of(mlp(m), cpu, "cpu.simd", kConfig);
    entry.time_ns = time_ns;
    return line_of(entry, cpu);
  };
  const std::string foreign = line_of(entry_of(mlp(2), gpu(), "cuda.simt", "t"), gpu());
  const std::string there = foreign + line(16, 1) + line(4, 1);
  const std::string path = folder.write("cache", std::string(kHeader) + "damaged\n" + there);
  Scheduler scheduler(cpu);
  const std::string mine = std::string(kHeader) + line(16, 2) + line(32, 2);
  ASSERT_TRUE(scheduler.load(folder.write("mine", mine).c_str()));
  ASSERT_TRUE(test::succeeds(scheduler.save(path.c_str())));
  EXPECT_EQ(content_of(path), std::string(kHeader) + there + line(32, 2));
  EXPECT_EQ(folder.files(), 2U) << "cache and mine; nothing is left beside";
}

// One process loads a cache and tunes, another saves a newer measurement meanwhile: each keeps its
// own.
TEST(Save, WhatItMeasuredReplacesOlderAndWhatItLoadedDoesNot) {
  const Device cpu = cpu_device();
  if (std::popcount(cpu.simd_targets) < 2) GTEST_SKIP() << "one SIMD target: nothing to choose";
  const Folder folder;
  const auto line = [&](std::int64_t m, std::int64_t time_ns) {
    Entry entry = entry_of(mlp(m), cpu, "cpu.simd", kConfig);
    entry.time_ns = time_ns;
    return line_of(entry, cpu);
  };
  const std::string path = folder.write("cache", std::string(kHeader) + line(1, 1) + line(2, 1));
  Scheduler scheduler(cpu);
  ASSERT_TRUE(scheduler.load(path.c_str()));
  TuneOptions options = small();
  options.again = true;
  const std::vector<Problem> problems = {mlp(1)};
  ASSERT_TRUE(test::succeeds(scheduler.tune(problems, options)));
  static_cast<void>(folder.write("cache", std::string(kHeader) + line(1, 2) + line(2, 2)));
  ASSERT_TRUE(test::succeeds(scheduler.save(path.c_str())));
  Scheduler after(cpu);
  EXPECT_EQ(after.load(path.c_str()).value().loaded, 2U);
  EXPECT_EQ(after.find(mlp(1), cpu).value().us, scheduler.find(mlp(1), cpu).value().us);
  EXPECT_EQ(after.find(mlp(2), cpu).value().us, 0.002);
}

TEST(Save, LeavesWhatIsNoCacheAsItIs) {
  const Folder folder;
  const Scheduler scheduler(cpu_device());
  for (const char* text : {"my thesis\n", "sluice tune 1\nolder\n", "sluice tune 3\nnewer\n"}) {
    const std::string path = folder.write("file", text);
    EXPECT_TRUE(test::refuses(scheduler.save(path.c_str()), path));
    EXPECT_EQ(content_of(path), text);
  }
  EXPECT_TRUE(test::refuses(scheduler.save((folder.path("no") + "/such/folder").c_str()),
                            "cannot be made"));
  EXPECT_TRUE(test::refuses(scheduler.save(nullptr), "path: got null"));
}

// A table never selects a variant that refuses the problem, or a config that it does not offer.
TEST(Plan, NoTableSelectsWhatIsNotSupported) {
  const Folder folder;
  const Device cpu = cpu_device();
  std::mt19937 random(11);
  const auto pick = [&](auto count) {
    return static_cast<int>(random() % static_cast<unsigned>(count));
  };
  const std::vector<const char*> variants = {"cpu.simd", "cpu.reference", "cuda.sm90", "cpu.none"};
  const std::vector<const char*> words = {"emulated", "avx2", "fp64", "none"};
  int tuned = 0;
  for (int round = 0; round < 20; ++round) {
    std::string text(kHeader);
    std::vector<Problem> problems;
    while (problems.size() < 40) {
      Problem p = mlp(1 + pick(40), 32 * (1 + pick(4)), 32 * (1 + pick(4)));
      p.op = static_cast<Op>(pick(kOpCount));
      p.norm.enabled = p.op == Op::kNorm;
      p.x_dtype = p.y_dtype = static_cast<DType>(pick(kFloatDTypeCount));
      p.w_dtype = pick(2) == 0 ? p.x_dtype : static_cast<DType>(pick(kDTypeCount));
      if (!validate(p)) continue;
      problems.push_back(p);
      const std::string config =
          std::string(to_string(p.op)) + "=" + words[static_cast<std::size_t>(pick(4))];
      text += line_of(entry_of(p, cpu, variants[static_cast<std::size_t>(pick(4))], config.c_str()),
                      cpu);
    }
    Scheduler scheduler(cpu);
    ASSERT_TRUE(scheduler.load(folder.write("cache", text).c_str()));
    for (Problem p : problems) {
      p.m += pick(3);  // also neighbours
      const auto made = plan(p, cpu, {.tune = &scheduler});
      const auto without = plan(p, cpu);
      ASSERT_EQ(made.has_value(), without.has_value()) << to_string(p);
      if (!made) continue;
      const std::string config = made->config_name();
      const auto same = plan(p, cpu, {.variant = made->variant_name(), .config = config.c_str()});
      EXPECT_TRUE(test::succeeds(same)) << to_string(p);
      tuned += made->source == ChoiceSource::kHeuristic ? 0 : 1;
    }
  }
  EXPECT_GT(tuned, 50) << "the tables were asked and followed";
}

// The command line and Torch may find different copies of cuBLASLt: a file of the one serves the
// other, but for ranks of the heuristic, which stay in the file for the version that they are of.
TEST(Load, CublasLtsVersionDecidesForItsLaterRanksAlone) {
  Device measured = gpu();
  measured.cublaslt_version = 130100;
  const std::string rank =
      line_of(entry_of(mlp(96), gpu(), "cuda.sm90", "gate_up=pp64x256c1g8,down=lt3"), measured);
  const std::string text =
      std::string(kHeader) + rank +
      line_of(entry_of(mlp(80), gpu(), "cuda.sm90", "gate_up=pp64x256c1g8,down=lt0"), measured) +
      line_of(
          entry_of(mlp(16), gpu(), "cuda.sm90_decode", "gate_up=t16r32k512s4,down=t16r32k512s4"),
          measured);
  for (const int version : {130100, 120901, 0}) {
    const Folder folder;
    const std::string path = folder.write("cache", text);
    Device device = gpu();
    device.cublaslt_version = version;
    Scheduler scheduler(device);
    const auto report = scheduler.load(path.c_str());
    ASSERT_TRUE(test::succeeds(report));
    const bool same = version == measured.cublaslt_version;
    EXPECT_EQ(report->loaded, same ? 3U : 2U) << version;
    EXPECT_EQ(report->foreign, same ? 0U : 1U) << version;
    for (const int m : {80, 16}) {
      EXPECT_EQ(scheduler.find(mlp(m), device).value().source, ChoiceSource::kTuneTable) << m;
    }
    ASSERT_TRUE(test::succeeds(scheduler.save(path.c_str())));
    EXPECT_THAT(content_of(path), testing::HasSubstr(rank)) << version;
    Scheduler again(measured);
    EXPECT_EQ(again.load(path.c_str()).value().loaded, 3U) << version;
  }
}

TEST(Shipped, TablesServeAnyBuildAndDriverOfTheirDevice) {
  const Device cpu = cpu_device();
  const Entry entry = entry_of(mlp(16), cpu, "cpu.simd", kConfig);
  const std::string text = std::string(kHeader) +
                           print_line({device_text(cpu), "-", "0.0.1 long ago", entry}) +
                           line_of(entry_of(mlp(8), gpu(), "cuda.sm90", "c"), gpu()) + "damaged\n";
  Table table;
  EXPECT_EQ(add_shipped(text, cpu, table), 1U);
  ASSERT_NE(table.exact(entry.key), nullptr);
  Device newer = gpu();
  newer.driver_version = 14000;
  Table other;
  EXPECT_EQ(add_shipped(text, newer, other), 1U);
  EXPECT_EQ(add_shipped("sluice tune 1\n", cpu, other), 0U);
  EXPECT_EQ(add_shipped("", cpu, other), 0U);
}

// Which algorithm a rank above the first is depends on cuBLASLt's version: a row that was measured
// with another one leaves its config to the variant.
TEST(Shipped, LaterRanksHoldForTheirCublasLt) {
  Device measured = gpu();
  measured.cublaslt_version = 130100;
  const std::string text =
      std::string(kHeader) +
      line_of(entry_of(mlp(96), gpu(), "cuda.sm90", "gate_up=pp64x256c1g8,down=lt3"), measured) +
      line_of(entry_of(mlp(80), gpu(), "cuda.sm90", "gate_up=pp64x256c1g8,down=lt0"), measured) +
      line_of(
          entry_of(mlp(16), gpu(), "cuda.sm90_decode", "gate_up=t16r32k512s4,down=t16r32k512s4"),
          measured) +
      line_of(entry_of(mlp(72), gpu(), "cuda.sm90", "gate_up=pp64x256c1g8,down=lt1"), gpu());
  const auto configs = [&](int version) {
    Device device = gpu();
    device.cublaslt_version = version;
    Table table;
    EXPECT_EQ(add_shipped(text, device, table), 4U);
    std::vector<std::string> found;
    for (const int m : {96, 80, 16, 72}) {
      found.emplace_back(table.exact(key_of(mlp(m), device))->config);
    }
    return found;
  };
  const std::string first = "gate_up=pp64x256c1g8,down=lt0";
  const std::string own = "gate_up=t16r32k512s4,down=t16r32k512s4";
  using testing::ElementsAre;
  EXPECT_THAT(configs(130100), ElementsAre("gate_up=pp64x256c1g8,down=lt3", first, own, ""));
  EXPECT_THAT(configs(120901), ElementsAre("", first, own, ""));
  EXPECT_THAT(configs(0), ElementsAre("", first, own, "gate_up=pp64x256c1g8,down=lt1"));
}

// Of what was measured at hand and what ships the nearer entry serves, and at one distance the own.
TEST(Shipped, TheNearestOfBothServes) {
  const Device h200 = gpu();
  const Folder folder;
  Scheduler scheduler(h200);
  const Problem asked = mlp(16, 4096, 14400);  // the tables have 14336
  const auto before = scheduler.find(asked, h200);
  ASSERT_TRUE(before);
  EXPECT_EQ(before->source, ChoiceSource::kNearestEntry);
  EXPECT_EQ(before->m, 16);
  const auto load = [&](const Problem& problem) {
    const std::string text =
        std::string(kHeader) + line_of(entry_of(problem, h200, "cuda.sm90", "c"), h200);
    EXPECT_EQ(scheduler.load(folder.write("cache", text).c_str()).value().loaded, 1U);
    return scheduler.find(asked, h200).value();
  };
  EXPECT_STREQ(load(mlp(30, 4096, 14336)).config, before->config);
  EXPECT_STREQ(load(mlp(16, 4096, 14336)).config, "c");
  EXPECT_EQ(load(mlp(16, 4096, 14392)).h, 14392);
}

// Every table that ships is whole: each line is read, and names a variant of this library.
TEST(Shipped, TablesAreWhole) {
  for_each_shipped([](std::string_view text) {
    EXPECT_TRUE(check_header(text, "shipped"));
    for_each_line(text, [](std::string_view line_text) {
      const auto line = parse_line(line_text);
      ASSERT_TRUE(line) << line_text;
      EXPECT_THAT(line->entry.variant,
                  testing::AnyOf(testing::StartsWith("cpu."), testing::StartsWith("cuda.")));
    });
  });
}

// Choices of the shipped tables for `device`, each one that this library has and takes: plan()
// follows the table, beside the cuBLASLt that the row names. A row that names none leaves later
// ranks to the variant.
int shipped_choices(Device device) {
  std::map<int, std::unique_ptr<Scheduler>> schedulers;  // of each version
  int choices = 0;
  for_each_shipped([&](std::string_view text) {
    for_each_line(text, [&](std::string_view line_text) {
      const auto line = parse_line(line_text);
      if (!line || line->device != device_text(device)) return;
      ++choices;
      const int version = cublaslt_version_of(line->driver);
      device.cublaslt_version = version != 0 ? version : 1;  // 1: of no release
      auto& scheduler = schedulers[device.cublaslt_version];
      if (!scheduler) scheduler = std::make_unique<Scheduler>(device);
      const ProblemKey& key = line->entry.key;
      const Problem problem = mlp(key.m, key.d, key.h);
      ASSERT_TRUE(key_of(problem, device) == key) << line_text;
      const auto made = plan(problem, device, {.tune = scheduler.get()});
      ASSERT_TRUE(test::succeeds(made)) << line_text;
      EXPECT_EQ(made->source, ChoiceSource::kShippedTable) << line_text;
      EXPECT_STREQ(made->variant_name(), line->entry.variant);
      const std::string named = line->entry.config;
      const bool later_rank = named.find("=lt") == named.size() - 4 && named.back() != '0';
      EXPECT_EQ(made->config_name(),
                version == 0 && later_rank
                    ? config_names(made->variant_name(), problem, device).front()
                    : named);
    });
  });
  return choices;
}

TEST(Shipped, ChoicesAreThoseThatPlanTakes) {
  Device h200 = gpu();
  if (!plan(mlp(1, 4096, 14336), h200)) GTEST_SKIP() << "needs a build with CUDA";
  EXPECT_GT(shipped_choices(h200), 0);
  Device h100 = h200;
  std::snprintf(h100.name, sizeof(h100.name), "NVIDIA H100 80GB HBM3");
  h100.l2_bytes = 50 << 20;
  EXPECT_GT(shipped_choices(h100), 0);
}

TEST(Find, AllocatesNothing) {
  const Folder folder;
  const Device cpu = cpu_device();
  std::string text(kHeader);
  int shapes = 0;
  for (const std::int64_t d : {576, 1024, 2048, 2560, 3072, 3584, 4096, 5120, 8192, 16384}) {
    for (const Op op : {Op::kMlp, Op::kGateUp, Op::kDown}) {
      ++shapes;
      for (std::int64_t m = 1; m <= 66; ++m) {
        Problem p = mlp(m, d, 3 * d);
        p.op = op;
        text += line_of(entry_of(p, cpu, "cpu.simd", kConfig), cpu);
      }
    }
  }
  Scheduler scheduler(cpu);
  ASSERT_TRUE(scheduler.load(folder.write("cache", text).c_str()));
  ASSERT_EQ(scheduler.size(), static_cast<std::size_t>(shapes) * 66);
  struct Asked {
    const char* what;
    Problem problem;
    bool found;
  };
  for (const Asked& asked :
       {Asked{"exact", mlp(33, 4096, 12288), true}, Asked{"nearest", mlp(100, 4096, 12288), true},
        Asked{"nothing", mlp(4096, 4096, 12288), false}}) {
    const long before = allocations;
    double least_us = 1e9;
    for (int batch = 0; batch < 50; ++batch) {
      constexpr int kCalls = 200;
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i) {
        EXPECT_EQ(scheduler.find(asked.problem, cpu).has_value(), asked.found);
      }
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - start;
      least_us = std::min(least_us, took.count() / kCalls);
    }
    EXPECT_EQ(allocations, before) << asked.what;
    RecordProperty(asked.what, std::to_string(least_us));
  }
}

// find() beside load(): every answer is that of one table or the other.
TEST(Find, MayRunBesideWriters) {
  const Folder folder;
  const std::string one = folder.write("one", cache_of(mlp(16)));
  const std::string two = folder.write("two", cache_of(mlp(16), "cpu.reference", "mlp=fp64"));
  Scheduler scheduler(cpu_device());
  ASSERT_TRUE(scheduler.load(one.c_str()));
  std::thread writer([&] {
    for (int i = 0; i < 200; ++i) {
      EXPECT_TRUE(scheduler.load((i % 2 == 0 ? two : one).c_str()).has_value());
    }
  });
  for (int i = 0; i < 2000; ++i) {
    const auto found = scheduler.find(mlp(16), cpu_device());
    ASSERT_TRUE(found.has_value());
    const std::string config = found->config;
    EXPECT_TRUE(config == kConfig || config == "mlp=fp64") << config;
  }
  writer.join();
}

TEST(TuneStates, HaveNames) {
  EXPECT_STREQ(to_string(TuneState::kMeasured), "measured");
  EXPECT_STREQ(to_string(TuneState::kNoTime), "no time");
}

}  // namespace
}  // namespace sluice::tune
