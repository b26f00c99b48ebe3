// SPDX-License-Identifier: Apache-2.0
#include "tune/file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <system_error>
#include <thread>

namespace sluice::tune {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
constexpr auto kLockPatience = std::chrono::seconds(10);

Error file_error(const std::string& path, const char* what, int code) {
  return make_error(ErrorCode::kInvalidArgument, "%s: %s: %s", path.c_str(), what,
                    std::generic_category().message(code).c_str());
}

class File {
 public:
  File(const char* path, int flags) : descriptor_(open(path, flags | O_CLOEXEC, 0666)) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

// A lock that another descriptor of the same file excludes, in this process or another; released
// with the descriptor, also by a process that is killed.
Status lock(const File& file, const std::string& path) {
  const auto end = std::chrono::steady_clock::now() + kLockPatience;
  while (flock(file.descriptor(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return file_error(path, "cannot be locked", errno);
    if (std::chrono::steady_clock::now() > end) {
      return make_error(ErrorCode::kInvalidArgument, "%s: locked by others for more than 10 s",
                        path.c_str());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return {};
}

// pwrite: cannot print, which the library never does.
Status write_all(const File& file, std::string_view text, const std::string& path) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t written =
        pwrite(file.descriptor(), text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return file_error(path, "cannot be written", errno);
    done += static_cast<std::size_t>(written);
  }
  // A name that points to content which is not on the disk yet would survive a crash without it.
  if (fsync(file.descriptor()) != 0) return file_error(path, "cannot be written", errno);
  return {};
}

// A name that no other writer uses at this time.
std::string beside(const std::string& path) {
  static std::atomic<unsigned> count{0};
  return path + "." + std::to_string(getpid()) + "." + std::to_string(++count) + ".new";
}

Status write_beside_and_rename(const std::string& path, std::string_view text) {
  const std::string made = beside(path);
  Status status;
  {
    const File file(made.c_str(), O_CREAT | O_TRUNC | O_WRONLY);
    if (file.descriptor() < 0) return file_error(made, "cannot be made", errno);
    status = write_all(file, text, made);
  }
  if (status && rename(made.c_str(), path.c_str()) != 0) {
    status = file_error(path, "cannot be replaced", errno);
  }
  if (!status) unlink(made.c_str());
  return status;
}

}  // namespace

Expected<std::optional<std::string>> read_file(const char* path) {
  const File file(path, O_RDONLY);
  if (file.descriptor() < 0) {
    if (errno == ENOENT) return std::optional<std::string>{};
    return file_error(path, "cannot be read", errno);
  }
  struct stat info {};
  if (fstat(file.descriptor(), &info) != 0) return file_error(path, "cannot be read", errno);
  if (!S_ISREG(info.st_mode) || static_cast<std::size_t>(info.st_size) > kMaxBytes) {
    return make_error(ErrorCode::kInvalidArgument, "%s: no file of at most 64 MiB", path);
  }
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t got =
        pread(file.descriptor(), text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_error(path, "cannot be read", errno);
    if (got == 0) break;  // became shorter
    done += static_cast<std::size_t>(got);
  }
  text.resize(done);
  return std::optional<std::string>(std::move(text));
}

Status replace_file(const char* path,
                    const std::function<Expected<std::string>(std::string_view)>& change) {
  const std::string lock_path = std::string(path) + ".lock";
  const File guard(lock_path.c_str(), O_CREAT | O_RDWR);
  if (guard.descriptor() < 0) return file_error(lock_path, "cannot be made", errno);
  SLUICE_TRY(lock(guard, lock_path));
  const auto old = read_file(path);
  if (!old) return old.error();
  const auto text = change(*old ? std::string_view(**old) : std::string_view());
  if (!text) return text.error();
  return write_beside_and_rename(path, *text);
}

}  // namespace sluice::tune
