// SPDX-License-Identifier: Apache-2.0
#include "cli/findings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "harness/bench.hpp"

namespace sluice::cli {
namespace {

using nlohmann::ordered_json;

std::string tera(const std::optional<double>& value, const char* unit) {
  return value ? fmt::format("{:.4g} {}", *value, unit) : std::string("unknown");
}

void print_ceilings(const harness::Ceilings& c) {
  if (!c.read_tbps) return;  // --no-ceilings
  std::string line = "read " + tera(c.read_tbps, "TB/s") + ", copy " + tera(c.copy_tbps, "TB/s");
  if (c.gemm_tflops) line += ", GEMM " + tera(c.gemm_tflops, "TFLOP/s");
  if (c.mma_sync_tflops) line += ", mma.sync " + tera(c.mma_sync_tflops, "TFLOP/s");
  if (c.fma_gflops) line += ", FMA " + tera(c.fma_gflops, "GFLOP/s");
  if (c.bf16_gflops) line += ", bf16 dots " + tera(c.bf16_gflops, "GFLOP/s");
  fmt::print("ceilings: {}{}{}\n", line, c.clocks.empty() ? "" : "; ", c.clocks);
}

std::string microseconds(double us) {
  return us >= 100 ? fmt::format("{:.0f}", us) : fmt::format("{:.3g}", us);
}

std::string percent(const std::optional<double>& part) {
  return part ? fmt::format("{:.0f}%", *part * 100) : std::string();
}

void print_rows(const std::vector<harness::Row>& rows) {
  Table table;
  for (const char* title : {"op", "model"}) table.column(title, Align::kLeft);
  for (const char* title : {"M", "D", "H"}) table.column(title, Align::kRight);
  for (const char* title : {"dtype", "gate", "variant"}) table.column(title, Align::kLeft);
  for (const char* title : {"us", "p10", "p90", "TFLOP/s", "GB/s", "roof", "of read", "of FMA"}) {
    table.column(title, Align::kRight);
  }
  table.column("baseline", Align::kLeft);
  for (const char* title : {"us", "ratio", "extra", "baseline extra", "rel err", "regret"}) {
    table.column(title, Align::kRight);
  }
  for (const harness::Row& r : rows) {
    table.row(
        {r.op + (r.pass == "fwd" ? "" : " " + r.pass),
         r.model.value_or(""),
         std::to_string(r.m),
         std::to_string(r.d),
         std::to_string(r.h),
         r.dtype,
         r.gate,
         r.variant,
         microseconds(r.us),
         microseconds(r.us_p10),
         microseconds(r.us_p90),
         fmt::format("{:.3g}", r.tflops),
         fmt::format("{:.3g}", r.gbps),
         percent(r.roof_fraction),
         percent(r.read_share),
         percent(r.fma_share),
         r.baseline.value_or("none"),
         r.baseline_us ? microseconds(*r.baseline_us) : "",
         r.ratio ? fmt::format("{:.3f}", *r.ratio) : "",
         human_bytes(static_cast<double>(r.extra_bytes)),
         r.baseline_extra_bytes ? human_bytes(static_cast<double>(*r.baseline_extra_bytes)) : "",
         r.rel_err ? fmt::format("{:.1e}", *r.rel_err) : "",
         r.regret ? fmt::format("{:.1f}%", 100 * *r.regret) : ""});
  }
  table.print();
}

// Where a row is found again: the case, or the model whose shape it is.
std::string name_of(const ordered_json& row) {
  if (row["model"].is_null()) return case_name(row);
  return fmt::format("{} --tp {} --tokens {}", row["model"].get<std::string>(),
                     row["tp"].get<int>(), row["m"].get<std::int64_t>());
}

void print_regret(const ordered_json& rows) {
  double sum = 0;
  double highest = 0;
  std::string where;
  int shapes = 0;
  for (const ordered_json& row : rows) {
    const auto found = row.find("regret");
    if (found == row.end() || !found->is_number()) continue;
    const double regret = *found;
    if (shapes == 0 || regret > highest) highest = regret, where = name_of(row);
    sum += regret;
    ++shapes;
  }
  if (shapes == 0) return;
  fmt::print("regret of the choice, {} shapes: mean {:.1f}%, highest {:.1f}% of {}\n", shapes,
             100 * sum / shapes, 100 * highest, where);
}

}  // namespace

std::string case_name(const harness::Case& c) {
  const Problem& p = c.problem;
  return fmt::format("{}x{}x{}:{}:{}:{}", p.m, p.d, p.h, harness::dtype_text(p),
                     harness::gate_text(p.gate), harness::layout_text(c));
}

std::string case_name(const ordered_json& row) {
  const auto text = [&](const char* field) { return row.at(field).get<std::string>(); };
  const auto number = [&](const char* field) { return row.at(field).get<std::int64_t>(); };
  return fmt::format("{}x{}x{}:{}:{}:{}", number("m"), number("d"), number("h"), text("dtype"),
                     text("gate"), text("layout"));
}

Status Findings::write() {
  const auto text = [&] {
    const ordered_json rows_now = all_rows();
    summarise(rows_now);
    ordered_json lists{{"rows", rows_now}};
    if (!checks.empty()) lists["checks"] = checks;
    return harness::results_text(meta, lists);
  };
  if (!is_part || json == "-") return harness::write_text(json, text());
  return harness::update_text(json, [&]() -> Expected<std::string> {
    SLUICE_TRY(reread(*this));
    return text();
  });
}

Status Findings::add(const std::vector<harness::Row>& more, bool right, bool converged) {
  passed = passed && right;
  unsettled += converged ? 0 : 1;
  rows.insert(rows.end(), more.begin(), more.end());
  const auto now = std::chrono::steady_clock::now();
  // A stream keeps what it was given before: it is written to once.
  if (now - written < std::chrono::seconds(1) || harness::is_stream(json)) return {};
  written = now;
  return keep();
}

Status Findings::keep() {
  if (json.empty() || json == "-") return {};
  std::error_code ignored;
  const bool replaces = is_part || !std::filesystem::exists(json, ignored);
  const bool tells = !rows.empty() || (ended && !skipped.empty() && replaces);
  return tells ? write() : Status{};
}

ordered_json Findings::all_rows() const {
  std::vector<ordered_json> all(kept.begin(), kept.end());
  for (const harness::Row& row : rows) all.push_back(harness::to_json(row));
  if (!kept.empty()) {
    std::ranges::stable_sort(all, {}, [&](const ordered_json& row) {
      const auto place = places.find(case_name(row));
      return place == places.end() ? places.size() : place->second;
    });
  }
  return ordered_json(all);
}

void Findings::summarise(const ordered_json& all) {
  std::vector<std::string> all_skipped = kept_skipped;
  all_skipped.insert(all_skipped.end(), skipped.begin(), skipped.end());
  meta.skipped = fmt::format("{}", fmt::join(all_skipped, " "));
  if (summed_baseline.empty()) return;
  std::vector<harness::CaseRatio> ratios;
  for (const ordered_json& row : all) {
    if (row["baseline"] != summed_baseline || !row["ratio"].is_number()) continue;
    ratios.push_back({name_of(row), row["ratio"].get<double>()});
  }
  meta.ratios = harness::summarise(ratios);
}

void Findings::print(const Device& device, const harness::Ceilings& ceilings) {
  fmt::print("{}: {}\n", to_string(device.backend), device.name);
  print_ceilings(ceilings);
  if (!checks.empty()) {
    double worst = 0;
    for (const auto& check : checks) {
      worst = std::max(worst, check["worst_bound_share"].get<double>());
    }
    fmt::print("checked against fp64: {} layers, worst element at {:.2g} of its bound\n",
               checks.size(), worst);
  }
  print_rows(rows);
  const ordered_json all = all_rows();
  summarise(all);
  if (const auto& r = meta.ratios) {
    fmt::print(
        "{} over sluice, {} shapes: geometric mean {:.3f}, 5th percentile {:.3f}, lowest {:.3f} of "
        "{}\n",
        summed_baseline, r->shapes, r->mean, r->p5, r->lowest, r->lowest_case);
  }
  print_regret(all);
  if (!meta.skipped.empty()) fmt::print("skipped, too large for memory: {}\n", meta.skipped);
}

}  // namespace sluice::cli
