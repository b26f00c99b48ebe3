// SPDX-License-Identifier: Apache-2.0
// A file is replaced as a whole or not at all: links, modes, a full disk, what is no regular file.
#include "files/replace_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "problems.hpp"
#include "tests/unit/expect_error.hpp"

namespace sluice::files {
namespace {

namespace fs = std::filesystem;
using tune::tests::content_of;
using tune::tests::Folder;

mode_t mode_of(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

// A disk that has room for so many bytes of one file.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : signal_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit small{bytes, old_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &old_);
    signal(SIGXFSZ, signal_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit old_{};
  sighandler_t signal_;
};

TEST(ReplaceFile, MakesAFileAndReplacesIt) {
  const Folder folder;
  const std::string path = folder.path("file");
  EXPECT_TRUE(test::succeeds(check_replaceable(path)));
  EXPECT_EQ(folder.files(), 0U) << "a check leaves nothing";
  const mode_t mask = umask(022);
  EXPECT_TRUE(test::succeeds(replace_file(path, "one")));
  umask(mask);
  EXPECT_EQ(content_of(path), "one");
  EXPECT_EQ(mode_of(path), 0644U);
  EXPECT_TRUE(test::succeeds(check_replaceable(path)));
  EXPECT_EQ(content_of(path), "one");
  EXPECT_TRUE(test::succeeds(replace_file(path, "")));
  EXPECT_EQ(content_of(path), "");
  EXPECT_EQ(folder.files(), 1U);
}

TEST(ReplaceFile, ContentInPartsIsOneFileOrNone) {
  const Folder folder;
  const std::string path = folder.write("file", "old");
  EXPECT_TRUE(test::succeeds(replace_file(path, [](const Append& append) -> Status {
    for (const char* part : {"one ", "", "two"}) SLUICE_TRY(append(part));
    return {};
  })));
  EXPECT_EQ(content_of(path), "one two");
  EXPECT_TRUE(test::refuses(replace_file(path,
                                         [](const Append& append) -> Status {
                                           SLUICE_TRY(append("half"));
                                           return make_error(ErrorCode::kInvalidArgument, "mine");
                                         }),
                            "mine"));
  EXPECT_EQ(content_of(path), "one two");
  const FullDisk disk(4096);
  EXPECT_TRUE(test::refuses(replace_file(path,
                                         [](const Append& append) -> Status {
                                           SLUICE_TRY(append(std::string(4000, 'x')));
                                           return append(std::string(4000, 'x'));
                                         }),
                            "cannot be written: File too large"));
  EXPECT_EQ(content_of(path), "one two");
  EXPECT_EQ(folder.files(), 1U);
}

TEST(ReplaceFile, AFileKeepsItsMode) {
  const Folder folder;
  const std::string path = folder.write("file", "old");
  for (const mode_t mode : {0600U, 0640U, 0775U}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_TRUE(test::succeeds(replace_file(path, "new")));
    EXPECT_EQ(mode_of(path), mode);
  }
}

TEST(ReplaceFile, SymbolicLinksStay) {
  const Folder folder;
  fs::create_directory(folder.path("inner"));
  const std::string file = folder.write("inner/file", "old");
  const std::string link = folder.path("link");
  const std::string chain = folder.path("chain");
  fs::create_symlink("inner/file", link);
  fs::create_symlink(link, chain);
  for (const std::string& path : {link, chain}) {
    EXPECT_TRUE(test::succeeds(check_replaceable(path)));
    EXPECT_TRUE(test::succeeds(replace_file(path, "by " + path)));
    EXPECT_EQ(content_of(file), "by " + path);
    EXPECT_TRUE(fs::is_symlink(path));
  }
  const std::string dangling = folder.path("inner/dangling");
  fs::create_symlink("none", dangling);
  EXPECT_TRUE(test::succeeds(replace_file(dangling, "made")));
  EXPECT_EQ(content_of(folder.path("inner/none")), "made");
  EXPECT_TRUE(fs::is_symlink(dangling));
  const std::string loop = folder.path("loop");
  fs::create_symlink("loop", loop);
  EXPECT_TRUE(test::refuses(replace_file(loop, "text"), "loop: cannot be written: Too many"));
}

TEST(ReplaceFile, AFullDiskLeavesTheOldFile) {
  const Folder folder;
  const std::string old = folder.write("old", "content");
  const std::string none = folder.path("none");
  {
    const FullDisk disk(4096);
    const std::string text(5000, 'x');
    EXPECT_TRUE(test::refuses(replace_file(old, text), "old: cannot be written: File too large"));
    EXPECT_TRUE(test::refuses(replace_file(none, text), "none: cannot be written"));
  }
  EXPECT_EQ(content_of(old), "content");
  EXPECT_EQ(folder.files(), 1U) << "nothing is left behind";
}

TEST(ReplaceFile, WhatCannotBeReplacedIsSaidBefore) {
  const Folder folder;
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& [path, reason] :
       {std::pair<std::string, const char*>{folder.path("no/file"), "No such file or directory"},
        {folder.write("file", "old") + "/below", "Not a directory"},
        {folder.path("."), "Is a directory"},
        {"/dev/null", "no regular file"}}) {
    const std::string message = path + ": cannot be written: " + reason;
    EXPECT_TRUE(test::refuses(replace_file(path, "text"), message));
    EXPECT_TRUE(test::refuses(check_replaceable(path), message));
  }
  EXPECT_TRUE(test::refuses(check_replaceable(pipe), "cannot be written")) << "and does not wait";
  EXPECT_EQ(folder.files(), 2U);
}

// What is printed would go on to the file that was replaced.
TEST(ReplaceFile, AFileThatIsPrintedToStays) {
  const Folder folder;
  const std::string path = folder.write("log", "old\n");
  const int log = open(path.c_str(), O_WRONLY | O_APPEND);
  const int before = dup(STDOUT_FILENO);
  ASSERT_GE(dup2(log, STDOUT_FILENO), 0);
  const Status file = replace_file(path, "new");
  const Status device = replace_file("/dev/stdout", "new");
  dup2(before, STDOUT_FILENO);
  close(before);
  close(log);
  EXPECT_TRUE(test::refuses(file, "log: cannot be written: standard output or error goes there"));
  EXPECT_TRUE(test::refuses(device, "/dev/stdout: cannot be written: standard output"));
  EXPECT_EQ(content_of(path), "old\n");
  EXPECT_TRUE(test::succeeds(replace_file(path, "new")));
}

TEST(ReplaceFile, NothingStaysOfAProcessThatIsKilled) {
  const Folder folder;
  const int unnamed = open(folder.path(".").c_str(), O_TMPFILE | O_WRONLY, 0600);
  if (unnamed < 0) GTEST_SKIP() << "this file system has no files without a name";
  close(unnamed);
  const std::string path = folder.write("file", "old");
  const pid_t child = fork();
  if (child == 0) {
    [[maybe_unused]] const Status ignored = replace_file(path, [](const Append& append) -> Status {
      [[maybe_unused]] const Status written = append("half");
      raise(SIGKILL);
      return {};
    });
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(content_of(path), "old");
  EXPECT_EQ(folder.files(), 1U);
}

TEST(ReplaceFile, AFileThatMayNotBeWrittenStays) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everything";
  const Folder folder;
  const std::string path = folder.write("file", "old");
  ASSERT_EQ(chmod(path.c_str(), 0444), 0);
  EXPECT_TRUE(test::refuses(replace_file(path, "new"), "Permission denied"));
  EXPECT_EQ(content_of(path), "old");
}

TEST(ReplaceFile, ThreadsAtOnceLeaveOneOfTheirFiles) {
  const Folder folder;
  const std::string path = folder.path("file");
  std::vector<std::thread> writers;
  for (const char letter : {'a', 'b', 'c', 'd'}) {
    writers.emplace_back([&path, letter] {
      for (int i = 0; i < 50; ++i) {
        EXPECT_TRUE(test::succeeds(replace_file(path, std::string(10'000, letter))));
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string text = content_of(path);
  EXPECT_EQ(text, std::string(10'000, text.front()));
  EXPECT_EQ(folder.files(), 1U);
}

}  // namespace
}  // namespace sluice::files
