// SPDX-License-Identifier: Apache-2.0
// What the decode kernel takes, and its launch as the host sees it.
#pragma once

#include <cuda.h>

#include "cuda/sm90/boxes.hpp"
#include "cuda/sm90/decode/schedule.hpp"
#include "cuda/sm90/decode/table.hpp"
#include "cuda/tile/rows.hpp"
#include "sluice/plan.hpp"
#include "sluice/types.hpp"

namespace sluice::cuda::sm90::decode {

using tile::RowMajor;

/// A deferred norm, of x and what is added to it; gate_up stores their sum.
struct DeferredNorm {
  RowMajor residual;  // [m, d], added to x
  RowMajor r;         // [m, d], the rounded sum
  const void* weight;
  float weight_offset;
  float eps;
};

// What producers need for their first copy lies together at the front: parameters come by cache
// lines too, and the launch waits for each.
struct Params {
  int m;
  int d;
  int h;
  int weights_static;
  int split;    // of K among the CTAs of a cluster
  int gate_up;  // else down
  Shares shares;
  PairWalk pair;
  tile::Rows w_gate;
  tile::Rows w_up;
  tile::Rows w_down;
  RowMajor h_out;  // [m, h]
  RowMajor y;      // [m, d]
  RowMajor x;      // [m, d]
  RowMajor h_in;   // [m, h]
  DeferredNorm norm;
  WeightPrefetch next;
  int up_first;       // the pairs' first rows are up
  CUtensorMap x_map;  // where activations come by boxes: x, 64 columns x m
  CUtensorMap h_map;
  CUtensorMap w_pair_map;  // of tilings with weight boxes: 64 columns of 8 gate and 8 up rows
  CUtensorMap w_down_map;  // 64 columns x 16 rows
  RowMajor residual;       // [m, d]
  const void* b_gate;
  const void* b_up;
  const void* b_down;
  Gate gate;
  int plain_gate;              // math::is_plain(gate)
  CUtensorMap x_residual_map;  // as x_map; of a deferred norm
};

struct Launch {
  Tiling tiling{};
  DType dtype = DType::kBF16;
  int device = 0;
  int ctas = 0;
  Stream stream = nullptr;
};

/// Enqueues the kernel. kInternal for a tiling that kTilings does not list. launch.cu.
Status launch_decode(const Launch& launch, const Params& params) noexcept;

}  // namespace sluice::cuda::sm90::decode
