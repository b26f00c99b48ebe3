// SPDX-License-Identifier: Apache-2.0
// What CMake writes into the program at build time: data files and facts about the build.
#pragma once

#include <string_view>

namespace sluice::harness {

/// The text of data/models.json.
[[nodiscard]] std::string_view embedded_models_json();

/// Facts about the build.
struct BuildInfo {
  const char* compiler;    ///< "GNU 12.2.0"
  const char* build_type;  ///< "Release"
  bool cuda;               ///< built with the CUDA backend
};
[[nodiscard]] BuildInfo build_info();

/// Full hash of the commit that the sources were at when this was built, or "unknown".
[[nodiscard]] const char* build_commit();
/// Whether tracked files differed from that commit.
[[nodiscard]] bool build_dirty();
/// What each kernel is, "cpu=0123456789abcdef cuda.norm=…": harness/write_commit.cmake says of what
/// these are hashes.
[[nodiscard]] const char* build_fingerprints();

}  // namespace sluice::harness
