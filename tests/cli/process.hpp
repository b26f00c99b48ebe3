// SPDX-License-Identifier: Apache-2.0
// Runs the program under test as its users do.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace sluice::tests {

struct Outcome {
  int code = -1;  ///< exit code; -1 where a signal ended the process
  std::string out;
  std::string err;
};

/// Where a program's output goes instead of into its Outcome: a file that is there, or "" for
/// nowhere at all, a descriptor that is closed.
struct Streams {
  const char* out = nullptr;
  const char* err = nullptr;
};

/// Runs `sluice` with these arguments. The environment is the test's without SLUICE_* and with
/// `environment` ("NAME=value") added.
Outcome sluice(std::vector<std::string> arguments, const std::vector<std::string>& environment = {},
               const Streams& streams = {});

/// A folder that is removed at the end of the test.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string path(const std::string& name) const { return (path_ / name).string(); }
  /// Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& content) const;
  /// The same, executable.
  std::string write_program(const std::string& name, const std::string& content) const;

 private:
  std::filesystem::path path_;
};

[[nodiscard]] std::string read_file(const std::string& path);
[[nodiscard]] std::vector<std::string> lines_of(const std::string& text);

}  // namespace sluice::tests
