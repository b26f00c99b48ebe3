// SPDX-License-Identifier: Apache-2.0
// Instantiates and launches the SIMT GEMM: two tile shapes, each with one and two right sides.
#include <algorithm>

#include "cuda/simt/gemm.cuh"

namespace sluice::cuda::simt {
namespace {

// CTAs of 256 threads that an SM holds at once (2048 threads at most); further tiles are walked.
constexpr std::int64_t kCtasPerSm = 8;

template <class Cfg>
Status launch_with(const Device& device, const GemmParams& p, Stream stream) {
  const std::int64_t tiles =
      ((p.rows + Cfg::kRows - 1) / Cfg::kRows) * ((p.cols + Cfg::kCols - 1) / Cfg::kCols);
  LaunchShape shape;
  shape.grid.x = static_cast<unsigned>(std::min(tiles, kCtasPerSm * device.sm_count));
  shape.block.x = kThreads;
  return launch<&gemm<Cfg>>(device.ordinal, shape, stream, p);
}

template <int kRows, int kCols, int kDepth>
Status launch_tile(const Device& device, const GemmParams& p, Stream stream) {
  return p.epilogue == Epilogue::kGateUp
             ? launch_with<GemmCfg<kRows, kCols, kDepth, true>>(device, p, stream)
             : launch_with<GemmCfg<kRows, kCols, kDepth, false>>(device, p, stream);
}

}  // namespace

Status launch_gemm(const Device& device, Tile tile, const GemmParams& params,
                   Stream stream) noexcept {
  switch (tile) {
    case Tile::k64x64x16:
      return launch_tile<64, 64, 16>(device, params, stream);
    case Tile::k16x64x32:
      return launch_tile<16, 64, 32>(device, params, stream);
  }
  return make_error(ErrorCode::kInternal, "cuda.simt: unknown tile %d", static_cast<int>(tile));
}

}  // namespace sluice::cuda::simt
