// SPDX-License-Identifier: Apache-2.0
// The text of a tuning cache or table: a header line, then one line an entry, each complete and
// with a checksum of its own, so that lines of several devices and builds share a file and a broken
// line costs that line alone.
//
//   sluice tune 2
//   device TAB driver TAB build TAB problem TAB variant TAB config TAB time noise untuned TAB sum
//
// Times in nanoseconds; the sum is checksum() of the line before it, last tab included, in hex.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/status.hpp"
#include "tune/table.hpp"

namespace sluice::tune {

inline constexpr std::string_view kHeader = "sluice tune 2\n";

/// One line, read. The views point into the text.
struct Line {
  std::string_view device;
  std::string_view driver;
  std::string_view build;
  Entry entry{};
};

/// Nothing where the line is not complete, its sum is wrong, or a field is not as print_line()
/// writes it. `text` has no line break.
[[nodiscard]] std::optional<Line> parse_line(std::string_view text);

/// Does the line's config mean on this device what was measured? An algorithm behind the first of
/// cuBLASLt's heuristic ("down=lt3") does beside the version that the line names: it
/// is a rank of that version's list. All else does.
[[nodiscard]] bool config_holds(const Line& line, const Device& device) noexcept;

/// The line with its line break.
[[nodiscard]] std::string print_line(const Line& line);

/// Errors: kInvalidArgument where a text does not begin with the header of this version; an empty
/// text passes. `name` is for the message.
Status check_header(std::string_view text, const char* name);

/// Calls `use(line_text)` for every line behind the header, in order, without its line break; a
/// last line without one, too. Empty lines are passed over.
template <class Use>
void for_each_line(std::string_view text, const Use& use) {
  text.remove_prefix(text.size() < kHeader.size() ? text.size() : kHeader.size());
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line.empty()) use(line);
  }
}

}  // namespace sluice::tune
