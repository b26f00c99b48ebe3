// SPDX-License-Identifier: Apache-2.0
#include "sluice/scheduler.hpp"

#include <limits>
#include <mutex>
#include <set>
#include <shared_mutex>

#include "files/replace_file.hpp"
#include "tune/lines.hpp"
#include "tune/shipped.hpp"
#include "tune/tuner.hpp"

namespace sluice {

using tune::Entry;
using tune::Line;
using tune::ProblemKey;
using tune::Table;

struct Scheduler::State {
  explicit State(const Device& of)
      : device(of),
        device_text(tune::device_text(of)),
        driver_text(tune::driver_text(of)),
        build_text(tune::build_text()) {
    tune::for_each_shipped(
        [&](std::string_view text) { tune::add_shipped(text, device, shipped); });
  }

  // Was the line measured on this device, driver and build, and, where cuBLASLt's version decides
  // what its config means, beside that version? Processes of one machine may find different ones.
  [[nodiscard]] bool is_own(const Line& line) const {
    return line.device == device_text && line.build == build_text &&
           tune::without_cublaslt(line.driver) == tune::without_cublaslt(driver_text) &&
           tune::config_holds(line, device);
  }

  const Device device;
  const std::string device_text;
  const std::string driver_text;
  const std::string build_text;
  Table shipped;  // never changes
  Table own;      // measured and loaded; under `mutex`
  mutable std::shared_mutex mutex;
  std::mutex tuning;  // one tune() at a time: two would time each other
};

Scheduler::Scheduler(const Device& device) : state_(std::make_unique<State>(device)) {}
Scheduler::~Scheduler() = default;

Expected<std::vector<TuneOutcome>> Scheduler::tune(std::span<const Problem> problems,
                                                   const TuneOptions& options) {
  const std::lock_guard alone(state_->tuning);
  auto bench = tune::open_bench(state_->device, options.max_memory_bytes);
  if (!bench) return bench.error();
  Table before;
  {
    const std::shared_lock reading(state_->mutex);
    before = state_->own;
  }
  return tune::tune_all(
      problems, state_->device, options, **bench,
      [&](const ProblemKey& key) { return before.exact(key); },
      [&](const Entry& entry) {
        const std::unique_lock writing(state_->mutex);
        state_->own.add({&entry, 1});
      });
}

Expected<LoadReport> Scheduler::load(const char* path) {
  if (path == nullptr) return make_error(ErrorCode::kInvalidArgument, "path: got null");
  const auto text = files::read_file(path);
  if (!text) return text.error();
  LoadReport report;
  if (!*text) {
    report.message = std::string(path) + ": no such file";
    return report;
  }
  SLUICE_TRY(tune::check_header(**text, path));
  std::vector<Entry> entries;
  tune::for_each_line(**text, [&](std::string_view line_text) {
    const auto line = tune::parse_line(line_text);
    if (!line) {
      ++report.damaged;
    } else if (!state_->is_own(*line)) {
      ++report.foreign;
    } else {
      entries.push_back(line->entry);
      entries.back().is_loaded = true;
    }
  });
  report.loaded = entries.size();
  if (report.foreign > 0) {
    report.message =
        std::to_string(report.foreign) + " of another device, driver, cuBLASLt or build";
  }
  if (report.damaged > 0) {
    report.message +=
        (report.message.empty() ? "" : ", ") + std::to_string(report.damaged) + " damaged";
  }
  if (!report.message.empty()) {
    report.message = std::string(path) + ": entries ignored: " + report.message;
  }
  const std::unique_lock writing(state_->mutex);
  state_->own.add(entries);
  return report;
}

Status Scheduler::save(const char* path) const {
  if (path == nullptr) return make_error(ErrorCode::kInvalidArgument, "path: got null");
  Table own;
  {
    const std::shared_lock reading(state_->mutex);
    own = state_->own;
  }
  return files::update_file(path, [&](std::string_view old) -> Expected<std::string> {
    SLUICE_TRY(tune::check_header(old, path));
    std::string text(tune::kHeader);
    std::set<ProblemKey> kept;
    tune::for_each_line(old, [&](std::string_view line_text) {
      const auto line = tune::parse_line(line_text);
      if (!line) return;
      if (state_->is_own(*line)) {
        const Entry* const mine = own.exact(line->entry.key);
        if (mine != nullptr && !mine->is_loaded) return;
        kept.insert(line->entry.key);
      }
      text.append(line_text).push_back('\n');
    });
    for (const Entry& entry : own.entries()) {
      // What was only loaded may be older than what another process measured since.
      if (kept.contains(entry.key)) continue;
      text +=
          tune::print_line({state_->device_text, state_->driver_text, state_->build_text, entry});
    }
    return text;
  });
}

std::size_t Scheduler::size() const noexcept {
  const std::shared_lock reading(state_->mutex);
  return state_->own.entries().size();
}

std::optional<TuneChoice> Scheduler::find(const Problem& problem,
                                          const Device& device) const noexcept {
  if (problem.m < 1 || !tune::same_device(device, state_->device)) return std::nullopt;
  const ProblemKey key = tune::key_of(problem, device);
  const std::shared_lock reading(state_->mutex);
  if (const Entry* entry = state_->own.exact(key)) {
    return tune::choice_of(*entry, ChoiceSource::kTuneTable);
  }
  if (const Entry* entry = state_->shipped.exact(key)) {
    return tune::choice_of(*entry, ChoiceSource::kShippedTable);
  }
  double closest = std::numeric_limits<double>::infinity();
  const Entry* const own = state_->own.nearest(key, closest);
  const Entry* const nearer = state_->shipped.nearest(key, closest);
  const Entry* const entry = nearer != nullptr ? nearer : own;
  if (entry == nullptr) return std::nullopt;
  return tune::choice_of(*entry, ChoiceSource::kNearestEntry);
}

const char* to_string(TuneState state) noexcept {
  switch (state) {
    case TuneState::kMeasured:
      return "measured";
    case TuneState::kKnown:
      return "known";
    case TuneState::kOneCandidate:
      return "one candidate";
    case TuneState::kNoTime:
      return "no time";
  }
  return "invalid state";
}

}  // namespace sluice
