// SPDX-License-Identifier: Apache-2.0
// Table: measured choices of one device, and the rules by which one is found for a problem.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "sluice/plan.hpp"
#include "tune/key.hpp"

namespace sluice::tune {

/// What was measured for one problem. Times are of one run.
struct Entry {
  ProblemKey key{};
  char variant[kMaxName]{};
  char config[kMaxConfig]{};
  std::int64_t time_ns = 0;
  std::int64_t noise_ns = 0;    ///< standard error of the median
  std::int64_t untuned_ns = 0;  ///< of what plan() takes without a table
  bool is_loaded = false;       ///< from a cache; else measured by the scheduler that holds it
};

/// How far a nearest entry may lie: within a factor of two in M, of 1.25 in D and in H; of a GPU's
/// problems of 65 to 384 tokens also in as many tiles of 32 tokens, since one tile more is another
/// kernel there: by the choice of 128 tokens gate_up of 136 takes 1.3 times as long as by the
/// heuristic's (8B on an H200).
inline constexpr double kMaxTokenSteps = 1.0;  // log2(2)
inline constexpr std::int64_t kTokensATile = 32;
inline constexpr std::int64_t kFirstTileTokens = 65;
inline constexpr std::int64_t kLastTileTokens = 384;
inline constexpr double kMaxWidthSteps = 0.3219280949;  // log2(1.25)

/// Entries sorted by key. Look-ups allocate nothing.
class Table {
 public:
  /// Adds entries; one with the key of an older one replaces it.
  void add(std::span<const Entry> entries);

  /// The entry of exactly this key, or null.
  [[nodiscard]] const Entry* exact(const ProblemKey& key) const noexcept;

  /// The entry of the same kind nearest to this key, or null where none is near, or nearer than
  /// `closest`, which then becomes its distance.
  ///
  /// The distance is |log2 M/M'| + 4 (|log2 D/D'| + |log2 H/H'|) + 1/8 for each of activation, what
  /// is added, alignment and, at equal widths, layout that differs. Of equals the larger M' is
  /// taken: a kernel's tiles are then not too small.
  [[nodiscard]] const Entry* nearest(const ProblemKey& key, double& closest) const noexcept;
  [[nodiscard]] const Entry* nearest(const ProblemKey& key) const noexcept {
    double any = std::numeric_limits<double>::infinity();
    return nearest(key, any);
  }

  [[nodiscard]] std::span<const Entry> entries() const noexcept { return entries_; }

 private:
  // Neighbours in entries_ that differ in m alone.
  struct Shape {
    std::size_t begin = 0;
    std::size_t end = 0;
    double log2_d = 0;
    double log2_h = 0;
  };
  std::vector<Entry> entries_;
  std::vector<double> log2_m_;  // of each entry
  std::vector<Shape> shapes_;
};

}  // namespace sluice::tune
