// SPDX-License-Identifier: Apache-2.0
// One thread at a time runs, a CTA after the other: every access is ordered.
#pragma once

#include <cstdint>

namespace sluice::cuda::ptx {

inline std::uint32_t add_release(std::uint32_t* word, std::uint32_t value) {
  const std::uint32_t old = *word;
  *word = old + value;
  return old;
}

}  // namespace sluice::cuda::ptx
