// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.hpp"

#include <unistd.h>

#include <cstdio>

namespace sluice::cli {
namespace {

constexpr std::chrono::milliseconds kSilence{2000};
constexpr std::chrono::milliseconds kBetween{100};

}  // namespace

Progress::Progress(bool quiet)
    : enabled_(!quiet && isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {
  if (!enabled_) return;
  first_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    if (stop_.wait_until(lock, start_ + kSilence, [this] { return stopping_; })) return;
    if (!text_.empty() && !shown_) print(std::chrono::steady_clock::now());
  });
}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_one();
  if (first_.joinable()) first_.join();
  erase();
}

void Progress::show(const std::string& text) {
  if (!enabled_) return;
  const std::lock_guard lock(mutex_);
  text_ = text.substr(0, 110);
  const auto now = std::chrono::steady_clock::now();
  if (now - start_ >= kSilence && !(shown_ && now - last_ < kBetween)) print(now);
}

void Progress::clear() {
  const std::lock_guard lock(mutex_);
  text_.clear();
  erase();
}

void Progress::print(std::chrono::steady_clock::time_point now) {
  last_ = now;
  shown_ = true;
  std::fprintf(stderr, "\r\033[K%s", text_.c_str());
  std::fflush(stderr);
}

void Progress::erase() {
  if (!shown_) return;
  shown_ = false;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
}

}  // namespace sluice::cli
