// SPDX-License-Identifier: Apache-2.0
// Files that are written as a whole or not at all, for the scheduler's cache and the harness's
// results alike; where several processes read, change and write, a change is of the newest content.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/status.hpp"

namespace sluice::files {

/// Where a path leads through symbolic links, also where nothing is there.
[[nodiscard]] std::string followed(std::string path);

/// Replaces the content of a file; makes the file where there is none. A file beside it is written,
/// synced to the disk and renamed, so that a reader sees the old content or the new one, and a
/// failure leaves the old one. A symbolic link stays: what it leads to is replaced. An existing
/// file keeps its mode and, where the process may give files away, its owner; other hard links to
/// it keep the old content. Threads and processes may replace one file at once: one of them is
/// last.
/// Errors: kInvalidArgument with path and reason, where the path leads to what is no regular file,
/// the file may not be written, its folder takes no new file, or the disk is full.
Status replace_file(const std::string& path, std::string_view text);

/// Takes the next part of a file's content.
using Append = std::function<Status(std::string_view)>;
/// The same for content that comes in parts, which `write` hands to its argument. Errors: the same,
/// which `write` passes on, and its own.
Status replace_file(const std::string& path, const std::function<Status(const Append&)>& write);

/// Whether replace_file() may write there, disk space aside. Leaves nothing behind. Errors: the
/// same.
Status check_replaceable(const std::string& path);

/// The content; nothing where there is no such file. Errors: kInvalidArgument where it cannot be
/// read, is no regular file, or is larger than 64 MiB, which no file of ours is.
[[nodiscard]] Expected<std::optional<std::string>> read_file(const char* path);

/// Replaces the content, "" where there is no such file, by what `change` makes of it: under a lock
/// on PATH.lock, which is removed again, as replace_file() does. Errors: kInvalidArgument
/// where a file cannot be made, or the lock is held by others for more than a minute; those of
/// `change`.
Status update_file(const char* path,
                   const std::function<Expected<std::string>(std::string_view)>& change);

}  // namespace sluice::files
