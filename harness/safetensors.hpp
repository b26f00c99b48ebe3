// SPDX-License-Identifier: Apache-2.0
// Reader of safetensors files: tensors are read when they are asked for, nothing is believed
// unchecked.
//
// Format: an 8-byte little-endian header length N, N bytes of JSON, then the tensors' bytes.
// Source: the format section of the safetensors README (Hugging Face), whose rules (header at most
// 100 MB, begins with '{', no holes, no overlap, no duplicate names) are all enforced.
// Elements are little-endian on disk and are used in place, so the host must be little-endian too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/file_image.hpp"
#include "sluice/status.hpp"
#include "sluice/types.hpp"

namespace sluice::harness {

/// One tensor of a file: row-major, contiguous, in the file's bytes.
struct TensorView {
  std::string name;
  std::string dtype_name;           ///< as the file spells it: "BF16", "F32", "I64", ...
  std::optional<DType> dtype;       ///< for BF16, F16, F32, F64; empty: readable as raw bytes only
  std::vector<std::int64_t> shape;  ///< empty for a scalar
  const std::byte* data = nullptr;  ///< a multiple of the element size; null where bytes is 0
  std::int64_t bytes = 0;
};

/// The tensors of one safetensors image, and its metadata. Views point into the image.
struct SafeTensorsIndex {
  std::vector<TensorView> tensors;  ///< in the order of their bytes, then of their names
  std::map<std::string, std::string, std::less<>> metadata;  ///< the header's "__metadata__"
};

/// Reads the header of a safetensors image in memory and checks all of it.
///
/// `file` is the whole image; `name` begins every message. The tensor data are not read.
/// Errors, kInvalidArgument, each naming the file and, where there is one, the tensor: image
/// shorter than its header says; header length 0 or above 100 MB; bad JSON; duplicate names; a
/// missing or unknown dtype; a shape that is no list of non-negative integers or overflows; offsets
/// that are reversed, out of range, overlapping, leave a hole, or do not agree with shape and
/// dtype; a tensor that is not aligned to its element size; non-text metadata.
[[nodiscard]] Expected<SafeTensorsIndex> parse_safetensors(std::span<const std::byte> file,
                                                           std::string_view name);

/// An open safetensors file. Move-only; views stay valid while the object, or what it was moved to,
/// lives, and hold zeros until they are load()ed.
class SafeTensors {
 public:
  /// Reads and checks the header of the file at `path`. Errors: those of FileImage::open() and
  /// read(), and parse_safetensors().
  [[nodiscard]] static Expected<SafeTensors> open(const std::string& path);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] const std::vector<TensorView>& tensors() const noexcept { return index_.tensors; }
  [[nodiscard]] const auto& metadata() const noexcept { return index_.metadata; }
  /// Reads the data of a tensor that holds() is true of. Errors: those of FileImage::read().
  Status load(const TensorView& view);
  /// Gives back the memory of the data of such a tensor, which may then be load()ed again.
  void unload(const TensorView& view) noexcept;
  /// Do the view's data lie in this file?
  [[nodiscard]] bool holds(const TensorView& view) const noexcept;
  /// The tensor of that name, or null.
  [[nodiscard]] const TensorView* find(std::string_view name) const noexcept;

 private:
  std::string path_;
  FileImage file_;
  SafeTensorsIndex index_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

}  // namespace sluice::harness
