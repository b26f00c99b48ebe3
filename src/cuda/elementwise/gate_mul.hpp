// SPDX-License-Identifier: Apache-2.0
// What the streaming gate kernel takes, and its launch as the host sees it.
#pragma once

#include <cstdint>

#include "cuda/elementwise/chunks.hpp"
#include "cuda/host/launch.hpp"
#include "cuda/tile/rows.hpp"
#include "sluice/types.hpp"

namespace sluice::cuda::elementwise {

/// h from g and u; with `dh` the gradients, and h again where it has a base.
struct GateMulParams {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  Gate gate{};
  bool plain_gate = false;  // all parameters but activation and gate multiplier are the default
  tile::RowMajor g;
  tile::RowMajor u;
  tile::RowMajor dh;
  tile::RowMajor h;
  tile::RowMajor dg;
  tile::RowMajor du;
};

Status launch_gate_mul(const Device& device, const Grid& grid, DType dtype, bool round_gate,
                       const GateMulParams& params, Stream stream) noexcept;

}  // namespace sluice::cuda::elementwise
