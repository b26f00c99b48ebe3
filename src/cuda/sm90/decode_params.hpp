// SPDX-License-Identifier: Apache-2.0
// What the decode kernel takes, and its launch as the host sees it.
#pragma once

#include <cuda.h>

#include "cuda/sm90/decode_config.hpp"
#include "cuda/sm90/decode_schedule.hpp"
#include "cuda/sm90/gemm_params.hpp"
#include "cuda/workspace.hpp"
#include "sluice/plan.hpp"
#include "sluice/types.hpp"

namespace sluice::cuda::sm90 {

/// Rows of a weight matrix as they lie; Layout's row part.
struct WeightRows {
  const char* base;
  long long row_bytes;
  long long block_bytes;
  int block_rows;  // 0: all rows are one block
};

/// A row-major matrix of the kernel's element type; null where the operator has none.
struct RowMajor {
  void* base;
  long long row_bytes;
};

/// The norm. `n` is set where it is a prologue of the launch. Where it is deferred, gate_up reads
/// x, residual and weight by itself; r is stored by gate_up where weights come by boxes, else by
/// the launch of down, which then has x too.
struct DecodeNorm {
  RowMajor x;         // [m, d]
  RowMajor residual;  // [m, d], added to x
  RowMajor r;         // [m, d], the rounded sum
  RowMajor n;         // [m, d], the normalised rows, in the workspace
  const void* weight;
  float weight_offset;
  float eps;
  int r_to_y;  // of down that stores r: y takes it too
};

// What producers need for their first copy lies together at the front: parameters come by cache
// lines too, and the launch waits for each.
struct DecodeParams {
  int m;
  int d;
  int h;
  int weights_static;
  int split;            // of K among the CTAs of a cluster; 1 where they meet at a grid barrier
  int gate_up;          // the launch begins with gate_up
  DecodeShares shares;  // of down; of gate_up where the launch has no down
  PairWalk pair;
  WeightRows w_gate;
  WeightRows w_up;
  WeightRows w_down;
  RowMajor h_out;  // null: no gate_up
  RowMajor y;      // null: no down
  RowMajor x;      // [m, d], or n
  RowMajor h_in;   // [m, h]
  DecodeNorm norm;
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
  int plain_gate;           // math::is_plain(gate)
  WorkspaceHeader* header;  // barriers: one between gate_up and down, one before them for the norm
  CUtensorMap x_residual_map;  // as x_map; of a deferred norm by boxes
};

struct DecodeLaunch {
  DecodeTiling tiling{};
  DType dtype = DType::kBF16;
  int device = 0;
  int ctas = 0;
  bool meets = false;  // all CTAs at a grid barrier: a cooperative launch
  Stream stream = nullptr;
};

/// Enqueues the kernel. kInternal for a tiling that decode_tilings() does not list. decode.cu.
Status launch_decode(const DecodeLaunch& launch, const DecodeParams& params) noexcept;

}  // namespace sluice::cuda::sm90
