// SPDX-License-Identifier: Apache-2.0
// Files that several processes read, change and write: a change is of the newest content.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/status.hpp"

namespace sluice::files {

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
