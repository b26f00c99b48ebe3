// SPDX-License-Identifier: Apache-2.0
// The gate's run-time switch, taken once outside a loop over elements: inside it the activation is
// a compile-time constant.
#pragma once

#include <type_traits>

#include "math/gate.hpp"

namespace sluice::cuda::tile {

/// Calls f with the activation as a compile-time constant.
template <class F>
__device__ __forceinline__ void with_activation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::kSilu:
      f(std::integral_constant<Activation, Activation::kSilu>{});
      break;
    case Activation::kGeluTanh:
      f(std::integral_constant<Activation, Activation::kGeluTanh>{});
      break;
    case Activation::kGeluErf:
      f(std::integral_constant<Activation, Activation::kGeluErf>{});
      break;
    case Activation::kRelu:
      f(std::integral_constant<Activation, Activation::kRelu>{});
      break;
    case Activation::kSigmoid:
      f(std::integral_constant<Activation, Activation::kSigmoid>{});
      break;
    case Activation::kIdentity:
      f(std::integral_constant<Activation, Activation::kIdentity>{});
      break;
  }
}

/// Every parameter at its default, for the compiler to fold: u + -0.0 is u, u + 0.0 is not.
__device__ __forceinline__ Gate plain_gate(Activation activation) {
  Gate gate;
  gate.activation = activation;
  gate.up_offset = -0.0F;
  return gate;
}

/// Calls f with the gate: its activation constant, and with `plain` (every other parameter is the
/// default, or f sets those that are not) those too, so that clamps and multiplications by 1 cost
/// nothing.
template <class F>
__device__ __forceinline__ void with_gate(const Gate& gate, bool plain, const F& f) {
  with_activation(gate.activation, [&](auto activation) {
    if (plain) {
      f(plain_gate(activation));
    } else {
      Gate general = gate;
      general.activation = activation;
      f(general);
    }
  });
}

/// Calls f with the gate for an epilogue beside running tensor cores, where instructions cost their
/// time: plain silu and plain gelu_tanh, what most models use, as constants; else the activation
/// alone, so that two more branches are compiled and not six.
template <class F>
__device__ __forceinline__ void with_epilogue_gate(const Gate& gate, bool plain, const F& f) {
  if (plain) {
    if (gate.activation == Activation::kSilu) return f(plain_gate(Activation::kSilu));
    if (gate.activation == Activation::kGeluTanh) return f(plain_gate(Activation::kGeluTanh));
  }
  with_activation(gate.activation, [&](auto activation) {
    Gate general = gate;
    general.activation = activation;
    f(general);
  });
}
template <class F>
__device__ __forceinline__ void with_epilogue_gate(const Gate& gate, const F& f) {
  with_epilogue_gate(gate, math::is_plain(gate), f);
}

}  // namespace sluice::cuda::tile
