// SPDX-License-Identifier: Apache-2.0
#include "tune/shipped.hpp"

#include <string>
#include <vector>

#include "tune/lines.hpp"
#include "tune/shipped_tables.hpp"

namespace sluice::tune {

std::size_t add_shipped(std::string_view text, const Device& device, Table& table) {
  if (!check_header(text, "")) return 0;
  const std::string own = device_text(device);
  std::vector<Entry> entries;
  for_each_line(text, [&](std::string_view line_text) {
    const auto line = parse_line(line_text);
    if (!line || line->device != own) return;
    entries.push_back(line->entry);
    Entry& entry = entries.back();
    if (!config_holds(*line, device)) entry.config[0] = '\0';
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
