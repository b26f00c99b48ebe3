// SPDX-License-Identifier: Apache-2.0
#include "harness/file_image.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace sluice::harness {

FileImage::FileImage(FileImage&& other) noexcept
    : shown_(std::move(other.shown_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

FileImage& FileImage::operator=(FileImage&& other) noexcept {
  if (this != &other) {
    release();
    shown_ = std::move(other.shown_);
    descriptor_ = std::exchange(other.descriptor_, -1);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

FileImage::~FileImage() { release(); }

void FileImage::release() noexcept {
  if (data_ != nullptr) ::munmap(data_, size_);
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  data_ = nullptr;
  size_ = 0;
}

Expected<FileImage> FileImage::open(const std::string& path) {
  FileImage image;
  image.shown_ = printable(path);
  const char* const shown = image.shown_.c_str();
  // O_NONBLOCK: opening a pipe without a writer would wait for one; it means nothing to a file.
  image.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (image.descriptor_ < 0) {
    return make_error(ErrorCode::kInvalidArgument, "%s: cannot be opened: %s", shown,
                      std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(image.descriptor_, &info) != 0) {
    return make_error(ErrorCode::kInvalidArgument, "%s: cannot be examined: %s", shown,
                      std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) {
    return make_error(ErrorCode::kInvalidArgument, "%s: is not a regular file", shown);
  }
  if (info.st_size == 0) return image;
  const auto size = static_cast<std::size_t>(info.st_size);
  void* const data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return make_error(ErrorCode::kOutOfMemory, "%s: no address space for %zu bytes: %s", shown,
                      size, std::strerror(errno));
  }
  image.data_ = static_cast<std::byte*>(data);
  image.size_ = size;
  return image;
}

Status FileImage::read(std::size_t offset, std::size_t size) {
  const std::size_t end = offset + size;
  while (offset < end) {
    const ssize_t got =
        ::pread(descriptor_, data_ + offset, end - offset, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return make_error(ErrorCode::kInvalidArgument, "%s: cannot be read: %s", shown_.c_str(),
                        std::strerror(errno));
    }
    if (got == 0) {
      return make_error(ErrorCode::kInvalidArgument,
                        "%s: became shorter while it was read: %zu bytes, %zu when it was opened",
                        shown_.c_str(), offset, size_);
    }
    offset += static_cast<std::size_t>(got);
  }
  return {};
}

void FileImage::forget(std::size_t offset, std::size_t size) noexcept {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t begin = (offset + page - 1) / page * page;
  const std::size_t end = (offset + size) / page * page;
  if (begin < end) ::madvise(data_ + begin, end - begin, MADV_DONTNEED);
}

Expected<FileImage> read_whole(const std::string& path) {
  Expected<FileImage> image = FileImage::open(path);
  if (!image) return image.error();
  const std::size_t size = image->bytes().size();
  if (size > kMostWholeBytes) {
    return make_error(ErrorCode::kInvalidArgument, "%s: got %zu bytes, wanted at most %zu",
                      printable(path).c_str(), size, kMostWholeBytes);
  }
  SLUICE_TRY(image->read(0, size));
  return image;
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
