// SPDX-License-Identifier: Apache-2.0
// Files that several processes read and write: whole, or not at all.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/status.hpp"

namespace sluice::tune {

/// The content; nothing where there is no such file. Errors: kInvalidArgument where it cannot be
/// read, is no regular file, or is larger than 64 MiB, which no tuning cache is.
[[nodiscard]] Expected<std::optional<std::string>> read_file(const char* path);

/// Replaces the content, "" where there is no such file, by what `change` makes of it: under a lock
/// on PATH.lock, which is removed again, as files::replace_file() does. Errors: kInvalidArgument
/// where a file cannot be made, or the lock is held by others for more than ten seconds; those of
/// `change`.
Status update_file(const char* path,
                   const std::function<Expected<std::string>(std::string_view)>& change);

}  // namespace sluice::tune
