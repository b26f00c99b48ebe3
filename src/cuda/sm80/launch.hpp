// SPDX-License-Identifier: Apache-2.0
// The mma.sync GEMM as the host sees it: what the kernels take, and one call for each family.
#pragma once

#include "cuda/sm80/table.hpp"
#include "cuda/tile/rows.hpp"
#include "sluice/plan.hpp"
#include "sluice/types.hpp"

namespace sluice::cuda::sm80 {

// out[i, j] of gate_up = gate(x_i · w0_j + bias0_j, x_i · w1_j + bias1_j), of down = x_i · w0_j +
// bias0_j + residual[i, j].
struct GemmParams {
  tile::Rows x;         // [m, k]
  tile::Rows w[2];      // [n, k]: gate and up, or down alone
  tile::Rows residual;  // [m, n], null base for none
  void* out;            // [m, n]
  long long out_row_bytes;
  int m;
  int n;
  int k;
  int m_tiles;
  int n_tiles;
  Gate gate;
  const void* bias[2];  // null for none
};

struct GemmLaunch {
  Tiling tiling{};
  DType dtype = DType::kBF16;
  int device = 0;
  Stream stream = nullptr;
};

/// Fills the tile counts and enqueues the kernel. kInternal for a tiling that is not in kTilings.
/// gate_up.cu, down.cu.
Status launch_gate_up(const GemmLaunch& launch, GemmParams& params) noexcept;
Status launch_down(const GemmLaunch& launch, GemmParams& params) noexcept;

}  // namespace sluice::cuda::sm80
