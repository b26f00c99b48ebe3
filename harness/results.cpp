// SPDX-License-Identifier: Apache-2.0
#include "harness/results.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "files/replace_file.hpp"

namespace sluice::harness {
namespace {

using nlohmann::ordered_json;

template <class T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json rounded(const ordered_json& value) {
  if (!value.is_number_float()) return value;
  const double number = value;
  if (!std::isfinite(number)) return nullptr;
  const std::string text = fmt::format("{:.{}g}", number, kSignificantDigits);
  double shown = number;  // the largest doubles, rounded up, are none
  // NOTE: strtod reads by the locale of the process, which a library does not choose.
  std::from_chars(text.data(), text.data() + text.size(), shown);
  return std::isfinite(shown) ? shown : number;
}

struct Table {
  ordered_json constants = ordered_json::object();  ///< fields that all records agree on
  ordered_json columns = ordered_json::array();     ///< names of the others, of some with words
  ordered_json rows = ordered_json::array();        ///< their values, an array a record
};

// The words of a column that has few, in the order of their first rows; else nothing.
ordered_json few_words(const std::vector<ordered_json>& values) {
  constexpr std::size_t kLeastRows = 8;
  constexpr std::size_t kRowsAWord = 4;
  ordered_json words = ordered_json::array();
  if (values.size() < kLeastRows) return words;
  for (const ordered_json& value : values) {
    if (value.is_null() || std::ranges::find(words, value) != words.end()) continue;
    if (!value.is_string() || (words.size() + 1) * kRowsAWord > values.size()) {
      return ordered_json::array();
    }
    words.push_back(value);
  }
  return words;
}

// Fields that are named as one of `kept` remain columns.
Table table_of(const ordered_json& records, const ordered_json& kept) {
  ordered_json names = ordered_json::object();
  for (const ordered_json& record : records) {
    for (const auto& field : record.items()) names[field.key()] = nullptr;
  }
  Table table;
  table.rows.get_ref<ordered_json::array_t&>().resize(records.size(), ordered_json::array());
  for (const auto& name : names.items()) {
    std::vector<ordered_json> values;
    for (const ordered_json& record : records) {
      const auto found = record.find(name.key());
      values.push_back(found == record.end() ? ordered_json() : rounded(*found));
    }
    if (!kept.contains(name.key()) &&
        std::ranges::count(values, values.front()) == std::ssize(values)) {
      table.constants[name.key()] = values.front();
      continue;
    }
    const ordered_json words = few_words(values);
    if (words.empty()) {
      table.columns.push_back(name.key());
    } else {
      table.columns.push_back({{name.key(), words}});
      for (ordered_json& value : values) {
        if (!value.is_null()) value = std::ranges::find(words, value) - words.begin();
      }
    }
    for (std::size_t i = 0; i < values.size(); ++i) table.rows[i].push_back(values[i]);
  }
  return table;
}

// In one line. What is no UTF-8, as a file's name need not be, does not throw. Numbers are the
// shortest text that is read back as them, which dump() misses once in a thousand.
std::string line_of(const ordered_json& value) {
  if (value.is_array()) {
    std::vector<std::string> items;
    for (const ordered_json& item : value) items.push_back(line_of(item));
    return fmt::format("[{}]", fmt::join(items, ","));
  }
  if (value.is_number_float()) {
    const std::string text = fmt::format("{}", value.get<double>());
    return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
  }
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// `items` between brackets, a line each.
std::string block(const std::vector<std::string>& items, const std::string& indent,
                  const char* brackets) {
  std::string out(1, brackets[0]);
  for (const std::string& item : items) {
    out += fmt::format("{}\n{}  {}", out.size() > 1 ? "," : "", indent, item);
  }
  if (!items.empty()) out += "\n" + indent;
  return out + brackets[1];
}

std::string object_text(const ordered_json& object, const std::string& indent) {
  std::vector<std::string> members;
  for (const auto& field : object.items()) {
    members.push_back(line_of(field.key()) + ": " + line_of(rounded(field.value())));
  }
  return block(members, indent, "{}");
}

// The members "meta", "columns" and "rows" of an object.
std::vector<std::string> members_of(const ordered_json& meta, const Table& table,
                                    const std::string& indent) {
  std::vector<std::string> rows;
  for (const ordered_json& row : table.rows) rows.push_back(line_of(row));
  return {"\"meta\": " + object_text(meta, indent), "\"columns\": " + line_of(table.columns),
          "\"rows\": " + block(rows, "", "[]")};  // most of a file, so not indented
}

Status unwritable(const std::string& path) {
  return make_error(ErrorCode::kInvalidArgument, "%s: cannot be written: %s", path.c_str(),
                    std::strerror(errno));
}

}  // namespace

ordered_json to_json(const Meta& meta) {
  ordered_json out{{"device", meta.device},
                   {"max_simd", or_null(meta.max_simd)},
                   {"driver", or_null(meta.driver)},
                   {"cuda", or_null(meta.cuda)},
                   {"compiler", meta.compiler},
                   {"commit", meta.commit},
                   {"dirty", meta.dirty},
                   {"fingerprints", meta.fingerprints},
                   {"date", meta.date},
                   {"command", meta.command},
                   {"read_tbps", or_null(meta.read_tbps)},
                   {"copy_tbps", or_null(meta.copy_tbps)},
                   {"gemm_tflops", or_null(meta.gemm_tflops)},
                   {"mma_sync_tflops", or_null(meta.mma_sync_tflops)},
                   {"fma_gflops", or_null(meta.fma_gflops)},
                   {"bf16_gflops", or_null(meta.bf16_gflops)},
                   {"clocks", meta.clocks}};
  if (meta.ratios) {
    out["ratio_shapes"] = meta.ratios->shapes;
    out["ratio_mean"] = meta.ratios->mean;
    out["ratio_p5"] = meta.ratios->p5;
    out["ratio_lowest"] = meta.ratios->lowest;
    out["ratio_lowest_case"] = meta.ratios->lowest_case;
  }
  if (!meta.skipped.empty()) out["skipped"] = meta.skipped;
  return out;
}

bool is_meta_field(std::string_view name) {
  Meta whole;
  whole.ratios.emplace();
  whole.skipped = "?";
  return to_json(whole).contains(name);
}

ordered_json to_json(const Row& row) {
  ordered_json out{{"op", row.op},
                   {"pass", row.pass},
                   {"model", or_null(row.model)},
                   {"m", row.m},
                   {"d", row.d},
                   {"h", row.h},
                   {"dtype", row.dtype},
                   {"gate", row.gate},
                   {"layout", row.layout},
                   {"variant", row.variant},
                   {"us", row.us},
                   {"us_p10", row.us_p10},
                   {"us_p90", row.us_p90},
                   {"tflops", row.tflops},
                   {"gbps", row.gbps},
                   {"roof_fraction", or_null(row.roof_fraction)},
                   {"read_share", or_null(row.read_share)},
                   {"fma_share", or_null(row.fma_share)},
                   {"baseline", or_null(row.baseline)},
                   {"baseline_us", or_null(row.baseline_us)},
                   {"ratio", or_null(row.ratio)},
                   {"extra_bytes", row.extra_bytes},
                   {"peak_bytes", row.peak_bytes},
                   {"rel_err", or_null(row.rel_err)},
                   {"config", row.config},
                   {"case", row.test_case},
                   {"kernels", row.kernels},
                   {"threads", row.threads},
                   {"tp", row.tp},
                   {"baseline_extra_bytes", or_null(row.baseline_extra_bytes)}};
  if (!row.policy.empty()) out["policy"] = row.policy;
  if (row.regret) out["regret"] = *row.regret;
  if (!row.samples.empty()) out["samples"] = row.samples;
  return out;
}

ordered_json to_json(std::span<const Row> rows) {
  ordered_json out = ordered_json::array();
  for (const Row& row : rows) out.push_back(to_json(row));
  return out;
}

std::string results_text(const Meta& meta, const ordered_json& lists) {
  const std::string indent = "  ";
  ordered_json shown = to_json(meta);
  std::vector<std::string> members;
  if (lists.contains("rows")) {
    const Table table = table_of(lists["rows"], shown);
    shown.update(table.constants);
    members = members_of(shown, table, indent);
  } else {
    members = {"\"meta\": " + object_text(shown, indent)};
  }
  for (const auto& list : lists.items()) {
    if (list.key() == "rows") continue;
    const Table table = table_of(list.value(), ordered_json::object());
    const auto inner = members_of(table.constants, table, indent + "  ");
    members.push_back(line_of(list.key()) + ": " + block(inner, indent, "{}"));
  }
  return block(members, "", "{}") + "\n";
}

bool is_stream(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_other(std::filesystem::status(path, ignored));
}

Status write_text(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::cout << text << std::flush;
    if (std::cout) return {};
    return make_error(ErrorCode::kInvalidArgument, "standard output: cannot be written");
  }
  if (!is_stream(path)) return files::replace_file(path, text);
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  return file ? Status{} : unwritable(path);
}

Status update_text(const std::string& path, const std::function<Expected<std::string>()>& text) {
  if (path != "-" && !is_stream(path)) {
    return files::update_file(path.c_str(), [&](std::string_view) { return text(); });
  }
  const auto made = text();
  return made ? write_text(path, *made) : Status(made.error());
}

Status check_writable(const std::string& path, const std::vector<std::string>& inputs) {
  if (path.empty() || path == "-" || is_stream(path)) return {};
  for (const std::string& input : inputs) {
    std::error_code ignored;
    if (!std::filesystem::equivalent(path, input, ignored)) continue;
    return make_error(ErrorCode::kInvalidArgument, "%s: is read, and would be replaced",
                      path.c_str());
  }
  return files::check_replaceable(path);
}

}  // namespace sluice::harness
