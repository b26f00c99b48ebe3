// SPDX-License-Identifier: Apache-2.0
// Writer of safetensors files: one tensor at a time, the same bytes every time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "sluice/status.hpp"

namespace sluice::harness {

/// One tensor to write.
struct TensorToWrite {
  std::string name;
  std::string dtype_name;           ///< as the format spells it: "BF16"
  std::vector<std::int64_t> shape;  ///< empty for a scalar
  std::int64_t bytes = 0;
  /// The `bytes` bytes, asked for when their turn comes; they need to live until the next turn.
  std::function<Expected<std::span<const std::byte>>()> data;
};

/// Replaces the file at `path` as a whole: tensors by falling element size, so that each is aligned
/// to its elements, then by name; the first at a multiple of 64 bytes. Names differ.
/// Errors: those of replace_file() and of `data`; kInternal where data have another size.
[[nodiscard]] Status write_safetensors(
    const std::string& path, std::vector<TensorToWrite> tensors,
    const std::map<std::string, std::string, std::less<>>& metadata);

}  // namespace sluice::harness
