// SPDX-License-Identifier: Apache-2.0
#include "harness/results_read.hpp"

#include "harness/file_image.hpp"
#include "harness/results.hpp"
#include "harness/strict_json.hpp"

namespace sluice::harness {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

Error bad(const std::string& path, const char* why) {
  return make_error(ErrorCode::kInvalidArgument, "%s: no results file: %s", path.c_str(), why);
}

bool is_list(const json& file, const char* name) {
  return file.contains(name) && file[name].is_array();
}

}  // namespace

Expected<ReadResults> read_results_file(const std::string& path) {
  const auto image = read_whole(path);
  if (!image) return image.error();
  const auto file = parse_json(image->text(), path);
  if (!file) return file.error();
  if (!file->contains("meta") || !(*file)["meta"].is_object()) return bad(path, "it has no meta");
  if (!is_list(*file, "columns") || !is_list(*file, "rows")) return bad(path, "it has no rows");

  ReadResults out;
  // Fields in the order in which rows are written, whatever that of the file.
  ordered_json shared = to_json(Row{});
  for (const auto& field : (*file)["meta"].items()) {
    (is_meta_field(field.key()) ? out.meta : shared)[field.key()] = field.value();
  }
  const json& columns = (*file)["columns"];
  for (const json& values : (*file)["rows"]) {
    if (!values.is_array() || values.size() != columns.size()) {
      return bad(path, "a row is not as long as the columns");
    }
    ordered_json row = shared;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (!columns[i].is_string()) return bad(path, "a column has no name");
      row[columns[i].get<std::string>()] = values[i];
    }
    out.rows.push_back(std::move(row));
  }
  return out;
}

}  // namespace sluice::harness
