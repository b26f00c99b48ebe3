// SPDX-License-Identifier: Apache-2.0
// What the Hopper GEMM kernels take, and the tile constants that host and device share.
#pragma once

#include <cuda.h>

#include "cuda/sm90/gemm_config.hpp"
#include "sluice/types.hpp"

namespace sluice::cuda::sm90 {

inline constexpr int kTileK = 64;  // 128 bytes: one swizzle atom
inline constexpr int kThreads = 384;

// The order in which persistent CTAs walk the output: groups of `group` row tiles, columns first.
struct TileOrder {
  int m_tiles;  // of 128 * cluster rows
  int n_tiles;  // of kTileN weight rows
  int group;
  int tiles;
};

// How the copies of the paired weight view step along its groups; see cuda/tensor_map.hpp.
struct PairWalk {
  int rank;
  int groups_a_block;  // 0: the last dimension counts all groups
  int groups_a_copy;
};

struct GemmParams {
  CUtensorMap x;    // [m, k], box 64 x 128
  CUtensorMap w;    // gated: the paired 4-D view of gate and up; else [n, k]
  CUtensorMap out;  // [m, n], box as kOutBoxCols x rows of a store
  PairWalk pair;    // gated only
  TileOrder order;
  int m;
  int n;  // output columns: h for gate_up, d for down
  int k;
  int weights_static;
  int up_first;  // the paired view starts with up
  Gate gate;
  const void* bias0;     // gate's or down's; null for none
  const void* bias1;     // up's
  const void* residual;  // [m, n], output type; null for none
  long long residual_row_bytes;
};

}  // namespace sluice::cuda::sm90
