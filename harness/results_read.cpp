// SPDX-License-Identifier: Apache-2.0
#include "harness/results_read.hpp"

#include <optional>
#include <set>
#include <vector>

#include "harness/file_image.hpp"
#include "harness/results.hpp"
#include "harness/strict_json.hpp"

namespace sluice::harness {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

Error bad(const std::string& name, const char* why) {
  return make_error(ErrorCode::kInvalidArgument, "%s: no results file: %s", name.c_str(), why);
}

bool is_list(const json& file, const char* name) {
  return file.contains(name) && file[name].is_array();
}

struct Column {
  std::string name;
  json words;  // of which the rows hold the places; null where they hold the values
};

std::optional<Column> column_of(const json& column) {
  if (column.is_string()) return Column{column, nullptr};
  if (!column.is_object() || column.size() != 1 || !column.begin()->is_array()) return std::nullopt;
  return Column{column.begin().key(), column.begin().value()};
}

// Nothing where the value is the place of no word.
std::optional<json> value_of(const Column& column, const json& value) {
  if (column.words.is_null() || value.is_null()) return value;
  if (!value.is_number_unsigned() || value >= column.words.size()) return std::nullopt;
  return column.words[value.get<std::size_t>()];
}

}  // namespace

Expected<ReadResults> read_results(std::string_view text, const std::string& name) {
  const auto file = parse_json(text, name);
  if (!file) return file.error();
  if (!file->contains("meta") || !(*file)["meta"].is_object()) return bad(name, "it has no meta");
  if (!is_list(*file, "columns") || !is_list(*file, "rows")) return bad(name, "it has no rows");

  ReadResults out;
  // Fields in the order in which rows are written, whatever that of the file.
  ordered_json shared = to_json(Row{});
  for (const auto& field : (*file)["meta"].items()) {
    (is_meta_field(field.key()) ? out.meta : shared)[field.key()] = field.value();
  }
  std::vector<Column> columns;
  std::set<std::string> names;
  for (const json& given : (*file)["columns"]) {
    auto column = column_of(given);
    if (!column) return bad(name, "a column has no name");
    if (!names.insert(column->name).second) return bad(name, "a column appears twice");
    columns.push_back(*std::move(column));
  }
  for (const json& values : (*file)["rows"]) {
    if (!values.is_array() || values.size() != columns.size()) {
      return bad(name, "a row is not as long as the columns");
    }
    ordered_json row = shared;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const auto value = value_of(columns[i], values[i]);
      if (!value) return bad(name, "a value is none of its column's words");
      row[columns[i].name] = *value;
    }
    out.rows.push_back(std::move(row));
  }
  return out;
}

Expected<ReadResults> read_results_file(const std::string& path) {
  const auto image = read_whole(path);
  if (!image) return image.error();
  return read_results(image->text(), path);
}

}  // namespace sluice::harness
