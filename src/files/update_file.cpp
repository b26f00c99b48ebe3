// SPDX-License-Identifier: Apache-2.0
#include "files/update_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include "files/replace_file.hpp"

namespace sluice::files {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
constexpr auto kLockPatience = std::chrono::seconds(60);

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
// with the descriptor, also by a process that is killed, whose file stays and locks nothing.
class Lock {
 public:
  explicit Lock(std::string path) : path_(std::move(path)) {}
  // While it is locked: who waits for it finds another file, or none, under its name then.
  ~Lock() {
    if (held_) unlink(path_.c_str());
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  Status take() {
    const auto end = std::chrono::steady_clock::now() + kLockPatience;
    while (true) {
      file_.emplace(path_.c_str(), O_CREAT | O_RDWR | O_NONBLOCK);
      if (file_->descriptor() < 0) return file_error(path_, "cannot be made", errno);
      if (flock(file_->descriptor(), LOCK_EX | LOCK_NB) == 0) {
        if (!has_its_name()) continue;
        SLUICE_TRY(check_empty());
        held_ = true;
        return {};
      }
      if (errno != EWOULDBLOCK && errno != EINTR) {
        return file_error(path_, "cannot be locked", errno);
      }
      if (std::chrono::steady_clock::now() > end) {
        return make_error(ErrorCode::kInvalidArgument, "%s: locked by others for more than 60 s",
                          path_.c_str());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

 private:
  // Not removed by who held it before.
  [[nodiscard]] bool has_its_name() const {
    struct stat own {};
    struct stat named {};
    return fstat(file_->descriptor(), &own) == 0 && stat(path_.c_str(), &named) == 0 &&
           own.st_dev == named.st_dev && own.st_ino == named.st_ino;
  }

  // What holds something, or is no file, is somebody else's: it would be removed.
  [[nodiscard]] Status check_empty() const {
    struct stat own {};
    if (fstat(file_->descriptor(), &own) != 0) return file_error(path_, "cannot be read", errno);
    if (S_ISREG(own.st_mode) && own.st_size == 0) return {};
    return make_error(ErrorCode::kInvalidArgument, "%s: is no lock, wanted an empty file or none",
                      path_.c_str());
  }

  std::string path_;
  std::optional<File> file_;
  bool held_ = false;
};

}  // namespace

Expected<std::optional<std::string>> read_file(const char* path) {
  const File file(path, O_RDONLY | O_NONBLOCK);  // opening a pipe would wait for its writer
  if (file.descriptor() < 0) {
    if (errno == ENOENT) return std::optional<std::string>{};
    return file_error(path, "cannot be read", errno);
  }
  struct stat info {};
  if (fstat(file.descriptor(), &info) != 0) return file_error(path, "cannot be read", errno);
  if (!S_ISREG(info.st_mode)) {
    return make_error(ErrorCode::kInvalidArgument, "%s: is %s, wanted a regular file", path,
                      S_ISDIR(info.st_mode) ? "a directory" : "a pipe, a socket or a device");
  }
  if (static_cast<std::size_t>(info.st_size) > kMaxBytes) {
    return make_error(ErrorCode::kInvalidArgument, "%s: got %lld bytes, wanted at most 64 MiB",
                      path, static_cast<long long>(info.st_size));
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

Status update_file(const char* path,
                   const std::function<Expected<std::string>(std::string_view)>& change) {
  // Of the file itself: writers by a link and by what it leads to exclude each other.
  Lock lock(followed(path) + ".lock");
  SLUICE_TRY(lock.take());
  const auto old = read_file(path);
  if (!old) return old.error();
  const auto text = change(*old ? std::string_view(**old) : std::string_view());
  if (!text) return text.error();
  return replace_file(path, *text);
}

}  // namespace sluice::files
