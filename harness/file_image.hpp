// SPDX-License-Identifier: Apache-2.0
// FileImage: memory as large as a regular file, into which the parts that are asked for are read.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "sluice/status.hpp"

namespace sluice::harness {

/// A copy of a regular file in pages of its own, and not a mapping of it, on which another process
/// could raise SIGBUS by making the file shorter. Only what is read() takes memory; the rest is
/// zeros. Byte i lies at the file's offset in its page. Move-only; the address survives a move.
class FileImage {
 public:
  FileImage() = default;
  FileImage(FileImage&& other) noexcept;
  FileImage& operator=(FileImage&& other) noexcept;
  FileImage(const FileImage&) = delete;
  FileImage& operator=(const FileImage&) = delete;
  ~FileImage();

  /// Opens the file at `path`, following symbolic links. An empty file gives an empty span.
  /// Errors: kInvalidArgument where the file does not exist, cannot be read, or is no regular file
  /// (directory, pipe, device); kOutOfMemory without address space. Messages name the path.
  [[nodiscard]] static Expected<FileImage> open(const std::string& path);

  /// Copies the file's bytes [offset, offset + size), within bytes(), from the disk. Errors:
  /// kInvalidArgument where they cannot be read or are gone since open().
  Status read(std::size_t offset, std::size_t size);

  /// Gives the whole pages of a range back to the system: they hold zeros until they are read
  /// again.
  void forget(std::size_t offset, std::size_t size) noexcept;

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  /// The bytes as text; not zero-terminated.
  [[nodiscard]] std::string_view text() const noexcept {
    return {reinterpret_cast<const char*>(data_), size_};
  }

 private:
  void release() noexcept;

  std::string shown_;  // the path, for messages
  int descriptor_ = -1;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Files that are read whole have so many bytes at the most.
inline constexpr std::size_t kMostWholeBytes = 100'000'000;

/// The whole of a small file. Errors: those of open() and read(), kInvalidArgument for a larger
/// one.
[[nodiscard]] Expected<FileImage> read_whole(const std::string& path);

/// Untrusted text for an error message: at most `limit` bytes, the middle cut out where it is
/// longer, everything but printable ASCII shown as '?'.
[[nodiscard]] std::string printable(std::string_view text, std::size_t limit = 96);

}  // namespace sluice::harness
