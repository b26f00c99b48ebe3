// SPDX-License-Identifier: Apache-2.0
// The mma.sync GEMM as the host sees it: what the kernels take, and one call for each family.
#pragma once

#include <cstdint>

#include "cuda/sm80/table.hpp"
#include "cuda/tile/rows.hpp"
#include "sluice/plan.hpp"
#include "sluice/types.hpp"

namespace sluice::cuda::sm80 {

/// What a launch computes, out [m, n] from x and w.
///   kGateUp      h = gate(x · w0ᵀ + bias0, x · w1ᵀ + bias1)
///   kGateUpSave  the same; also stores g and u
///   kDown        y = x · w0ᵀ + bias0 + residual
///   kGateUpGrad  dg, du and h of the gate's derivative at g and u, for dh = x · w0: x is dy
///   kInputGrad   dx = x · w0 + x2 · w1: x is dg, x2 du
///   kWeightGrad  grad = xᵀ · w0: x is dg, du or dy, w0 x or h
enum class GemmKind : std::uint8_t {
  kGateUp,
  kGateUpSave,
  kDown,
  kGateUpGrad,
  kInputGrad,
  kWeightGrad
};

struct GemmParams {
  tile::Rows x;         // [m, k]; of kWeightGrad [k, m]
  tile::Rows w[2];      // [n, k]: gate and up, or down alone; of gradients [k, n]
  tile::Rows residual;  // [m, n], null base for none
  void* out;            // [m, n]; null where kGateUpGrad makes no h
  long long out_row_bytes;
  int m;
  int n;
  int k;
  int m_tiles;
  int n_tiles;
  Gate gate;
  const void* bias[2];  // null for none
  tile::Rows x2;        // laid out as x
  tile::RowMajor g, u;  // [m, n]: of kGateUpSave written, of kGateUpGrad read
  tile::RowMajor dg, du;
  tile::Rows grad;  // [m, n], written
  int grad_fp32;    // or of the operands' type
  int accumulate;   // grad adds to what is there
};

struct GemmLaunch {
  Tiling tiling{};
  DType dtype = DType::kBF16;
  int device = 0;
  Stream stream = nullptr;
};

/// Fills the tile counts and enqueues the kernel. kInternal for a tiling that is not in kTilings.
/// gate_up.cu, gate_up_save.cu, down.cu, grads.cu.
template <GemmKind kKind>
Status launch_gemm(const GemmLaunch& launch, GemmParams& params) noexcept;

}  // namespace sluice::cuda::sm80
