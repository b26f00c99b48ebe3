// SPDX-License-Identifier: Apache-2.0
// parse_weight_map(): any text gives plain file names, or an error with a message.
#include <cstdlib>
#include <string_view>

#include "harness/checkpoint_files.hpp"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto map = sluice::harness::parse_weight_map(text, "fuzz.index.json");
  if (!map) {
    if (map.error().text().empty()) std::abort();
    return 0;
  }
  for (const auto& [tensor, shard] : *map) {
    if (shard.empty() || shard == "." || shard == ".." ||
        shard.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      std::abort();
    }
  }
  return map->empty() ? (std::abort(), 0) : 0;
}
