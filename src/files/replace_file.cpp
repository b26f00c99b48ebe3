// SPDX-License-Identifier: Apache-2.0
#include "files/replace_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <system_error>
#include <thread>

namespace sluice::files {
namespace {

constexpr int kMaxLinks = 40;  // as many as Linux follows
constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
constexpr auto kLockPatience = std::chrono::seconds(60);

Error file_error(const std::string& path, const char* what, const std::string& why) {
  return make_error(ErrorCode::kInvalidArgument, "%s: %s: %s", path.c_str(), what, why.c_str());
}

Error file_error(const std::string& path, const char* what, int code) {
  return file_error(path, what, std::generic_category().message(code));
}

template <class Why>
Error unwritable(const std::string& path, const Why& why) {
  return file_error(path, "cannot be written", why);
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags)
      : number_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int number() const { return number_; }

 private:
  int number_;
};

bool is_same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Whether standard output or error goes to a file: what they write would go on to the old one.
bool is_printed_to(const struct stat& file) {
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat info {};
    if (fstat(descriptor, &info) == 0 && is_same(info, file)) return true;
  }
  return false;
}

struct Target {
  std::string path;                ///< no symbolic link
  std::optional<struct stat> old;  ///< of the file that is there
};

Expected<Target> target_of(const std::string& path) {
  Target target{followed(path), {}};
  // As a write in place would open it: a file that may not be written is not replaced either.
  const Descriptor file(path, O_WRONLY | O_NONBLOCK);
  if (file.number() < 0) {
    if (errno != ENOENT) return unwritable(path, errno);
    return target;
  }
  struct stat info {};
  if (fstat(file.number(), &info) != 0) return unwritable(path, errno);
  if (!S_ISREG(info.st_mode)) return unwritable(path, "no regular file");
  if (is_printed_to(info)) {
    return unwritable(path, "standard output or error goes there, and the file is replaced");
  }
  target.old = info;
  return target;
}

// A file beside the target; removed unless renamed. Until then it has no name, where the file
// system can do that, so that nothing stays of a process that is killed; else one that no other
// writer has.
class Beside {
 public:
  explicit Beside(const std::string& target) : target_(target) {
    const std::size_t folder = target.rfind('/');
    file_.emplace(folder == std::string::npos ? "." : target.substr(0, folder + 1),
                  O_TMPFILE | O_WRONLY);
    if (made() && access(in_proc().c_str(), F_OK) == 0) return;
    do {
      name_ = next_name();
      file_.emplace(name_, O_CREAT | O_EXCL | O_WRONLY);
    } while (!made() && errno == EEXIST);  // left by a process that was killed
    if (!made()) name_.clear();
  }
  ~Beside() {
    if (!name_.empty()) unlink(name_.c_str());
  }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;

  [[nodiscard]] bool made() const { return file_->number() >= 0; }

  // These return false with errno set.
  [[nodiscard]] bool take_owner_and_mode(const struct stat& old) const {
    // Before the mode, which a change of owner may change; that it may not be is no failure.
    [[maybe_unused]] const int ignored = fchown(file_->number(), old.st_uid, old.st_gid);
    return fchmod(file_->number(), old.st_mode & ~static_cast<mode_t>(S_IFMT)) == 0;
  }
  [[nodiscard]] bool append(std::string_view part) {
    while (!part.empty()) {
      // pwrite: cannot print, which the library never does.
      const ssize_t written =
          pwrite(file_->number(), part.data(), part.size(), static_cast<off_t>(size_));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return false;
      size_ += static_cast<std::size_t>(written);
      part.remove_prefix(static_cast<std::size_t>(written));
    }
    return true;
  }
  // A name that points to content which is not on the disk yet would survive a crash without it.
  [[nodiscard]] bool sync() const { return fsync(file_->number()) == 0; }
  [[nodiscard]] bool rename_to_target() {
    while (name_.empty()) {
      const std::string name = next_name();
      if (linkat(AT_FDCWD, in_proc().c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
        name_ = name;
      } else if (errno != EEXIST) {
        return false;
      }
    }
    if (rename(name_.c_str(), target_.c_str()) != 0) return false;
    name_.clear();
    return true;
  }

 private:
  [[nodiscard]] std::string next_name() const {
    static std::atomic<unsigned> count{0};
    return target_ + "." + std::to_string(getpid()) + "." + std::to_string(++count) + ".new";
  }
  [[nodiscard]] std::string in_proc() const {
    return "/proc/self/fd/" + std::to_string(file_->number());
  }

  std::string target_;
  std::string name_;
  std::optional<Descriptor> file_;
  std::size_t size_ = 0;
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
      file_.emplace(path_, O_CREAT | O_RDWR | O_NONBLOCK);
      if (file_->number() < 0) return file_error(path_, "cannot be made", errno);
      if (flock(file_->number(), LOCK_EX | LOCK_NB) == 0) {
        if (has_its_name()) {
          SLUICE_TRY(check_empty());
          held_ = true;
          return {};
        }
      } else if (errno != EWOULDBLOCK && errno != EINTR) {
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
    return fstat(file_->number(), &own) == 0 && stat(path_.c_str(), &named) == 0 &&
           is_same(own, named);
  }

  // What holds something, or is no file, is somebody else's: it would be removed.
  [[nodiscard]] Status check_empty() const {
    struct stat own {};
    if (fstat(file_->number(), &own) != 0) return file_error(path_, "cannot be read", errno);
    if (S_ISREG(own.st_mode) && own.st_size == 0) return {};
    return make_error(ErrorCode::kInvalidArgument, "%s: is no lock, wanted an empty file or none",
                      path_.c_str());
  }

  std::string path_;
  std::optional<Descriptor> file_;
  bool held_ = false;
};

}  // namespace

std::string followed(std::string path) {
  std::array<char, PATH_MAX> link{};
  for (int i = 0; i < kMaxLinks; ++i) {
    const ssize_t size = readlink(path.c_str(), link.data(), link.size());
    if (size <= 0) break;
    const std::string_view to(link.data(), static_cast<std::size_t>(size));
    path.resize(to.front() == '/' ? 0 : path.rfind('/') + 1);
    path += to;
  }
  return path;
}

Status replace_file(const std::string& path, const std::function<Status(const Append&)>& write) {
  const auto target = target_of(path);
  if (!target) return target.error();
  Beside beside(target->path);
  if (!beside.made() || (target->old && !beside.take_owner_and_mode(*target->old))) {
    return unwritable(path, errno);
  }
  SLUICE_TRY(write([&](std::string_view part) -> Status {
    return beside.append(part) ? Status{} : unwritable(path, errno);
  }));
  if (!beside.sync() || !beside.rename_to_target()) return unwritable(path, errno);
  return {};
}

Status replace_file(const std::string& path, std::string_view text) {
  return replace_file(path, [&](const Append& append) { return append(text); });
}

Status check_replaceable(const std::string& path) {
  const auto target = target_of(path);
  if (!target) return target.error();
  const Beside beside(target->path);
  return beside.made() ? Status{} : unwritable(path, errno);
}

Expected<std::optional<std::string>> read_file(const char* path) {
  const Descriptor file(path, O_RDONLY | O_NONBLOCK);  // opening a pipe would wait for its writer
  if (file.number() < 0) {
    if (errno == ENOENT) return std::optional<std::string>{};
    return file_error(path, "cannot be read", errno);
  }
  struct stat info {};
  if (fstat(file.number(), &info) != 0) return file_error(path, "cannot be read", errno);
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
        pread(file.number(), text.data() + done, text.size() - done, static_cast<off_t>(done));
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
