// SPDX-License-Identifier: Apache-2.0
// Bench: what the tuner needs of a device. Tests put one with a clock of their own in its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "sluice/plan.hpp"
#include "sluice/status.hpp"
#include "timing/arena.hpp"

namespace sluice::tune {

class Bench {
 public:
  virtual ~Bench() = default;
  Bench() = default;
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  /// Makes operands for problems that differ from `largest` in a smaller m alone, in as many copies
  /// of what timing::rotates() as a cold pass walks; those of the set-up before are freed. Errors:
  /// kOutOfMemory, kDevice.
  virtual Status set_up(const Problem& largest) = 0;

  /// Makes plans ready to be timed, on the operands of set_up(); those before are forgotten.
  /// Errors: those of run(), kOutOfMemory, kDevice.
  virtual Status prepare(std::span<const Plan> plans) = 0;

  /// Microseconds of one pass of plan `index`: a run on each copy. Errors: those of run(), kDevice.
  virtual Expected<double> pass_us(std::size_t index) = 0;

  /// Runs of a pass.
  [[nodiscard]] virtual std::size_t copies() const = 0;

  /// A steady clock.
  [[nodiscard]] virtual double seconds() const = 0;
};

/// A bench whose operands lie in an arena of `device`. `max_bytes` as
/// TuneOptions::max_memory_bytes.
[[nodiscard]] std::unique_ptr<Bench> make_bench(const Device& device,
                                                std::unique_ptr<timing::Arena> arena,
                                                std::int64_t max_bytes);

/// A bench on a device, in an arena of its own. Errors: kDevice; kUnsupported for a GPU in a build
/// without CUDA.
[[nodiscard]] Expected<std::unique_ptr<Bench>> open_bench(const Device& device,
                                                          std::int64_t max_bytes);

}  // namespace sluice::tune
