// SPDX-License-Identifier: Apache-2.0
// The reader of results files: any text gives rows of whole records that can be written and read
// again, or an error with a message.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "harness/results.hpp"
#include "harness/results_read.hpp"

namespace {

using namespace sluice::harness;

void require(bool holds) {
  if (!holds) std::abort();
}

// Writing takes the square of the number of fields: more values than these are only read.
constexpr std::size_t kMostValues = 10'000;

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto read = read_results(text, "fuzz.json");
  if (!read) {
    require(read.error().text().find("fuzz.json") != std::string_view::npos);
    return 0;
  }
  for (const auto& field : read->meta.items()) require(is_meta_field(field.key()));
  const auto whole = to_json(Row{});
  std::size_t values = 0;
  for (const auto& row : read->rows) {
    require(row.is_object() && row.size() >= whole.size());
    require(row.size() == read->rows.front().size());
    auto field = row.begin();  // a record's fields come first, in order
    for (const auto& named : whole.items()) require(named.key() == (field++).key());
    values += row.size();
  }
  if (values > kMostValues) return 0;
  const auto again = read_results(results_text({}, {{"rows", read->rows}}), "again.json");
  require(again && again->rows.size() == read->rows.size());
  return 0;
}
