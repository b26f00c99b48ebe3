// SPDX-License-Identifier: Apache-2.0
// Writers of one cache at once: threads, processes, one that is killed, one that holds the lock.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <thread>
#include <vector>

#include "files/replace_file.hpp"
#include "problems.hpp"
#include "sluice/scheduler.hpp"
#include "tests/unit/expect_error.hpp"

namespace {
std::atomic<int> renamed_locks{0};
}  // namespace

// In place of the C library's: so often a lock has another file under its name.
int stat(const char* path, struct stat* info) noexcept {
  const std::string_view name(path);
  if (name.ends_with(".lock") && renamed_locks > 0) {
    --renamed_locks;
    errno = ENOENT;
    return -1;
  }
  return fstatat(AT_FDCWD, path, info, 0);
}

namespace sluice::tune {
namespace {

using tests::content_of;
using tests::entry_of;
using tests::Folder;
using tests::line_of;
using tests::mlp;

// All entries from 1 to `count` are there, and no line is damaged.
void expect_entries(const std::string& path, std::int64_t count) {
  Scheduler scheduler(cpu_device());
  const auto report = scheduler.load(path.c_str());
  ASSERT_TRUE(test::succeeds(report));
  EXPECT_EQ(report->damaged, 0U);
  EXPECT_EQ(report->loaded, static_cast<std::size_t>(count));
}

class Writers : public testing::Test {
 protected:
  // Saves entries for `count` token counts from `first` on, each by a scheduler of its own, which
  // has it from a file. Those stay until the end of the test: a writer may be killed.
  bool save_entries(std::int64_t first, std::int64_t count) const {
    return save_entries(first, count, path);
  }
  bool save_entries(std::int64_t first, std::int64_t count, const std::string& to) const {
    const Device cpu = cpu_device();
    for (std::int64_t m = first; m < first + count; ++m) {
      Scheduler scheduler(cpu);
      const std::string own = sources.write(
          std::to_string(m),
          std::string(kHeader) + line_of(entry_of(mlp(m), cpu, "cpu.simd", "c"), cpu));
      if (!scheduler.load(own.c_str()) || !scheduler.save(to.c_str())) return false;
    }
    return true;
  }

