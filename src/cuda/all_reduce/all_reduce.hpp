// SPDX-License-Identifier: Apache-2.0
// The launch of the sum over ranks.
#pragma once

#include <cstdint>

#include "cuda/all_reduce/protocol.hpp"
#include "cuda/host/launch.hpp"
#include "cuda/tile/rows.hpp"
#include "sluice/types.hpp"

namespace sluice::cuda::all_reduce {

/// one_shot_ll without norm: as many columns a CTA that each thread has 8, which is the least time.
inline constexpr int kCutThreads = 128;

/// CTAs: of tiles, or one_shot_ll of rows, and those that a row is cut over, 1 but for that form.
struct Grid {
  int ctas = 1;
  int cuts = 1;
};

struct AllReduceParams {
  Geometry geometry;
  int rank = 0;
  int vectors = 0;      // of a row: 8 columns each
  tile::RowMajor part;  // this rank's, 16-byte aligned like all rows
  tile::RowMajor residual;
  tile::RowMajor y;
  tile::RowMajor y_norm;
  const void* bias = nullptr;         // [cols]
  const void* norm_weight = nullptr;  // [cols]
  float norm_weight_offset = 0;
  float norm_eps = 0;
  char* peers[kMaxRanks]{};        // [world] buffers
  std::size_t peer_bytes = 0;      // of each
  std::int64_t time_limit_ns = 0;  // 0: none
  bool early = true;               // the next kernel may start while this one waits for peers
};

/// bf16 or fp16. Programmatic on GPUs that know it.
Status launch_all_reduce(const Device& device, Grid grid, DType dtype,
                         const AllReduceParams& params, Stream stream) noexcept;

}  // namespace sluice::cuda::all_reduce
