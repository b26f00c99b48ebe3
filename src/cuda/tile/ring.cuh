// SPDX-License-Identifier: Apache-2.0
// A position in a ring of shared-memory stages that producers fill and consumers empty in the same
// order: stage s, and the parity that a wait on its mbarrier needs.
#pragma once

#include <cstdint>

namespace sluice::cuda::tile {

/// A consumer starts with parity 0 and waits for "full". A producer starts with parity 1, which a
/// new "empty" barrier answers at once: every stage is free on the first pass.
template <int kStages>
struct RingCursor {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }

  /// To step `step` of a consumer that takes part in some of them.
  __device__ __forceinline__ void skip_to(int step) {
    stage = step % kStages;
    parity = (step / kStages) & 1;
  }
};

}  // namespace sluice::cuda::tile
