// SPDX-License-Identifier: Apache-2.0
// Problems, devices, entries and a folder for the scheduler's tests.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "sluice/sluice.hpp"
#include "tune/lines.hpp"

namespace sluice::tune::tests {

inline Problem mlp(std::int64_t m, std::int64_t d = 64, std::int64_t h = 96) {
  Problem p;
  p.op = Op::kMlp;
  p.m = m;
  p.d = d;
  p.h = h;
  return p;
}

/// A GPU that is described, not there.
inline Device gpu() {
  Device d;
  d.backend = Backend::kCuda;
  d.arch = Arch::kHopper;
  d.compute_capability = 90;
  d.sm_count = 132;
  d.smem_per_block_bytes = 232448;
  d.cooperative_launch = true;
  d.driver_version = d.runtime_version = 13000;
  std::snprintf(d.name, sizeof(d.name), "NVIDIA H200");
  return d;
}

inline Entry entry_of(const Problem& problem, const Device& device, const char* variant,
                      const char* config) {
  Entry e;
  e.key = key_of(problem, device);
  std::snprintf(e.variant, sizeof(e.variant), "%s", variant);
  std::snprintf(e.config, sizeof(e.config), "%s", config);
  e.time_ns = 82300;
  e.noise_ns = 120;
  e.untuned_ns = 90100;
  return e;
}

/// A line that a scheduler for `device` in this build takes for its own.
inline std::string line_of(const Entry& entry, const Device& device) {
  return print_line({device_text(device), driver_text(device), build_text(), entry});
}

/// A folder that is removed at the end of the test.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "sluice-tune-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error(std::strerror(errno));
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  [[nodiscard]] std::string path(const std::string& name) const { return (path_ / name).string(); }
  [[nodiscard]] std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  [[nodiscard]] std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

inline std::string content_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace sluice::tune::tests
