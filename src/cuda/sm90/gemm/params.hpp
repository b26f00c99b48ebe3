// SPDX-License-Identifier: Apache-2.0
// What the Hopper GEMM kernels take, and the tile constants that host and device share.
#pragma once

#include <cuda.h>

#include "cuda/sm90/boxes.hpp"
#include "cuda/sm90/gemm/half_tiles.hpp"
#include "cuda/sm90/gemm/table.hpp"
#include "cuda/tile/rows.hpp"
#include "sluice/types.hpp"

namespace sluice::cuda::sm90::gemm {

inline constexpr int kThreads = 384;

inline constexpr int kLockstepWords = 64;  // so many that two launches at once seldom share one

// The order in which persistent CTAs walk the output: groups of `group` row tiles, columns first;
// whole tiles, then tail ones.
struct TileOrder {
  int m_tiles;  // of 128 * cluster rows
  ColumnCut cut;
  int group;
  int whole;  // m_tiles * cut.whole
  int tiles;  // and those of m_tiles * cut.tail
  HalfTiles halves;
};

// Where a weight's gradient goes, from registers: any row order of the weights.
struct GradRows {
  char* base;
  long long row_stride_bytes;
  long long block_rows;  // 0: one block
  long long block_stride_bytes;
  int fp32;        // else the type of the operands
  int accumulate;  // added to what is there
};

struct GemmParams {
  CUtensorMap x;       // [m, k]: x, h, dy or dg, box 64 x 128; weight grad: [k, m], box 64 x 64
  CUtensorMap x_tail;  // as x, box 64 x the rows of the last row tile, if it is not whole
  CUtensorMap w;       // gate_up: the paired view of gate and up; down: [n, k]; gradients: [k, n]
  CUtensorMap x2;      // input grad: of the second product, du
  CUtensorMap x2_tail;
  CUtensorMap w2;   // as x2, W_up
  CUtensorMap out;  // [m, n]: h, y or dx; this one and the next four by the boxes of out_box()
  CUtensorMap g;    // gate_up writes it if `save`, gate_up_grad reads it
  CUtensorMap u;    // as g
  CUtensorMap dg;   // gate_up_grad
  CUtensorMap du;   // gate_up_grad
  GradRows grad;    // weight grad
  PairWalk pair;    // gate_up only
  TileOrder order;
  int m;
  int n;  // output columns: H for gate_up and gate_up_grad, D for down
  int k;
  int weights_static;
  int up_first;       // the paired view starts with up
  int save;           // gate_up: g and u are stored
  int writes_h;       // gate_up_grad: h is stored
  int lockstep_word;  // by which CTAs keep in step; below 0: they need not
  Gate gate;
  const void* bias0;        // gate's or down's; null for none
  const void* bias1;        // up's
  tile::RowMajor residual;  // [m, n], output type
};

}  // namespace sluice::cuda::sm90::gemm
