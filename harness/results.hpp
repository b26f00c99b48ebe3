// SPDX-License-Identifier: Apache-2.0
// The results file: {"meta": {…}, "rows": […]}. Every bench of the project writes it and the report
// reads it; what each field means is in docs/benchmarking.md.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/ceilings.hpp"
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
  std::string date;                     ///< UTC, ISO 8601
  std::string command;                  ///< paths relative to the repository
  std::optional<double> read_tbps;
  std::optional<double> copy_tbps;
  std::optional<double> gemm_tflops;
  std::optional<double> mma_sync_tflops;
  std::optional<double> fma_gflops;
  std::optional<double> bf16_gflops;
  std::string clocks;
};

/// One shape against one baseline. Absent values are JSON nulls; every key is always there.
struct Row {
  std::string op;                    ///< see row_ops()
  std::string pass;                  ///< see row_passes()
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
  std::optional<std::string> baseline;  ///< see row_baselines()
  std::optional<double> baseline_us;
  std::optional<double> ratio;   ///< baseline_us / us
  std::int64_t extra_bytes = 0;  ///< that the variant needs beyond operands: its workspace
  std::int64_t peak_bytes = 0;   ///< operands (weights of one layer) plus extra_bytes
  std::optional<double>
      rel_err;  ///< of the sampled elements of the worst output: sum |got - fp64| over sum |fp64|
  std::string config;
  int threads = 1;
  int tp = 1;
  /// The same as extra_bytes of the baseline; absent where it is not known.
  std::optional<std::int64_t> baseline_extra_bytes;
  std::string policy;  ///< of mlp_train: "save" or "recompute"; else empty and left out
};

/// The words that the fields `op`, `pass` and `baseline` may hold.
[[nodiscard]] std::span<const char* const> row_ops();
[[nodiscard]] std::span<const char* const> row_passes();
[[nodiscard]] std::span<const char* const> row_baselines();

[[nodiscard]] nlohmann::ordered_json to_json(const Meta& meta);
[[nodiscard]] nlohmann::ordered_json to_json(const Row& row);

/// {"meta": …, "rows": […]}; more top-level keys may be added by the caller.
[[nodiscard]] nlohmann::ordered_json results_json(const Meta& meta, std::span<const Row> rows);

/// Writes text to a file, or to standard output for "-". Errors: kInvalidArgument with the reason.
/// Its folder must exist.
Status write_text(const std::string& path, const std::string& text);

/// Whether write_text() could write `path`, which is created where it is not there and otherwise
/// left as it is; "" and "-" can always be written. Errors: as write_text().
Status check_writable(const std::string& path);

}  // namespace sluice::harness
