// SPDX-License-Identifier: Apache-2.0
#include "tune/shipped.hpp"

#include <string>
#include <vector>

#include "tune/cursor.hpp"
#include "tune/lines.hpp"
#include "tune/shipped_tables.hpp"

namespace sluice::tune {
namespace {

// Is it an algorithm behind the first of cuBLASLt's heuristic ("sm90_cublaslt.down.lt3")? Which one
// that is depends on the library's version.
bool names_later_rank(std::string_view config) {
  const std::size_t at = config.rfind("lt");
  int rank = 0;
  return at != std::string_view::npos && Cursor(config.substr(at + 2)).number(rank).finished() &&
         rank > 0;
}

}  // namespace

std::size_t add_shipped(std::string_view text, const Device& device, Table& table) {
  if (!check_header(text, "")) return 0;
  const std::string own = device_text(device);
  std::vector<Entry> entries;
  for_each_line(text, [&](std::string_view line_text) {
    const auto line = parse_line(line_text);
    if (!line || line->device != own) return;
    entries.push_back(line->entry);
    Entry& entry = entries.back();
    if (names_later_rank(entry.config) &&
        cublaslt_version_of(line->driver) != device.cublaslt_version) {
      entry.config[0] = '\0';
    }
  });
  table.add(entries);
  return entries.size();
}

void for_each_shipped(const std::function<void(std::string_view)>& use) {
  for (const std::string_view text : kShippedTexts) {
    if (!text.empty()) use(text);
  }
}

}  // namespace sluice::tune
