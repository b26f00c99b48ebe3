// SPDX-License-Identifier: Apache-2.0
#include "harness/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace sluice::harness {

namespace {

// A file descriptor that closes itself; the mapping outlives it.
struct Descriptor {
  int value = -1;
  explicit Descriptor(int fd) : value(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

}  // namespace

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

MappedFile::~MappedFile() { release(); }

void MappedFile::release() noexcept {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  data_ = nullptr;
  size_ = 0;
}

Expected<MappedFile> MappedFile::open(const std::string& path) {
  const std::string shown = printable(path);
  // O_NONBLOCK: opening a pipe without a writer would wait for one; it means nothing to a file.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.value < 0) {
    return make_error(ErrorCode::kInvalidArgument, "%s: cannot be opened: %s", shown.c_str(),
                      std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(file.value, &info) != 0) {
    return make_error(ErrorCode::kInvalidArgument, "%s: cannot be examined: %s", shown.c_str(),
                      std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) {
    return make_error(ErrorCode::kInvalidArgument, "%s: is not a regular file", shown.c_str());
  }
  MappedFile mapped;
  if (info.st_size == 0) return mapped;
  const auto size = static_cast<std::size_t>(info.st_size);
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.value, 0);
  if (data == MAP_FAILED) {
    return make_error(ErrorCode::kOutOfMemory, "%s: %zu bytes cannot be mapped: %s", shown.c_str(),
                      size, std::strerror(errno));
  }
  mapped.data_ = static_cast<const std::byte*>(data);
  mapped.size_ = size;
  return mapped;
}

std::string printable(std::string_view text, std::size_t limit) {
  std::string shown;
  const auto append = [&shown](std::string_view part) {
    for (const char c : part) shown += (c >= 0x20 && c < 0x7F) ? c : '?';
  };
  if (text.size() <= limit) {
    append(text);
    return shown;
  }
  // Paths and tensor names differ in their ends more than in their beginnings.
  const std::size_t head = limit / 3;
  append(text.substr(0, head));
  shown += "...";
  append(text.substr(text.size() - (limit - head - 3)));
  return shown;
}

}  // namespace sluice::harness
