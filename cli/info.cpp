// SPDX-License-Identifier: Apache-2.0
// sluice info: what is this build, what devices are there, what can run on them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/cli.hpp"
#include "harness/embedded.hpp"
#include "harness/results.hpp"

namespace sluice::cli {
namespace {

using nlohmann::ordered_json;

std::vector<std::string> simd_names(const Device& device) {
  std::vector<std::string> names;
  for (int i = 0; i < kSimdTargetCount; ++i) {
    if ((device.simd_targets >> i & 1U) != 0) {
      names.emplace_back(to_string(static_cast<SimdTarget>(i)));
    }
  }
  return names;
}

std::string cuda_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Expected<std::vector<Device>> devices(const Context& context) {
  std::vector<Device> list = {cpu_device()};
  SLUICE_TRY(limit_simd(list.front(), context.max_simd.c_str()));
  for (int i = 0; i < cuda_device_count(); ++i) {
    if (const auto device = cuda_device(i)) list.push_back(*device);
  }
  return list;
}

// As NVIDIA writes it: 130100 is 13.1.0.
std::string cublaslt_version(const Device& d) {
  const int version = d.cublaslt_version;
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// What is known of Sluice on such a GPU.
const char* support_of(const Device& d) {
  if (d.arch == Arch::kHopper) return "run and measured";
  if (d.arch == Arch::kNone) return "refused: older than compute capability 7.5";
  return "compiled, never measured";
}

ordered_json describe(const Device& d) {
  ordered_json out{{"backend", to_string(d.backend)}, {"name", d.name}};
  if (d.backend == Backend::kCpu) {
    out["threads"] = d.threads;
    out["simd_targets"] = simd_names(d);
    out["slow_bf16_products"] = d.slow_bf16_products;
    out["l1d_bytes"] = d.l1d_bytes;
    out["l2_bytes"] = d.l2_bytes;
    out["l3_bytes"] = d.l3_bytes;
  } else {
    out["ordinal"] = d.ordinal;
    out["arch"] = to_string(d.arch);
    out["compute_capability"] = d.compute_capability;
    out["support"] = support_of(d);
    out["sm_count"] = d.sm_count;
    out["smem_per_block_bytes"] = d.smem_per_block_bytes;
    out["l2_bytes"] = d.l2_bytes;
    out["cublaslt"] = d.cublaslt_version == 0 ? ordered_json() : ordered_json(cublaslt_version(d));
    out["driver"] = cuda_version(d.driver_version);
    out["runtime"] = cuda_version(d.runtime_version);
  }
  out["memory_bytes"] = d.memory_bytes;
  if (d.backend == Backend::kCuda) out["memory_bytes_per_second"] = d.memory_bytes_per_second;
  out["variants"] = variant_names(d.backend);
  return out;
}

void print_device(const Device& d) {
  if (d.backend == Backend::kCpu) {
    const auto bf16 = static_cast<unsigned>(SimdTarget::kAvx512Bf16);
    const bool has_bf16 = (d.simd_targets >> bf16 & 1U) != 0;
    fmt::print("cpu     {}\n", d.name);
    fmt::print("        {} threads, SIMD {}{}; L1d {}, L2 {}, L3 {}; memory {}\n", d.threads,
               fmt::join(simd_names(d), " "),
               has_bf16 && d.slow_bf16_products ? " (whose products are slow)" : "",
               human_bytes(static_cast<double>(d.l1d_bytes)),
               human_bytes(static_cast<double>(d.l2_bytes)),
               human_bytes(static_cast<double>(d.l3_bytes)),
               human_bytes(static_cast<double>(d.memory_bytes)));
  } else {
    fmt::print("cuda:{}  {}\n", d.ordinal, d.name);
    fmt::print(
        "        {} (sm_{}), {}; {} SMs, {} shared memory a block; L2 {}; memory {}, {} GB/s; "
        "driver {}, runtime {}; cuBLASLt {}\n",
        to_string(d.arch), d.compute_capability, support_of(d), d.sm_count,
        human_bytes(d.smem_per_block_bytes), human_bytes(static_cast<double>(d.l2_bytes)),
        human_bytes(static_cast<double>(d.memory_bytes)), d.memory_bytes_per_second / 1'000'000'000,
        cuda_version(d.driver_version), cuda_version(d.runtime_version),
        d.cublaslt_version == 0 ? "not used" : cublaslt_version(d));
  }
  fmt::print("        variants, best first: {}\n", fmt::join(variant_names(d.backend), ", "));
}

}  // namespace

void add_info(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand("info", "Build, devices, SIMD targets and variants");
  const auto json = std::make_shared<std::string>();
  add_max_simd_option(*verb, context);
  verb->add_option("--json", *json, "Write JSON to this file, - for standard output")
      ->check(named());
  verb->callback([json, &context] {
    const harness::BuildInfo build = harness::build_info();
    const auto found = devices(context);
    if (!found) {
      context.exit_code = fail(found.error());
      return;
    }
    const std::vector<Device>& list = *found;
    if (!json->empty()) {
      ordered_json out{{"version", SLUICE_VERSION},       {"commit", harness::build_commit()},
                       {"dirty", harness::build_dirty()}, {"compiler", build.compiler},
                       {"build_type", build.build_type},  {"cuda", build.cuda}};
      for (const Device& device : list) out["devices"].push_back(describe(device));
      const Status written = harness::write_text(*json, out.dump(2) + "\n");
      context.exit_code = written ? kOk : fail(written.error());
      return;
    }
    fmt::print("sluice  {} ({}, {}, {}, {})\n", SLUICE_VERSION,
               std::string(harness::build_commit()).substr(0, 12), build.compiler, build.build_type,
               build.cuda ? "with CUDA" : "without CUDA");
    for (const Device& device : list) print_device(device);
  });
}

}  // namespace sluice::cli
