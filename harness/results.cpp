// SPDX-License-Identifier: Apache-2.0
#include "harness/results.hpp"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>

namespace sluice::harness {
namespace {

using nlohmann::ordered_json;

template <class T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

constexpr const char* kOps[] = {"gate_up",       "down",         "mlp",       "gate_mul",
                                "gate_mul_grad", "gate_up_grad", "mlp_train", "e2e"};
constexpr const char* kPasses[] = {"fwd", "bwd", "full", "decode", "prefill"};
constexpr const char* kBaselines[] = {
    "cublaslt+act", "cublaslt_gemm", "cublaslt_chain", "own_unfused",   "quack",  "liger",
    "liger_tiled",  "triton",        "torch_eager",    "torch_compile", "onednn", "openblas",
    "ggml",         "hf_eager",      "vllm",           "sglang"};

Status unwritable(const std::string& path) {
  return make_error(ErrorCode::kInvalidArgument, "%s: cannot be written: %s", path.c_str(),
                    std::strerror(errno));
}

}  // namespace

std::span<const char* const> row_ops() { return kOps; }
std::span<const char* const> row_passes() { return kPasses; }
std::span<const char* const> row_baselines() { return kBaselines; }

ordered_json to_json(const Meta& meta) {
  return {{"device", meta.device},
          {"max_simd", or_null(meta.max_simd)},
          {"driver", or_null(meta.driver)},
          {"cuda", or_null(meta.cuda)},
          {"compiler", meta.compiler},
          {"commit", meta.commit},
          {"dirty", meta.dirty},
          {"date", meta.date},
          {"command", meta.command},
          {"read_tbps", or_null(meta.read_tbps)},
          {"copy_tbps", or_null(meta.copy_tbps)},
          {"gemm_tflops", or_null(meta.gemm_tflops)},
          {"mma_sync_tflops", or_null(meta.mma_sync_tflops)},
          {"fma_gflops", or_null(meta.fma_gflops)},
          {"bf16_gflops", or_null(meta.bf16_gflops)},
          {"clocks", meta.clocks}};
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
                   {"threads", row.threads},
                   {"tp", row.tp},
                   {"baseline_extra_bytes", or_null(row.baseline_extra_bytes)}};
  if (!row.policy.empty()) out["policy"] = row.policy;
  return out;
}

ordered_json results_json(const Meta& meta, std::span<const Row> rows) {
  ordered_json out{{"meta", to_json(meta)}, {"rows", ordered_json::array()}};
  for (const Row& row : rows) out["rows"].push_back(to_json(row));
  return out;
}

Status write_text(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::cout << text << std::flush;
    if (std::cout) return {};
    return make_error(ErrorCode::kInvalidArgument, "standard output: cannot be written");
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  return file ? Status{} : unwritable(path);
}

Status check_writable(const std::string& path) {
  if (path.empty() || path == "-") return {};
  return std::ofstream(path, std::ios::binary | std::ios::app) ? Status{} : unwritable(path);
}

}  // namespace sluice::harness
