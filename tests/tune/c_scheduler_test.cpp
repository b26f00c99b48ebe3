// SPDX-License-Identifier: Apache-2.0
// The scheduler in C: what the C++ one does, null arguments, struct versions.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "problems.hpp"
#include "sluice/sluice.h"

namespace sluice::tune {
namespace {

using tests::entry_of;
using tests::Folder;
using tests::line_of;
using tests::mlp;

sluice_problem c_mlp(std::int64_t m) {
  sluice_problem p;
  EXPECT_EQ(sluice_problem_init(&p, sizeof(p), nullptr), SLUICE_OK);
  p.m = m;
  p.d = 64;
  p.h = 96;
  return p;
}

class CScheduler : public testing::Test {
 protected:
  CScheduler() {
    EXPECT_EQ(sluice_cpu_device(&cpu, sizeof(cpu), nullptr), SLUICE_OK);
    EXPECT_EQ(sluice_scheduler_create(&cpu, &scheduler, &error), SLUICE_OK);
    EXPECT_NE(scheduler, nullptr);
  }
  ~CScheduler() override { sluice_scheduler_destroy(scheduler); }

  // A cache with one line for 16 tokens.
  std::string cache() {
    return folder.write(
        "cache",
        std::string(kHeader) +
            line_of(entry_of(mlp(16), cpu_device(), "cpu.simd", "mlp=emulated"), cpu_device()));
  }

