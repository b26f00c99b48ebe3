// SPDX-License-Identifier: Apache-2.0
#include "harness/timer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "harness/rig.hpp"
#if defined(SLUICE_WITH_CUDA)
#include "harness/cuda/timer.hpp"
#endif

namespace sluice::harness {
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

// One candidate under way.
struct Lane {
  std::size_t handle = 0;
  double runs = 1;
  std::vector<double> samples;  // microseconds a run
  double total_us = 0;
};

// Below three samples there is no median to speak of: the time cap waits for them.
constexpr std::size_t kMinRounds = 3;

bool settled(const Lane& lane, const TimerOptions& options) {
  if (lane.samples.size() < options.min_samples || lane.total_us < options.min_total_us) {
    return false;
  }
  const Timing t = summarize({}, lane.samples);
  return t.us_noise <= options.noise * t.median_us;
}

}  // namespace

std::unique_ptr<Stopwatch> make_cpu_stopwatch() { return std::make_unique<CpuStopwatch>(); }

Expected<std::unique_ptr<Stopwatch>> make_stopwatch(Rig& rig) {
  if (rig.device().backend == Backend::kCpu) return make_cpu_stopwatch();
#if defined(SLUICE_WITH_CUDA)
  return make_cuda_stopwatch(rig);
#else
  return make_error(ErrorCode::kUnsupported, "timer: this Sluice was built without CUDA");
#endif
}

Timing summarize(std::string name, std::vector<double> samples) {
  Timing out;
  out.name = std::move(name);
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

Expected<std::vector<Timing>> time_interleaved(
    Stopwatch& stopwatch, std::span<const Candidate> candidates, const TimerOptions& options,
    const std::function<void(double, double)>& progress) {
  if (candidates.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "timer: got no candidate");
  }
  std::vector<Lane> lanes;
  for (const Candidate& candidate : candidates) {
    const auto handle = stopwatch.prepare(candidate.runs);
    if (!handle) return handle.error();
    lanes.push_back({*handle, static_cast<double>(candidate.runs.size()), {}, 0});
  }
  double elapsed_us = 0;
  const auto tell = [&] {
    if (progress) progress(elapsed_us, options.max_total_us);
  };
  for (Lane& lane : lanes) {
    tell();
    double warm_us = 0;
    do {
      const auto us = stopwatch.time_us(lane.handle);
      if (!us) return us.error();
      warm_us += *us;
      // Guards against a clock that does not advance on very short lists.
      elapsed_us += std::max(*us, 1e-3);
    } while (warm_us < options.warm_up_us && elapsed_us < options.max_total_us);
  }
  // The warm-up has its own time; the cap is for the samples.
  elapsed_us = 0;
  bool done = false;
  for (std::size_t round = 0; !done; ++round) {
    tell();
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      Lane& lane = lanes[(i + round) % lanes.size()];
      const auto us = stopwatch.time_us(lane.handle);
      if (!us) return us.error();
      lane.samples.push_back(*us / lane.runs);
      lane.total_us += *us;
      elapsed_us += std::max(*us, 1e-3);
    }
    done = (elapsed_us >= options.max_total_us && round + 1 >= kMinRounds) ||
           std::all_of(lanes.begin(), lanes.end(),
                       [&](const Lane& lane) { return settled(lane, options); });
  }
  std::vector<Timing> out;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    Lane& lane = lanes[i];
    out.push_back(summarize(candidates[i].name, lane.samples));
    out.back().runs = lane.samples.size() * candidates[i].runs.size();
    out.back().converged = settled(lane, options);
  }
  return out;
}

std::size_t rotation_copies(std::int64_t bytes, std::int64_t cache_bytes) noexcept {
  const std::int64_t wanted =
      std::min(4 * std::max<std::int64_t>(cache_bytes, 0), kMaxRotationBytes);
  const std::int64_t each = std::max<std::int64_t>(bytes, 1);
  return static_cast<std::size_t>(std::clamp<std::int64_t>((wanted + each - 1) / each, 1, 1024));
}

}  // namespace sluice::harness
