// SPDX-License-Identifier: Apache-2.0
// Turns a fuzzer's bytes into a safetensors image. A mutated header that no longer has its length
// before it would end every search at the first check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tests/format/safetensors_image.hpp"

namespace sluice::harness::fuzz {

/// 8-aligned bytes of an image, as a mapping would be: first byte 'r' takes the rest raw; else what
/// comes before the first NUL is the header, what comes after it the data.
inline std::vector<std::uint64_t> aligned_image(const std::uint8_t* data, std::size_t size,
                                                std::size_t& image_bytes) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  std::string image;
  if (!text.empty() && text.front() == 'r') {
    image = text.substr(1);
  } else {
    const std::size_t end = text.find('\0');
    const std::string_view header = text.substr(0, end);
    const std::string_view rest = end == std::string_view::npos ? "" : text.substr(end + 1);
    image = format_test::image(format_test::padded(std::string(header)), rest);
  }
  image_bytes = image.size();
  std::vector<std::uint64_t> words((image.size() + 7) / 8);
  if (!image.empty()) std::memcpy(words.data(), image.data(), image.size());
  return words;
}

}  // namespace sluice::harness::fuzz
