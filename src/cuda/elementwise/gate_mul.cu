// SPDX-License-Identifier: Apache-2.0
// The instantiations of the streaming gate kernels: three types, forward and gradient, any chunks
// and whole ones.
#include "cuda/elementwise/gate_mul.cuh"

namespace sluice::cuda::elementwise {
namespace {

template <class Cfg>
Status launch_config(const Device& device, const Grid& grid, const GateMulParams& params,
                     Stream stream) noexcept {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
  shape.block = dim3(static_cast<unsigned>(grid.threads));
  if (grid.whole) return launch<&gate_whole_chunks<Cfg>>(device.ordinal, shape, stream, params);
  return launch<&gate_chunks<Cfg>>(device.ordinal, shape, stream, params);
}

template <class Element>
Status launch_typed(const Device& device, const Grid& grid, const GateMulParams& params,
                    Stream stream) noexcept {
  if (params.dh.base == nullptr) {
    return launch_config<GateMulConfig<Element, false>>(device, grid, params, stream);
  }
  return launch_config<GateMulConfig<Element, true>>(device, grid, params, stream);
}

}  // namespace

Status launch_gate_mul(const Device& device, const Grid& grid, DType dtype,
                       const GateMulParams& params, Stream stream) noexcept {
  if (dtype == DType::kBF16) return launch_typed<__nv_bfloat16>(device, grid, params, stream);
  if (dtype == DType::kF16) return launch_typed<__half>(device, grid, params, stream);
  if (dtype == DType::kF32) return launch_typed<float>(device, grid, params, stream);
  return make_error(ErrorCode::kInternal, "cuda.elementwise: no kernel for %s",
                    sluice::to_string(dtype));
}

}  // namespace sluice::cuda::elementwise
