// SPDX-License-Identifier: Apache-2.0
// What the split-K kernel takes, and its launch as the host sees it.
#pragma once

#include "cuda/sm90/gemm/launch.hpp"

namespace sluice::cuda::sm90::gemm {

struct SplitKParams {
  GemmParams gemm;     // of its order m_tiles alone; its output maps are not used
  tile::RowMajor out;  // h or y
  tile::RowMajor g;    // gate_up, if gemm.save
  tile::RowMajor u;    // as g
  int split;           // CTAs of a cluster; set by the launch
};

/// Sets what the tiling says and enqueues the kernel, programmatically. launch.cu.
Status launch_split_k(const GemmLaunch& launch, GemmKind kind, SplitKParams& params) noexcept;

}  // namespace sluice::cuda::sm90::gemm