  sluice_device cpu{};
  sluice_scheduler* scheduler = nullptr;
  sluice_error error{};
  Folder folder;
};

TEST_F(CScheduler, LoadsPlansExplainsAndSaves) {
  sluice_load_report report{};
  ASSERT_EQ(sluice_scheduler_load(scheduler, cache().c_str(), &report, sizeof(report), &error),
            SLUICE_OK)
      << error.message;
  EXPECT_EQ(report.loaded, 1);
  EXPECT_EQ(report.foreign + report.damaged, 0);
  EXPECT_STREQ(report.message, "");

  sluice_options options{};
  options.struct_size = sizeof(options);
  options.tune_find = sluice_scheduler_find;
  options.tune_user = scheduler;
  sluice_plan plan;
  sluice_problem problem = c_mlp(16);
  ASSERT_EQ(sluice_plan_init(&plan, &problem, &cpu, &options, &error), SLUICE_OK) << error.message;
  EXPECT_STREQ(sluice_plan_config(&plan), "mlp=emulated");
  EXPECT_EQ(sluice_plan_source(&plan), SLUICE_TUNE_TABLE);
  problem = c_mlp(20);
  ASSERT_EQ(sluice_plan_init(&plan, &problem, &cpu, &options, &error), SLUICE_OK);
  EXPECT_EQ(sluice_plan_source(&plan), SLUICE_NEAREST_ENTRY);
  char text[512];
  ASSERT_EQ(sluice_explain(&problem, &cpu, &options, text, sizeof(text), nullptr, &error),
            SLUICE_OK);
  EXPECT_NE(std::string(text).find("(nearest entry, measured for 16x64x96: 82.3 us"),
            std::string::npos)
      << text;
  // An entry is of the threads that it was measured with.
  options.threads = cpu.threads + 1;
  ASSERT_EQ(sluice_plan_init(&plan, &problem, &cpu, &options, &error), SLUICE_OK);
  EXPECT_EQ(sluice_plan_source(&plan), SLUICE_HEURISTIC);

  const std::string copy = folder.path("copy");
  ASSERT_EQ(sluice_scheduler_save(scheduler, copy.c_str(), &error), SLUICE_OK) << error.message;
  EXPECT_EQ(tests::content_of(copy), tests::content_of(cache()));
}

TEST_F(CScheduler, AReportThatDoesNotFitChangesNothing) {
  const std::string path = cache();
  sluice_load_report loaded{};
  EXPECT_EQ(sluice_scheduler_load(scheduler, path.c_str(), &loaded, 8, &error),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(error.message, "report: struct_size is 8, wanted at least"), nullptr);
  const sluice_problem problem = c_mlp(16);
  sluice_tune_choice choice{};
  EXPECT_EQ(sluice_scheduler_find(scheduler, &problem, &cpu, &choice), 0);
  sluice_tune_report tuned{};
  EXPECT_EQ(sluice_scheduler_tune(scheduler, &problem, 1, nullptr, &tuned, 8, &error),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_scheduler_find(scheduler, &problem, &cpu, &choice), 0);
}

TEST_F(CScheduler, FindIsACallbackOfItsOwn) {
  ASSERT_EQ(sluice_scheduler_load(scheduler, cache().c_str(), nullptr, 0, &error), SLUICE_OK);
  sluice_tune_choice choice{};
  sluice_problem problem = c_mlp(16);
  EXPECT_EQ(sluice_scheduler_find(scheduler, &problem, &cpu, &choice), 1);
  EXPECT_STREQ(choice.variant, "cpu.simd");
  EXPECT_STREQ(choice.config, "mlp=emulated");
  problem.m = 1000;
  EXPECT_EQ(sluice_scheduler_find(scheduler, &problem, &cpu, &choice), 0);
  problem.m = -1;
  EXPECT_EQ(sluice_scheduler_find(scheduler, &problem, &cpu, &choice), 0);
  EXPECT_EQ(sluice_scheduler_find(nullptr, &problem, &cpu, &choice), 0);
  EXPECT_EQ(sluice_scheduler_find(scheduler, nullptr, &cpu, &choice), 0);
  EXPECT_EQ(sluice_scheduler_find(scheduler, &problem, nullptr, &choice), 0);
  EXPECT_EQ(sluice_scheduler_find(scheduler, &problem, &cpu, nullptr), 0);
}

TEST_F(CScheduler, Tunes) {
  const std::vector<sluice_problem> problems = {c_mlp(1), c_mlp(2)};
  sluice_tune_options options{};
  options.struct_size = sizeof(options);
  options.max_memory_bytes = 1 << 20;
  options.max_seconds = 10;
  sluice_tune_report report{};
  ASSERT_EQ(sluice_scheduler_tune(scheduler, problems.data(), problems.size(), &options, &report,
                                  sizeof(report), &error),
            SLUICE_OK)
      << error.message;
  EXPECT_EQ(report.measured + report.one_candidate, 2);
  EXPECT_EQ(report.struct_size, sizeof(report));
  if (report.measured == 0) GTEST_SKIP() << "one SIMD target: nothing to choose";
  ASSERT_EQ(sluice_scheduler_tune(scheduler, problems.data(), problems.size(), &options, &report,
                                  sizeof(report), &error),
            SLUICE_OK);
  EXPECT_EQ(report.known, 2);
}

TEST_F(CScheduler, AFlagIsZeroOrOne) {
  sluice_tune_options options{};
  options.struct_size = sizeof(options);
  for (const std::int32_t again : {2, -1, 256}) {
    options.again = again;
    EXPECT_EQ(sluice_scheduler_tune(scheduler, nullptr, 0, &options, nullptr, 0, &error),
              SLUICE_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(error.message),
              "again: got " + std::to_string(again) + ", wanted 0 to 1");
  }
  options.again = 1;
  EXPECT_EQ(sluice_scheduler_tune(scheduler, nullptr, 0, &options, nullptr, 0, &error), SLUICE_OK);
}

// A caller of a later version has larger structs; what this one does not know is zero.
TEST_F(CScheduler, WalksProblemsByTheCallersSize) {
  struct Later {
    sluice_problem known;
    char added[64];
  };
  std::vector<Later> problems(2);
  for (std::size_t i = 0; i < problems.size(); ++i) {
    problems[i] = {c_mlp(static_cast<std::int64_t>(i)), {}};
    problems[i].known.struct_size = sizeof(Later);
  }
  EXPECT_EQ(sluice_scheduler_tune(scheduler, &problems[0].known, 2, nullptr, nullptr, 0, &error),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "m: got 0, wanted at least 1 to tune");
  problems[1].added[5] = 1;
  EXPECT_EQ(sluice_scheduler_tune(scheduler, &problems[0].known, 2, nullptr, nullptr, 0, &error),
            SLUICE_UNSUPPORTED);
}

TEST_F(CScheduler, NullArgumentsAreErrors) {
  const auto refused = [&](sluice_status status, const char* message) {
    EXPECT_EQ(status, SLUICE_INVALID_ARGUMENT) << message;
    EXPECT_STREQ(error.message, message);
  };
  sluice_scheduler* made = nullptr;
  refused(sluice_scheduler_create(nullptr, &made, &error), "device: got null");
  refused(sluice_scheduler_create(&cpu, nullptr, &error), "scheduler: got null");
  refused(sluice_scheduler_load(nullptr, "x", nullptr, 0, &error), "scheduler: got null");
  refused(sluice_scheduler_load(scheduler, nullptr, nullptr, 0, &error), "path: got null");
  refused(sluice_scheduler_save(nullptr, "x", &error), "scheduler: got null");
  refused(sluice_scheduler_save(scheduler, nullptr, &error), "path: got null");
  refused(sluice_scheduler_tune(nullptr, nullptr, 0, nullptr, nullptr, 0, &error),
          "scheduler: got null");
  refused(sluice_scheduler_tune(scheduler, nullptr, 1, nullptr, nullptr, 0, &error),
          "problems: got null");
  EXPECT_EQ(sluice_scheduler_tune(scheduler, nullptr, 0, nullptr, nullptr, 0, &error), SLUICE_OK);
  EXPECT_EQ(sluice_scheduler_load(scheduler, nullptr, nullptr, 0, nullptr), SLUICE_INVALID_ARGUMENT)
      << "also without an error to fill";
  sluice_load_report report{};
  refused(sluice_scheduler_load(scheduler, cache().c_str(), &report, 8, &error),
          "report: struct_size is 8, wanted at least 352");
  sluice_scheduler_destroy(nullptr);
}

}  // namespace
}  // namespace sluice::tune
