// SPDX-License-Identifier: Apache-2.0
#include "timing/timing.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace sluice::timing {
namespace {

class CpuStopwatch final : public Stopwatch {
 public:
  Expected<std::size_t> prepare(std::vector<Run> runs) override {
    if (runs.empty()) return make_error(ErrorCode::kInvalidArgument, "timer: got an empty list");
    lists_.push_back(std::move(runs));
    return lists_.size() - 1;
  }

  Expected<double> time_us(std::size_t handle) override {
    const auto start = std::chrono::steady_clock::now();
    for (const Run& run : lists_[handle]) SLUICE_TRY(run(nullptr));
    const auto stop = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::micro>(stop - start).count();
  }

 private:
  std::vector<std::vector<Run>> lists_;
};

double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  const double part = at - static_cast<double>(low);
  return sorted[low] + part * (sorted[high] - sorted[low]);
}

}  // namespace

std::unique_ptr<Stopwatch> make_cpu_stopwatch() { return std::make_unique<CpuStopwatch>(); }

Statistics statistics(std::vector<double> samples) {
  Statistics out;
  out.samples = samples.size();
  if (samples.empty()) return out;
  std::sort(samples.begin(), samples.end());
  out.median_us = quantile(samples, 0.5);
  out.p10_us = quantile(samples, 0.1);
  out.p90_us = quantile(samples, 0.9);
  // Of a normal distribution, p90 - p10 is 2.563 deviations and the median's standard error 1.253
  // deviations / sqrt(n).
  const double deviation = (out.p90_us - out.p10_us) / 2.563;
  out.us_noise = 1.253 * deviation / std::sqrt(static_cast<double>(samples.size()));
  return out;
}

bool rotates(const Problem& problem, Operand id) noexcept {
  const bool inference =
      (problem.op == Op::kMlp || problem.op == Op::kGateUp || problem.op == Op::kDown) &&
      !problem.save_g_u;
  if (!inference) return true;
  switch (id) {
    case Operand::kNormWeight:
    case Operand::kWGate:
    case Operand::kWUp:
    case Operand::kWDown:
    case Operand::kBGate:
    case Operand::kBUp:
    case Operand::kBDown:
      return true;
    default:
      return false;
  }
}

std::size_t rotation_copies(std::int64_t bytes, std::int64_t cache_bytes) noexcept {
  const std::int64_t wanted =
      std::min(4 * std::max<std::int64_t>(cache_bytes, 0), kMaxRotationBytes);
  const std::int64_t each = std::max<std::int64_t>(bytes, 1);
  return static_cast<std::size_t>(std::clamp<std::int64_t>((wanted + each - 1) / each, 1, 1024));
}

std::size_t chain_copies(std::int64_t bytes, const Device& device) noexcept {
  const std::size_t cold = rotation_copies(bytes, std::max(device.l2_bytes, device.l3_bytes));
  if (device.backend == Backend::kCpu) return cold;
  constexpr std::size_t kChain = 8;
  const auto fitting = static_cast<std::size_t>(
      std::max<std::int64_t>(device.memory_bytes / 4 / std::max<std::int64_t>(bytes, 1), 1));
  return std::max(cold, std::min(kChain, fitting));
}

std::size_t chain_runs(std::size_t copies, double walk_us, const Device& device) noexcept {
  constexpr std::size_t kLayers = 32;
  constexpr double kLongestUs = 4000;
  if (device.backend == Backend::kCpu || copies == 0 || walk_us <= 0) return copies;
  std::size_t walks = 1;
  while (walks * copies < kLayers && static_cast<double>(walks + 1) * walk_us <= kLongestUs) {
    ++walks;
  }
  return walks * copies;
}

}  // namespace sluice::timing
