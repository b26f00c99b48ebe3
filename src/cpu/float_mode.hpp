// SPDX-License-Identifier: Apache-2.0
// Rounding and denormal handling of the calling thread. A caller may have flush-to-zero or another
// rounding mode on; results must not depend on it, nor on which thread computes them.
#pragma once

#include <immintrin.h>

namespace sluice::cpu {

/// MXCSR as a process starts with it: round to nearest even, denormals kept, exceptions masked.
inline constexpr unsigned kDefaultFloatMode = 0x1F80;

/// The default mode for the life of this object; the caller's comes back after it. Threads inherit
/// the mode in which they are started, and the pool's are started inside a launch, in this one.
class DefaultFloatMode {
 public:
  DefaultFloatMode() noexcept : saved_(_mm_getcsr()) { _mm_setcsr(kDefaultFloatMode); }
  ~DefaultFloatMode() { _mm_setcsr(saved_); }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  unsigned saved_;
};

}  // namespace sluice::cpu
