// SPDX-License-Identifier: Apache-2.0
// Results files as their readers see them.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "harness/results.hpp"

namespace sluice::tests {

/// The rows of a table {"meta", "columns", "rows"}, an object each; `shared` are fields of all.
inline nlohmann::json records_of(const nlohmann::json& table, const nlohmann::json& shared) {
  nlohmann::json records = nlohmann::json::array();
  const nlohmann::json& columns = table.at("columns");
  for (const nlohmann::json& row : table.at("rows")) {
    EXPECT_EQ(row.size(), columns.size()) << row;
    nlohmann::json record = shared;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const nlohmann::json& column = columns.at(i);
      if (column.is_string()) {
        record[column.get<std::string>()] = row.at(i);
        continue;
      }
      EXPECT_TRUE(row.at(i).is_null() || row.at(i).is_number_unsigned()) << row;
      const auto words = column.begin();  // of which the row has one's place, or null
      record[words.key()] =
          row.at(i).is_null() ? row.at(i) : words.value().at(row.at(i).get<std::size_t>());
    }
    records.push_back(record);
  }
  return records;
}

/// {"meta": …, "rows": [{…}, …]} and likewise "checks" and "memory", where there are any.
inline nlohmann::json read_results(const std::string& text) {
  const auto file = nlohmann::json::parse(text);
  nlohmann::json out{{"meta", nlohmann::json::object()}};
  nlohmann::json shared = nlohmann::json::object();
  for (const auto& field : file.at("meta").items()) {
    const bool of_run = harness::is_meta_field(field.key());
    (of_run ? out["meta"] : shared)[field.key()] = field.value();
  }
  if (file.contains("rows")) out["rows"] = records_of(file, shared);
  for (const char* list : {"checks", "memory"}) {
    if (file.contains(list)) out[list] = records_of(file[list], file[list].at("meta"));
  }
  return out;
}

}  // namespace sluice::tests
