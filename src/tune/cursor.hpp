// SPDX-License-Identifier: Apache-2.0
// Cursor: reads a text from left to right, a piece at a time; a piece that is not there ends it.
#pragma once

#include <charconv>
#include <cstdint>
#include <string_view>

namespace sluice::tune {

class Cursor {
 public:
  explicit Cursor(std::string_view text) : rest_(text) {}

  /// This very text.
  Cursor& literal(std::string_view text) {
    if (good_ && rest_.starts_with(text)) {
      rest_.remove_prefix(text.size());
    } else {
      good_ = false;
    }
    return *this;
  }

  /// A number of a built-in integer type, digits of `base` alone.
  template <class T>
  Cursor& number(T& value, int base = 10) {
    const char* const end = rest_.data() + rest_.size();
    const auto read = std::from_chars(rest_.data(), end, value, base);
    good_ = good_ && read.ec == std::errc{};
    if (good_) rest_.remove_prefix(static_cast<std::size_t>(read.ptr - rest_.data()));
    return *this;
  }

  /// The enumerator of a one-byte enum of `count` values whose name comes next, up to a space, a
  /// slash or the end.
  template <class E>
  Cursor& name(std::uint8_t& value, int count) {
    const std::string_view word = rest_.substr(0, rest_.find_first_of(" /"));
    for (int i = 0; good_ && i < count; ++i) {
      if (word != to_string(static_cast<E>(i))) continue;
      value = static_cast<std::uint8_t>(i);
      rest_.remove_prefix(word.size());
      return *this;
    }
    good_ = false;
    return *this;
  }

  /// Everything up to `delimiter`, which is taken too.
  Cursor& field(std::string_view& value, char delimiter) {
    const std::size_t end = rest_.find(delimiter);
    good_ = good_ && end != std::string_view::npos;
    if (good_) {
      value = rest_.substr(0, end);
      rest_.remove_prefix(end + 1);
    }
    return *this;
  }

  /// Was every piece there, and nothing behind the last?
  [[nodiscard]] bool finished() const { return good_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool good_ = true;
};

}  // namespace sluice::tune
