// SPDX-License-Identifier: Apache-2.0
// The progress line on a terminal: silent for two seconds, then there even where one step takes
// longer and says nothing more.
#include "cli/progress.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Standard error is a terminal of the test's own while this lives.
class Terminal {
 public:
  Terminal() : before_(dup(STDERR_FILENO)) {
    std::fflush(stderr);
    int slave = -1;
    if (openpty(&master_, &slave, nullptr, nullptr, nullptr) != 0) return;
    fcntl(master_, F_SETFL, O_NONBLOCK);
    dup2(slave, STDERR_FILENO);
    close(slave);
  }
  ~Terminal() {
    std::fflush(stderr);
    dup2(before_, STDERR_FILENO);
    close(before_);
    close(master_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  // What has been written since the last call.
  [[nodiscard]] std::string read() const {
    std::array<char, 512> buffer{};
    const ssize_t size = ::read(master_, buffer.data(), buffer.size());
    return size > 0 ? std::string(buffer.data(), static_cast<std::size_t>(size)) : "";
  }

 private:
  int before_;
  int master_ = -1;
};

TEST(Progress, ShowsAFirstStepThatTakesLongerThanTwoSeconds) {
  const Terminal terminal;
  std::string early;
  std::string late;
  std::string after;
  {
    Progress progress(false);
    progress.show("verifying one long case");
    early = terminal.read();
    std::this_thread::sleep_for(std::chrono::milliseconds(2600));
    late = terminal.read();
    progress.clear();
    after = terminal.read();
    progress.show("the next");
    EXPECT_THAT(terminal.read(), HasSubstr("the next"));
  }
  EXPECT_THAT(early, IsEmpty());
  EXPECT_THAT(late, HasSubstr("verifying one long case"));
  EXPECT_THAT(after, HasSubstr("\033[K"));
}

TEST(Progress, IsSilentWhenAskedToBe) {
  const Terminal terminal;
  {
    Progress progress(true);
    progress.show("nothing");
  }
  EXPECT_THAT(terminal.read(), IsEmpty());
}

}  // namespace
}  // namespace sluice::cli
