// SPDX-License-Identifier: Apache-2.0
// What the split-K kernel takes, and its launch as the host sees it.
#pragma once

#include "cuda/sm90/gemm/launch.hpp"

namespace sluice::cuda::sm90::gemm {

struct SplitKParams {
  GemmParams gemm;  // of its order m_tiles alone; its output maps are not used
  OutputRows out;   // h or y
  OutputRows g;     // gate_up, if gemm.save
  OutputRows u;     // as g
  int split;        // CTAs of a cluster; set by the launch
};

/// Sets what the tiling says and enqueues the kernel, programmatically. launch.cu.
Status launch_split_k(const GemmLaunch& launch, GemmKind kind, SplitKParams& params) noexcept;

}  // namespace sluice::cuda::sm90::gemm
