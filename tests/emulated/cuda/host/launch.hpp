// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "emulator.hpp"
#include "sluice/plan.hpp"

namespace sluice::cuda {

struct LaunchShape {
  dim3 grid{1, 1, 1};
  dim3 block{1, 1, 1};
  std::size_t smem_bytes = 0;
  bool programmatic = false;
  unsigned cluster = 1;
};

template <auto kKernel, class Params>
Status launch(int /*device*/, const LaunchShape& shape, Stream /*stream*/,
              const Params& params) noexcept {
  return emulator::run(shape.grid, shape.block, shape.smem_bytes, [&] { kKernel(params); });
}

}  // namespace sluice::cuda
