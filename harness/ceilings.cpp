// SPDX-License-Identifier: Apache-2.0
// Ceilings of a CPU: the best of several repetitions of each loop, because a ceiling is what the
// machine can do when nothing else disturbs it.
#include "harness/ceilings.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>

#include "harness/cpu_loops.hpp"
#include "harness/rig.hpp"
#if defined(SLUICE_WITH_CUDA)
#include "harness/cuda/ceilings.hpp"
#endif

namespace sluice::harness {
namespace {

using Clock = std::chrono::steady_clock;

// The highest of work() per second, where work() returns how much it did.
template <class Work>
double best_rate(int repetitions, const Work& work) {
  double best = 0;
  for (int r = 0; r < repetitions; ++r) {
    const auto start = Clock::now();
    const auto done = static_cast<double>(work());
    best = std::max(best, done / std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

// The first processor's clock as the kernel reports it; empty where it does not.
std::string cpu_clock() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("cpu MHz", 0) != 0) continue;
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) break;
    return "cpu " + line.substr(colon + 2, line.find('.', colon) - colon - 2) + " MHz";
  }
  return "";
}

Expected<Ceilings> measure_cpu(const Device& device, const CeilingOptions& options) {
  const int repetitions = options.quick ? 3 : 9;
  // Ten times the largest last-level cache that one core reaches (see timing::kMaxRotationBytes).
  const auto made =
      CpuLoops::make(device, options.threads, std::size_t{1} << (options.quick ? 29 : 30));
  if (!made) return made.error();
  CpuLoops& loops = **made;
  const auto read = [&](int streams) {
    return best_rate(repetitions, [&] { return loops.read(streams), loops.bytes(); });
  };
  constexpr int kMillions = 4;  // 10 to 20 ms
  Ceilings out;
  out.read_tbps = std::max(read(1), read(4)) * 1e-12;
  out.copy_tbps = best_rate(repetitions, [&] { return loops.copy(), loops.bytes(); }) * 1e-12;
  out.fma_gflops = best_rate(repetitions, [&] { return loops.fma(kMillions); }) * 1e-9;
  const double dots = best_rate(repetitions, [&] { return loops.bf16_dots(kMillions); });
  if (dots > 0) out.bf16_gflops = dots * 1e-9;
  out.clocks = cpu_clock();
  return out;
}

}  // namespace

Expected<Ceilings> measure_ceilings(Rig& rig, const CeilingOptions& options) {
  if (rig.device().backend == Backend::kCpu) return measure_cpu(rig.device(), options);
#if defined(SLUICE_WITH_CUDA)
  return measure_cuda_ceilings(rig, options);
#else
  return make_error(ErrorCode::kUnsupported, "ceilings: this Sluice was built without CUDA");
#endif
}

std::optional<double> floor_us(const Ceilings& ceilings, double bytes, double flops,
                               Arithmetic arithmetic) {
  std::optional<double> floor;
  const auto at_least = [&](double us) { floor = std::max(floor.value_or(0.0), us); };
  if (ceilings.read_tbps) at_least(bytes / *ceilings.read_tbps * 1e-6);
  const auto cpu_gflops =
      arithmetic == Arithmetic::kBf16Dots ? ceilings.bf16_gflops : ceilings.fma_gflops;
  if (ceilings.gemm_tflops) {
    at_least(flops / *ceilings.gemm_tflops * 1e-6);
  } else if (cpu_gflops) {
    at_least(flops / *cpu_gflops * 1e-3);
  }
  return floor;
}

}  // namespace sluice::harness
