// SPDX-License-Identifier: Apache-2.0
// The mma.sync decode kernel as the host sees it: what it takes, and one call for each operator.
#pragma once

#include "cuda/host/workspace.hpp"
#include "cuda/sm80/decode/table.hpp"
#include "cuda/tile/rows.hpp"
#include "sluice/plan.hpp"
#include "sluice/types.hpp"

namespace sluice::cuda::sm80::decode {

// out[i, j] of gate_up = gate(x_i · w0_j + bias0_j, x_i · w1_j + bias1_j), of linear = x_i · w0_j +
// bias0_j + residual[i, j].
struct Params {
  tile::Rows w[2];      // [n, k]: gate and up, or linear's alone
  tile::Rows x;         // [m, k]
  tile::Rows residual;  // [m, n], null base for none
  void* out;            // [m, n]
  long long out_row_bytes;
  int m;
  int n;
  int k;
  int stages;
  int split;
  Shares shares;
  const void* bias[2];  // null for none
  Gate gate;
  float* partials;          // split > 1: partial_bytes() a CTA
  WorkspaceHeader* header;  // split > 1: tickets
};

struct Launch {
  Tiling tiling{};
  DType dtype = DType::kBF16;
  int device = 0;
  Stream stream = nullptr;
};

/// Enqueues the kernel. kInternal for a tiling that is not in kTilings. gate_up.cu, down.cu.
Status launch_gate_up(const Launch& launch, const Params& params) noexcept;
Status launch_down(const Launch& launch, const Params& params) noexcept;

}  // namespace sluice::cuda::sm80::decode
