// SPDX-License-Identifier: Apache-2.0
// The instantiations of the streaming gate kernels: three types, forward and gradient, any chunks
// and whole ones; of the 16-bit types also with round_gate, which changes nothing in fp32.
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

template <class Element, class Round = math::Unrounded>
Status launch_typed(const Device& device, const Grid& grid, const GateMulParams& params,
                    Stream stream) noexcept {
  if (params.dh.base == nullptr) {
    return launch_config<GateMulConfig<Element, false, Round>>(device, grid, params, stream);
  }
  return launch_config<GateMulConfig<Element, true, Round>>(device, grid, params, stream);
}

template <class Element>
Status launch_16_bits(const Device& device, const Grid& grid, bool round_gate,
                      const GateMulParams& params, Stream stream) noexcept {
  return round_gate ? launch_typed<Element, Rounded<Element>>(device, grid, params, stream)
                    : launch_typed<Element>(device, grid, params, stream);
}

}  // namespace

Status launch_gate_mul(const Device& device, const Grid& grid, DType dtype, bool round_gate,
                       const GateMulParams& params, Stream stream) noexcept {
  if (dtype == DType::kBF16) {
    return launch_16_bits<__nv_bfloat16>(device, grid, round_gate, params, stream);
  }
  if (dtype == DType::kF16) {
    return launch_16_bits<__half>(device, grid, round_gate, params, stream);
  }
  if (dtype == DType::kF32) return launch_typed<float>(device, grid, params, stream);
  return make_error(ErrorCode::kInternal, "cuda.elementwise: no kernel for %s",
                    sluice::to_string(dtype));
}

}  // namespace sluice::cuda::elementwise
