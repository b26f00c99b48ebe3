// SPDX-License-Identifier: Apache-2.0
// What linear adds to its sums: a bias and a residual.
#pragma once

#include <cstdint>

#include "cuda/tile/pair.cuh"

namespace sluice::cuda::tile {

// Two rows of a residual as a thread reads them; null where it has no such row.
struct ResidualRows {
  bool any;  // the same in all threads
  const char* at[2];
};

// What is added to kCount chunks of eight columns of a thread's sums, from column `col` of n on:
// the bias's pairs and those of two rows of the residual. All are on their way together, since a
// store may not pass a later load. NOTE: whole words: with a choice between these and halves, ptxas
// branches around each load. So rows are multiples of four bytes apart.
template <class Element, int kCount>
class Addends {
 public:
  __device__ __forceinline__ Addends(const void* bias, const ResidualRows& residual, int col, int n)
      : adds_bias_(bias != nullptr), adds_residual_(residual.any) {
    if (adds_bias_) load(static_cast<const char*>(bias), col, n, bias_);
    if (!adds_residual_) return;
    load(residual.at[0], col, n, residual_[0]);
    load(residual.at[1], col, n, residual_[1]);
  }

  // v + bias + residual of chunk `c` and row `i`.
  [[nodiscard]] __device__ __forceinline__ Pair add(Pair v, int c, int i) const {
    if (adds_bias_) v = sum(v, bias_[c]);
    if (adds_residual_) v = sum(v, residual_[i][c]);
    return v;
  }

 private:
  static __device__ __forceinline__ void load(const char* line, int col, int n,
                                              std::uint32_t (&out)[kCount]) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(line + col * 2LL);
    const int left = line == nullptr ? 0 : n - col;
#pragma unroll
    for (int c = 0; c < kCount; ++c) out[c] = 8 * c < left ? words[4 * c] : 0;
  }
  static __device__ __forceinline__ Pair sum(Pair v, std::uint32_t word) {
    const Pair w = unpack<Element>(word);
    return {v.lo + w.lo, v.hi + w.hi};
  }

  bool adds_bias_;
  bool adds_residual_;
  std::uint32_t bias_[kCount];
  std::uint32_t residual_[2][kCount];
};

}  // namespace sluice::cuda::tile
