// SPDX-License-Identifier: Apache-2.0
// What the stream-K kernel takes, and its launch as the host sees it.
#pragma once

#include "cuda/host/workspace.hpp"
#include "cuda/sm90/gemm/launch.hpp"

namespace sluice::cuda::sm90::gemm {

struct StreamKParams {
  GemmParams gemm;     // x by boxes of a CTA's share of rows; its output maps are used if swapped
  StreamK schedule;    // set by the launch
  tile::RowMajor out;  // h
  tile::RowMajor g;    // if gemm.save
  tile::RowMajor u;    // as g
  float* partials;     // stream_k_partial_bytes()
  WorkspaceHeader* header;  // tickets
};

/// Fills order and schedule for the tiling and enqueues the kernel, programmatically if it
/// starts_early(). kInternal for a tiling that tilings() does not list. launch.cu.
Status launch_stream_k(const GemmLaunch& launch, StreamKParams& params) noexcept;

}  // namespace sluice::cuda::sm90::gemm
