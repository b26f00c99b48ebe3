// SPDX-License-Identifier: Apache-2.0
// Launches the SIMT kernels that are no GEMM. Grids are capped and walked, so that no dimension of
// a problem meets a limit of the grid.
#include <algorithm>

#include "cuda/simt/elementwise.cuh"

namespace sluice::cuda::simt {
namespace {

// Blocks of 256 threads that fill an SM (2048 threads).
constexpr std::int64_t kBlocksPerSm = 8;

LaunchShape capped(const Device& device, std::int64_t blocks) {
  LaunchShape shape;
  shape.grid.x = static_cast<unsigned>(std::min(blocks, kBlocksPerSm * device.sm_count));
  shape.block.x = kRowThreads;
  return shape;
}

template <bool kRounds>
Status launch_direction(const Device& device, const LaunchShape& shape, const GateParams& params,
                        Stream stream) noexcept {
  if (params.dh.base == nullptr) {
    return launch<&gate_elements<GateForward<kRounds>>>(device.ordinal, shape, stream, params);
  }
  return launch<&gate_elements<GateBackward<kRounds>>>(device.ordinal, shape, stream, params);
}

}  // namespace

Status launch_norm(const Device& device, const NormParams& params, Stream stream) noexcept {
  return launch<&norm_rows>(device.ordinal, capped(device, params.rows), stream, params);
}

Status launch_gate(const Device& device, bool round_gate, const GateParams& params,
                   Stream stream) noexcept {
  const std::int64_t chunks = (params.cols + kRowThreads - 1) / kRowThreads;
  const LaunchShape shape = capped(device, params.rows * chunks);
  return round_gate ? launch_direction<true>(device, shape, params, stream)
                    : launch_direction<false>(device, shape, params, stream);
}

Status launch_column_sum(const Device& device, const ColumnSumParams& params,
                         Stream stream) noexcept {
  const LaunchShape shape = capped(device, (params.cols + 31) / 32);
  return launch<&column_sums>(device.ordinal, shape, stream, params);
}

}  // namespace sluice::cuda::simt
