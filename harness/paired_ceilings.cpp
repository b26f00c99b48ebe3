// SPDX-License-Identifier: Apache-2.0
#include "harness/paired_ceilings.hpp"

#include <algorithm>

namespace sluice::harness {
namespace {

// Behind the other candidates, in this order.
enum : std::size_t { kOneStream, kFourStreams, kFma, kCount };

constexpr int kMillions = 1;  // 3 to 5 ms

double median(std::vector<double> samples) {
  return timing::statistics(std::move(samples)).median_us;
}

}  // namespace

Expected<PairedCeilings> PairedCeilings::make(const Device& device, int threads, bool quick) {
  // As much as a rotation of weights: some 10 ms.
  auto loops = CpuLoops::make(
      device, threads, static_cast<std::size_t>(timing::kMaxRotationBytes) / (quick ? 4 : 1));
  if (!loops) return loops.error();
  PairedCeilings out(std::move(*loops));
  out.fma_flops_ = out.loops_->fma(kMillions);
  return out;
}

void PairedCeilings::append_to(std::vector<Candidate>& candidates) const {
  const auto append = [&](const char* name, auto loop) {
    Run run = [loops = loops_.get(), loop](Stream) -> Status { return loop(*loops), Status{}; };
    candidates.push_back({.name = name, .runs = {std::move(run)}, .reference = true});
  };
  append("read, one stream", [](CpuLoops& loops) { loops.read(1); });
  append("read, four streams", [](CpuLoops& loops) { loops.read(4); });
  append("fma", [](CpuLoops& loops) { loops.fma(kMillions); });
}

CeilingShares PairedCeilings::shares(std::span<const Timing> timings, double bytes,
                                     double flops) const {
  const std::vector<double>& own = timings.front().samples_us;
  const auto ceilings = timings.last(kCount);
  std::vector<double> read;
  std::vector<double> fma;
  for (std::size_t round = 0; round < own.size(); ++round) {
    const auto us = [&](std::size_t which) { return ceilings[which].samples_us[round]; };
    const double read_us = std::min(us(kOneStream), us(kFourStreams));
    read.push_back(bytes / own[round] * read_us / static_cast<double>(loops_->bytes()));
    fma.push_back(flops / own[round] * us(kFma) / fma_flops_);
  }
  return {median(std::move(read)), median(std::move(fma))};
}

}  // namespace sluice::harness
