// SPDX-License-Identifier: Apache-2.0
// The instantiations of the streaming gate kernel: three types, forward and gradient.
#include "cuda/elementwise/gate_mul.cuh"

namespace sluice::cuda::elementwise {
namespace {

template <class Element>
Status launch_typed(const Device& device, const LaunchShape& shape, const GateMulParams& params,
                    Stream stream) noexcept {
  if (params.dh.base == nullptr) {
    return launch<&gate_chunks<GateMulConfig<Element, false>>>(device.ordinal, shape, stream,
                                                               params);
  }
  return launch<&gate_chunks<GateMulConfig<Element, true>>>(device.ordinal, shape, stream, params);
}

}  // namespace

Status launch_gate_mul(const Device& device, const Grid& grid, DType dtype,
                       const GateMulParams& params, Stream stream) noexcept {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
  shape.block = dim3(static_cast<unsigned>(grid.threads));
  if (dtype == DType::kBF16) return launch_typed<__nv_bfloat16>(device, shape, params, stream);
  if (dtype == DType::kF16) return launch_typed<__half>(device, shape, params, stream);
  if (dtype == DType::kF32) return launch_typed<float>(device, shape, params, stream);
  return make_error(ErrorCode::kInternal, "cuda.elementwise: no kernel for %s",
                    sluice::to_string(dtype));
}

}  // namespace sluice::cuda::elementwise
