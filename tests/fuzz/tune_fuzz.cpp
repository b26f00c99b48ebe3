// SPDX-License-Identifier: Apache-2.0
// The reader of tuning caches: any text gives entries that print as they were read and can be
// looked up, or none.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tune/lines.hpp"

namespace {

using namespace sluice::tune;

// First byte 'r': the rest raw. Else lines without checksums, which are added: a search that has to
// guess them ends there.
std::string text_of(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  if (!bytes.empty() && bytes.front() == 'r') return bytes.substr(1);
  std::string text(kHeader);
  for_each_line(std::string(kHeader) + bytes, [&](std::string_view line) {
    const std::string body = std::string(line) + '\t';
    char sum[24];
    std::snprintf(sum, sizeof(sum), "%016llx\n", static_cast<unsigned long long>(checksum(body)));
    text += body + sum;
  });
  return text;
}

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text = text_of(data, size);
  if (const auto status = check_header(text, "fuzz"); !status) {
    require(!status.error().text().empty());
    return 0;
  }
  std::vector<Entry> entries;
  for_each_line(text, [&](std::string_view line_text) {
    const auto line = parse_line(line_text);
    if (!line) return;
    const std::string printed = print_line(*line);
    // The checksum may be in capitals; everything before it has one spelling.
    const std::size_t body = printed.rfind('\t');
    require(printed.compare(0, body, line_text.substr(0, body)) == 0);
    require(line->entry.key.m >= 1 && line->entry.time_ns >= 1);
    entries.push_back(line->entry);
  });
  Table table;
  table.add(entries);
  for (const Entry& entry : entries) {
    const Entry* exact = table.exact(entry.key);
    require(exact != nullptr && exact->key == entry.key);
    require(table.nearest(entry.key) != nullptr);
    ProblemKey more = entry.key;
    ++more.threads;
    static_cast<void>(table.nearest(more));
  }
  return 0;
}
