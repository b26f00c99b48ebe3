// SPDX-License-Identifier: Apache-2.0
// Arena: memory of one device to time kernels on, a stream, and a stopwatch for it. The rest of the
// library allocates no device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "sluice/plan.hpp"
#include "sluice/status.hpp"
#include "timing/timing.hpp"

namespace sluice::timing {

/// One implementation a backend. Copies are complete when they return. One thread at a time.
class Arena {
 public:
  /// Frees all of its memory.
  virtual ~Arena() = default;
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// What kernels are enqueued on; null for a CPU.
  [[nodiscard]] virtual Stream stream() const noexcept = 0;

  /// Bytes that can be allocated now, as far as the system tells.
  [[nodiscard]] virtual std::int64_t free_bytes() const noexcept = 0;

  /// Undefined content, aligned to at least 4096 bytes. Errors: kOutOfMemory.
  [[nodiscard]] virtual Expected<void*> allocate(std::size_t bytes) = 0;
  /// Everything that was allocated.
  virtual void free_all() noexcept = 0;

  /// From memory of the host. Errors: kDevice.
  virtual Status upload(void* to, const void* host, std::size_t bytes) = 0;
  /// Within the device; the two do not overlap. Errors: kDevice.
  virtual Status copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual Status clear(void* to, std::size_t bytes) = 0;

  /// A stopwatch on stream(), which the arena must outlive. Errors: kDevice.
  [[nodiscard]] virtual Expected<std::unique_ptr<Stopwatch>> make_stopwatch() = 0;
};

/// The host's memory, in huge pages where it can be: over small pages the TLB would be timed.
[[nodiscard]] std::unique_ptr<Arena> make_cpu_arena();

}  // namespace sluice::timing
