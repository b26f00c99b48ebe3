// SPDX-License-Identifier: Apache-2.0
// mlp_grad on Hopper: the order of its launches, its workspace, and what it takes beyond
// gate_up_grad.
#pragma once

#include "core/variant.hpp"
#include "cuda/sm90/products.hpp"

namespace sluice::cuda::sm90 {

/// Why the products of the backward pass cannot walk the operands; nothing where they can.
[[nodiscard]] detail::Reason mlp_grad_refusal(const Problem& problem) noexcept;

[[nodiscard]] std::size_t mlp_grad_payload_bytes(const Problem& problem) noexcept;

/// g and u anew from x with `recompute`, to where dg and du will lie; dg, du and h; then what has a
/// pointer: dx, the weights' gradients, the biases' gradients. `weight_grad` is the tiling of the
/// weights' gradients, as far as cuBLASLt does not take them; dx has the best of its own shape.
Status mlp_grad(const Call& call, const Tiling& gate_up_grad, const Tiling& weight_grad,
                void* payload) noexcept;

}  // namespace sluice::cuda::sm90