  const Folder folder;
  const std::string path = folder.path("cache");
  const Folder sources;
};

TEST_F(Writers, ThreadsLoseNothing) {
  constexpr std::int64_t kThreads = 8;
  constexpr std::int64_t kEach = 8;
  std::atomic<bool> done{false};
  // A reader sees a whole file at any time.
  std::thread reader([&] {
    while (!done) {
      Scheduler scheduler(cpu_device());
      const auto report = scheduler.load(path.c_str());
      ASSERT_TRUE(test::succeeds(report));
      EXPECT_EQ(report->damaged, 0U);
    }
  });
  std::vector<std::thread> writers;
  for (std::int64_t i = 0; i < kThreads; ++i) {
    writers.emplace_back([&, i] { EXPECT_TRUE(save_entries(1 + i * kEach, kEach)); });
  }
  for (std::thread& writer : writers) writer.join();
  done = true;
  reader.join();
  expect_entries(path, kThreads * kEach);
  EXPECT_EQ(folder.files(), 1U) << "the cache, without its lock";
}

// By links and by what they lead to, in turn: one file has one lock.
TEST_F(Writers, ByALinkAndByItsTargetLoseNothing) {
  constexpr std::int64_t kThreads = 8;
  constexpr std::int64_t kEach = 16;
  const Folder elsewhere;
  const std::string by_name = folder.path("link");
  const std::string by_path = elsewhere.path("link");
  std::filesystem::create_symlink("cache", by_name);
  std::filesystem::create_symlink(by_name, by_path);  // through the other
  const std::array names = {path, by_name, by_path};
  std::vector<std::thread> writers;
  for (std::int64_t i = 0; i < kThreads; ++i) {
    writers.emplace_back([&, i] {
      for (std::int64_t k = 0; k < kEach; ++k) {
        const std::string& name = names.at(static_cast<std::size_t>(i + k) % names.size());
        EXPECT_TRUE(save_entries(1 + i * kEach + k, 1, name));
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  expect_entries(path, kThreads * kEach);
  EXPECT_EQ(folder.files(), 2U) << "the cache and its link, without a lock";
  EXPECT_EQ(elsewhere.files(), 1U) << "the other link";
  EXPECT_TRUE(std::filesystem::is_symlink(by_name));
  EXPECT_TRUE(std::filesystem::is_symlink(by_path));
}

TEST_F(Writers, ProcessesLoseNothing) {
  constexpr std::int64_t kProcesses = 6;
  constexpr std::int64_t kEach = 8;
  std::vector<pid_t> children;
  for (std::int64_t i = 0; i < kProcesses; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) _exit(save_entries(1 + i * kEach, kEach) ? 0 : 1);
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  expect_entries(path, kProcesses * kEach);
  EXPECT_EQ(folder.files(), 1U);
}

// Killed at any moment, a writer leaves the old file or the new one, and no lock.
TEST_F(Writers, OneThatIsKilledLeavesAWholeFile) {
  ASSERT_TRUE(save_entries(1, 4));
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      while (save_entries(1, 4)) {
      }
      _exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2 + round));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status)) << "it was still writing";
    expect_entries(path, 4);
  }
  ASSERT_TRUE(save_entries(5, 1)) << "the lock went with its holder";
  expect_entries(path, 5);
}

TEST_F(Writers, WaitForTheLock) {
  const int held = open((path + ".lock").c_str(), O_CREAT | O_RDWR, 0666);
  ASSERT_GE(held, 0);
  ASSERT_EQ(flock(held, LOCK_EX), 0);
  std::atomic<bool> saved{false};
  std::thread writer([&] {
    EXPECT_TRUE(save_entries(1, 1));
    saved = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(saved);
  close(held);
  writer.join();
  expect_entries(path, 1);
}

// A lock whose file others remove again and again is waited for like one that they hold.
TEST_F(Writers, SleepWhileTheLockIsRemoved) {
  using std::chrono::steady_clock;
  renamed_locks = 20;
  const auto start = steady_clock::now();
  EXPECT_TRUE(save_entries(1, 1));
  EXPECT_EQ(renamed_locks, 0);
  EXPECT_GE(steady_clock::now() - start, std::chrono::milliseconds(20 * 2));
  expect_entries(path, 1);
}

TEST_F(Writers, WhatIsNoLockStays) {
  const std::string lock = path + ".lock";
  std::ofstream(lock) << "somebody's";
  Scheduler scheduler(cpu_device());
  EXPECT_TRUE(
      test::refuses(scheduler.save(path.c_str()), ".lock: is no lock, wanted an empty file"));
  EXPECT_EQ(content_of(lock), "somebody's");
}

TEST(Files, AreReplacedAsAWholeOrNotAtAll) {
  const Folder folder;
  const std::string path = folder.write("file", "old");
  const auto refuse = [](std::string_view) -> Expected<std::string> {
    return make_error(ErrorCode::kInvalidArgument, "not this one");
  };
  EXPECT_TRUE(test::refuses(files::update_file(path.c_str(), refuse), "not this one"));
  EXPECT_EQ(content_of(path), "old");
  const auto append = [](std::string_view old) -> Expected<std::string> {
    return std::string(old) + " and new";
  };
  EXPECT_TRUE(test::succeeds(files::update_file(path.c_str(), append)));
  EXPECT_EQ(content_of(path), "old and new");
  EXPECT_FALSE(files::read_file(folder.path("none").c_str()).value().has_value());
}

TEST(Files, WhatIsNoRegularFileIsNamedAndNotWaitedFor) {
  const Folder folder;
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(
      test::refuses(files::read_file(pipe.c_str()), "pipe: is a pipe, a socket or a device"));
  EXPECT_TRUE(
      test::refuses(files::read_file("/dev/null"), "/dev/null: is a pipe, a socket or a device"));
  EXPECT_TRUE(
      test::refuses(files::read_file(folder.path(".").c_str()), "is a directory, wanted a"));
  const std::string large = folder.write("large", "");
  std::filesystem::resize_file(large, (std::uintmax_t{64} << 20) + 1);
  EXPECT_TRUE(
      test::refuses(files::read_file(large.c_str()), "got 67108865 bytes, wanted at most 64 MiB"));
  Scheduler scheduler(cpu_device());
  EXPECT_TRUE(test::refuses(scheduler.load(pipe.c_str()), "pipe: is a pipe"));
  EXPECT_TRUE(test::refuses(scheduler.save(pipe.c_str()), "pipe: is a pipe"));
}

}  // namespace
}  // namespace sluice::tune
