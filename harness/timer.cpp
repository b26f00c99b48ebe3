// SPDX-License-Identifier: Apache-2.0
#include "harness/timer.hpp"

#include <algorithm>

#include "harness/rig.hpp"
#if defined(SLUICE_WITH_CUDA)
#include "cuda/host/stopwatch.hpp"
#endif

namespace sluice::harness {
namespace {

// One candidate under way.
struct Lane {
  std::size_t handle = 0;
  double runs = 1;
  std::vector<double> samples;  // microseconds a run
  double total_us = 0;
  bool reference = false;
};

// Below three samples there is no median to speak of: the time cap waits for them.
constexpr std::size_t kMinRounds = 3;

bool settled(const Lane& lane, const TimerOptions& options) {
  if (lane.reference) return true;
  if (lane.samples.size() < options.min_samples || lane.total_us < options.min_total_us) {
    return false;
  }
  const timing::Statistics t = timing::statistics(lane.samples);
  return t.us_noise <= options.noise * t.median_us;
}

}  // namespace

Expected<std::unique_ptr<Stopwatch>> make_stopwatch(Rig& rig) {
  if (rig.device().backend == Backend::kCpu) return timing::make_cpu_stopwatch();
#if defined(SLUICE_WITH_CUDA)
  return cuda::make_stopwatch(rig.device().ordinal, rig.stream());
#else
  return make_error(ErrorCode::kUnsupported, "timer: this Sluice was built without CUDA");
#endif
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
    lanes.push_back(
        {*handle, static_cast<double>(candidate.runs.size()), {}, 0, candidate.reference});
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
      // ABBA: whoever comes after a long sleep of the workers, or with a warm clock, is another one
      // in every round.
      const std::size_t turn = round % 2 == 0 ? i : lanes.size() - 1 - i;
      Lane& lane = lanes[(turn + round / 2) % lanes.size()];
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
    out.push_back({timing::statistics(lane.samples), candidates[i].name});
    out.back().runs = lane.samples.size() * candidates[i].runs.size();
    out.back().converged = settled(lane, options);
    out.back().samples_us = std::move(lane.samples);
  }
  return out;
}

}  // namespace sluice::harness
