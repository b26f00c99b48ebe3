// SPDX-License-Identifier: Apache-2.0
// What a long step is about, on a terminal.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace sluice::cli {

/// One line on standard error that overwrites itself: only on a terminal, not with --quiet, and
/// only once two seconds have passed. A thread that wakes once, then, shows what a first step that
/// takes longer is about.
class Progress {
 public:
  explicit Progress(bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(const std::string& text);
  /// Removes the line, before something else is printed.
  void clear();

 private:
  void print(std::chrono::steady_clock::time_point now);
  void erase();

  bool enabled_;
  std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;  // of what follows
  std::condition_variable stop_;
  bool stopping_ = false;
  bool shown_ = false;
  std::string text_;  // of the step under way; empty between steps
  std::chrono::steady_clock::time_point last_;
  std::thread first_;
};

}  // namespace sluice::cli
