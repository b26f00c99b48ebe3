// SPDX-License-Identifier: Apache-2.0
// The loops behind the ceilings of a CPU: plain loads over memory, memcpy, FMA and bf16 dot
// products in registers, on all threads at once.
#pragma once

#include <cstddef>
#include <memory>

#include "sluice/device.hpp"
#include "sluice/status.hpp"

namespace sluice::harness {

/// One thread at a time. A call returns when all threads are done, which sleep between two calls.
class CpuLoops {
 public:
  /// `threads` 0 for all of the device; `bytes` of memory to walk over, an eighth of the machine's
  /// at most. Errors: kOutOfMemory.
  [[nodiscard]] static Expected<std::unique_ptr<CpuLoops>> make(const Device& device, int threads,
                                                                std::size_t bytes);
  virtual ~CpuLoops() = default;
  CpuLoops() = default;
  CpuLoops(const CpuLoops&) = delete;
  CpuLoops& operator=(const CpuLoops&) = delete;

  /// Bytes that read() reads, and copy() reads and writes together.
  [[nodiscard]] virtual std::size_t bytes() const noexcept = 0;
  /// A stream is a sequence of cache lines; `streams` of them (1 or 4) side by side, as a kernel
  /// reads so many weight rows at once.
  virtual void read(int streams) = 0;
  /// Half of the memory onto the other half.
  virtual void copy() = 0;
  /// Returns the FLOPs done, fp32, of the best SIMD target; `millions` of steps of some 3 ns.
  virtual double fma(int millions) = 0;
  /// The same of bf16 dot products; 0 where the CPU has none.
  virtual double bf16_dots(int millions) = 0;
};

}  // namespace sluice::harness
