// SPDX-License-Identifier: Apache-2.0
// The results file: {"meta": {…}, "columns": […], "rows": [[…], …]}. Every bench of the project
// writes it and the Python package (sluice.results) reads it; docs/benchmarking.md describes the
// form and says what each field means.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/ceilings.hpp"
#include "harness/summary.hpp"
#include "sluice/status.hpp"

namespace sluice::harness {

/// Where the numbers come from. No host names, no absolute paths.
struct Meta {
  std::string device;                   ///< as the CPU or driver names itself
  std::optional<std::string> max_simd;  ///< the SIMD target that the CPU was held to, if it was
  std::optional<std::string> driver;    ///< GPU driver's CUDA version, e.g. "13.0"
  std::optional<std::string> cuda;      ///< CUDA runtime in the library
  std::string compiler;                 ///< of the program, e.g. "GNU 12.2.0"
  std::string commit;                   ///< of the sources, or "unknown"
  bool dirty = false;                   ///< tracked files differed from the commit
  std::string fingerprints;             ///< of the build's kernels, see build_fingerprints()
  std::string date;                     ///< UTC, ISO 8601
  std::string command;                  ///< paths relative to the repository
  std::optional<double> read_tbps;
  std::optional<double> copy_tbps;
  std::optional<double> gemm_tflops;
  std::optional<double> mma_sync_tflops;
  std::optional<double> fma_gflops;
  std::optional<double> bf16_gflops;
  std::string clocks;
  std::optional<RatioSummary> ratios;  ///< of all rows together; left out where there is none
  std::string skipped;  ///< cases that were too large for the device, by spaces; left out if empty
};

/// One shape against one baseline. Absent values are JSON nulls; every key is always there.
struct Row {
  std::string op;    ///< to_string() of an operator, or what a script times: "mlp_train", "e2e"
  std::string pass;  ///< "fwd", "bwd", "full", "decode" or "prefill"
  std::optional<std::string> model;  ///< preset or checkpoint
  std::int64_t m = 0;
  std::int64_t d = 0;
  std::int64_t h = 0;
  std::string dtype;   ///< "bf16", or "x/w/y" where they differ
  std::string gate;    ///< as the problem grammar spells it
  std::string layout;  ///< "separate", "concat", "interleaved1", …
  std::string variant;
  double us = 0;  ///< median of one run
  double us_p10 = 0;
  double us_p90 = 0;
  double tflops = 0;
  double gbps = 0;  ///< bytes that must move, over us
  std::optional<double> roof_fraction;
  std::optional<double> read_share;     ///< of the read ceiling, by paired samples; CPU
  std::optional<double> fma_share;      ///< of the fp32 FMA peak, likewise
  std::optional<std::string> baseline;  ///< Baseline::name()
  std::optional<double> baseline_us;
  std::optional<double> ratio;   ///< baseline_us / us
  std::int64_t extra_bytes = 0;  ///< that the variant needs beyond operands: its workspace
  std::int64_t peak_bytes = 0;   ///< operands (weights of one layer) plus extra_bytes
  std::optional<double>
      rel_err;  ///< of the sampled elements of the worst output: sum |got - fp64| over sum |fp64|
  std::string config;
  std::string test_case;  ///< as format_case() writes it: what `plan` was asked; field "case"
  std::string kernels;    ///< of its steps, each once, by commas
  int threads = 1;
  int tp = 1;
  /// The same as extra_bytes of the baseline; absent where it is not known.
  std::optional<std::int64_t> baseline_extra_bytes;
  std::string policy;  ///< of mlp_train: "save" or "recompute"; else empty and left out
  /// Time of the choice over that of the best config, less one; left out where not measured.
  std::optional<double> regret;
  std::string samples;  ///< Regret::samples, where they were asked for; else left out
};

/// Measured numbers are written with so many significant digits; whole ones are exact.
inline constexpr int kSignificantDigits = 4;
/// The most by which that changes a number, relative to it: half of the last digit of 1.000.
inline constexpr double kRounding = 0.5e-3;

[[nodiscard]] nlohmann::ordered_json to_json(const Meta& meta);
/// Whether a member of "meta" describes the run; any other belongs to all rows.
[[nodiscard]] bool is_meta_field(std::string_view name);
[[nodiscard]] nlohmann::ordered_json to_json(const Row& row);
[[nodiscard]] nlohmann::ordered_json to_json(std::span<const Row> rows);

/// The text of a results file. `lists` are arrays of flat objects by name: "rows", "checks",
/// "memory". A field that an object lacks is null there.
[[nodiscard]] std::string results_text(const Meta& meta, const nlohmann::ordered_json& lists);

/// Writes text to standard output for "-", else to a file as files::replace_file() does; devices
/// and pipes are written as they are. Errors: kInvalidArgument with the reason.
Status write_text(const std::string& path, const std::string& text);

/// Whether a path leads to a device or a pipe, which cannot be replaced.
[[nodiscard]] bool is_stream(const std::string& path);

/// Writes what `text` makes of the file's content as write_text() does. No other update_text() of
/// that file runs meanwhile. Errors: as write_text() and files::update_file(); those of `text`.
Status update_text(const std::string& path, const std::function<Expected<std::string>()>& text);

/// Whether write_text() could write `path`, which stays as it is; "" and "-" can always be written.
/// Errors: as write_text(); kInvalidArgument where it is one of the files that `inputs` name.
Status check_writable(const std::string& path, const std::vector<std::string>& inputs = {});

}  // namespace sluice::harness
