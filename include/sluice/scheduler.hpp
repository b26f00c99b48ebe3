// SPDX-License-Identifier: Apache-2.0
// Scheduler: choices that were measured on the device at hand, before inference, and kept in a
// file. docs/scheduler.md says how it measures and what it trusts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sluice/device.hpp"
#include "sluice/export.hpp"
#include "sluice/plan.hpp"
#include "sluice/problem.hpp"
#include "sluice/status.hpp"

namespace sluice {

/// What became of one problem in Scheduler::tune().
enum class TuneState : std::uint8_t {
  kMeasured = 0,      ///< timed, and entered in the table
  kKnown = 1,         ///< the table had an entry of this device and build already
  kOneCandidate = 2,  ///< one variant takes it, with one config: nothing to choose
  kNoTime = 3,        ///< TuneOptions::max_seconds were over; the nearest entry may serve it
};

/// One candidate as it was timed, in microseconds a run.
struct TuneTime {
  char variant[kMaxName]{};
  char config[kMaxConfig]{};
  double us = 0;        ///< median; of one that left at once, the faster of two runs
  double us_noise = 0;  ///< standard error of the median
  int samples = 0;      ///< passes; 1 for one that left at once
};

struct TuneOutcome {
  Problem problem{};
  TuneState state = TuneState::kMeasured;
  TuneChoice choice{};  ///< what plan() takes from now on; times where they are known
  double us_noise = 0;  ///< standard error of choice.us, where measured
  bool settled = true;  ///< false where time or samples ended before the noise goal
  /// Every candidate that was timed, what plan() takes without a table first.
  std::vector<TuneTime> times;
};

struct TuneOptions {
  /// For all problems together. Tuning ends at most two samples (passes over the copies) and the
  /// making ready of one shape's copies and one problem's candidates later.
  double max_seconds = 60;
  /// Device memory for operands; 0 for a quarter of the device's. Less than four last-level caches
  /// measures warm operands.
  std::int64_t max_memory_bytes = 0;
  int threads = 0;     ///< as Options::threads: an entry holds for plans of so many threads
  bool again = false;  ///< measure also what the table knows
  /// Called before each problem with how many are done, of how many; may be empty.
  std::function<void(std::size_t done, std::size_t count, const Problem& problem)> progress{};
};

/// What Scheduler::load() took and left. Nothing that is left is ever used.
struct LoadReport {
  std::size_t loaded = 0;   ///< entries of this device, driver and build
  std::size_t foreign = 0;  ///< of another device, driver or build, or ranks of another cuBLASLt
  std::size_t damaged = 0;  ///< incomplete or with a wrong checksum
  /// Why entries were left, one sentence; empty where none were. "PATH: no such file" where there
  /// is none, which is no error: a cache has to begin.
  std::string message;
};

/// Measured choices for one device: a TuneTable to be put in Options::tune.
///
/// find() answers with the entry of this very problem (kTuneTable), the entry of a table shipped
/// with Sluice (kShippedTable), the nearest entry of either (kNearestEntry: the same operator,
/// types and row layout, M within a factor of two and, of 65 to 384 tokens on a GPU, in as many
/// tiles of 32, D and H within 1.25; of two equally near the one that does not ship), or nothing,
/// and plan() then takes the heuristic's. Whatever it answers, plan() checks that the variant takes
/// the problem and offers the config, and passes it over where not.
///
/// Deterministic: the same entries and problem give the same answer. find() allocates nothing,
/// makes no device call and takes less than two microseconds. Thread-safe: tune(), load(), save()
/// and find() may run at once, and find() sees all of a tuned problem or nothing of it.
class SLUICE_EXPORT Scheduler final : public TuneTable {
 public:
  /// Begins with the tables shipped with Sluice that are of this kind of device. Throws
  /// std::bad_alloc.
  explicit Scheduler(const Device& device);
  ~Scheduler() override;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Times all variants and configs that take each problem, and enters the fastest.
  ///
  /// Operands are allocated on the device and freed before it returns; they hold random numbers and
  /// rotate beyond the caches; on a GPU a sample is a graph of several runs on a stream of its own.
  /// Candidates take turns; how long, and what counts as faster: docs/scheduler.md. The choice that
  /// plan() makes without a table stays unless another is faster by more than the noise.
  ///
  /// Returns one outcome a problem, in their order. What was measured before an error stays.
  /// Errors: kInvalidArgument for a problem that validate() refuses, m = 0, or an option out of
  /// range; kUnsupported where no variant takes one; kOutOfMemory where one layer's operands do not
  /// fit; those of run(). One call at a time, others wait.
  [[nodiscard]] Expected<std::vector<TuneOutcome>> tune(std::span<const Problem> problems,
                                                        const TuneOptions& options = {});

  /// Adds the entries of a file that save() wrote which are of this device, driver and build; newer
  /// ones of the same problem replace older. Errors: kInvalidArgument where the file cannot be read
  /// or does not begin with the header of this version; then nothing is added.
  [[nodiscard]] Expected<LoadReport> load(const char* path);

  /// Merges entries into a file, or makes it: those that tune() measured replace the file's of the
  /// same problem, those that were loaded join where it has none, and all others stay. Safe under
  /// concurrent writers, threads and processes: the file is replaced as a whole (written beside it
  /// and renamed) under a lock on PATH.lock, which is removed again. Readers see the old file or
  /// the new one. Errors: kInvalidArgument where the folder cannot be written, the lock is held for
  /// more than a minute, or the file is no tuning cache of this version (it is left as it is);
  /// kOutOfMemory.
  Status save(const char* path) const;

  /// Entries measured and loaded; shipped ones are not counted.
  [[nodiscard]] std::size_t size() const noexcept;

  [[nodiscard]] std::optional<TuneChoice> find(const Problem& problem,
                                               const Device& device) const noexcept override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[nodiscard]] SLUICE_EXPORT const char* to_string(TuneState state) noexcept;

}  // namespace sluice
