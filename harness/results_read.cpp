// SPDX-License-Identifier: Apache-2.0
#include "harness/results_read.hpp"

#include <set>

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
  const json& columns = (*file)["columns"];
  std::set<std::string> names;
  for (const json& column : columns) {
    if (!column.is_string()) return bad(name, "a column has no name");
    if (!names.insert(column.get<std::string>()).second) return bad(name, "a column appears twice");
  }
  for (const json& values : (*file)["rows"]) {
    if (!values.is_array() || values.size() != columns.size()) {
      return bad(name, "a row is not as long as the columns");
    }
    ordered_json row = shared;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      row[columns[i].get<std::string>()] = values[i];
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
