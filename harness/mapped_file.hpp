// SPDX-License-Identifier: Apache-2.0
// MappedFile: a whole regular file, read-only in memory, for as long as the object lives.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "sluice/status.hpp"

namespace sluice::harness {

/// A read-only private mapping of a regular file. Move-only; the address survives a move.
///
/// NOTE: a file that another process truncates while it is mapped raises SIGBUS on access, as with
/// every memory-mapped reader; replace checkpoints by rename.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  /// Maps the file at `path`, following symbolic links. An empty file gives an empty span.
  /// Errors: kInvalidArgument where the file does not exist, cannot be read, or is no regular file
  /// (directory, pipe, device); kOutOfMemory where it cannot be mapped. Messages name the path.
  [[nodiscard]] static Expected<MappedFile> open(const std::string& path);

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  /// The bytes as text; not zero-terminated.
  [[nodiscard]] std::string_view text() const noexcept {
    return {reinterpret_cast<const char*>(data_), size_};
  }

 private:
  void release() noexcept;

  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Untrusted text for an error message: at most `limit` bytes, the middle cut out where it is
/// longer, everything but printable ASCII shown as '?'.
[[nodiscard]] std::string printable(std::string_view text, std::size_t limit = 96);

}  // namespace sluice::harness
