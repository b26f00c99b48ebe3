// SPDX-License-Identifier: Apache-2.0
// What the gated nodes for CUTLASS share: the gates, the order of a pair, the epilogue tile.
#pragma once

#include <cstdint>

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "math/gate.hpp"
#include "sluice/types.hpp"

namespace sluice::cutlass {

/// Which of the two comes first in a pair of columns or chunks.
enum class GateOrder : std::uint8_t { kGateFirst = 0, kUpFirst = 1 };

/// h = sluice::Gate's formula, with all its run-time parameters, for the activation kActivation.
/// Gate::activation itself is not read: the compiler keeps one case of the formula.
template <Activation kActivation>
struct LibraryGate {
  Gate gate;
  CUTLASS_HOST_DEVICE float operator()(float g, float u) const {
    Gate fixed = gate;
    fixed.activation = kActivation;
    return math::gate_mul(fixed, g, u);
  }
};

/// h = act(g) · u: no parameters, and fewer instructions than LibraryGate with its defaults.
template <Activation kActivation>
struct PlainGate {
  CUTLASS_HOST_DEVICE float operator()(float g, float u) const {
    return math::activate(kActivation, g, 1.0F) * u;
  }
};

/// h = tanh(g) · u, by tanh v = 2 · sigmoid(2v) - 1. Absolute error of tanh below 4 ulp of 1.
struct TanhGate {
  CUTLASS_HOST_DEVICE float operator()(float g, float u) const {
    return (2.0F * math::sigmoid(g, 2.0F) - 1.0F) * u;
  }
};

/// h = g · min(max(g + 3, 0), 6) / 6 · u. NaN stays NaN.
struct HardSwishGate {
  CUTLASS_HOST_DEVICE float operator()(float g, float u) const {
    const float v = g + 3.0F;
    const float ramp = v > 6.0F ? 6.0F : (v < 0.0F ? 0.0F : v);
    return g * ramp * (1.0F / 6.0F) * u;
  }
};

/// h = (g < 0 ? slope · g : g) · u.
struct LeakyReluGate {
  float slope = 0.01F;
  CUTLASS_HOST_DEVICE float operator()(float g, float u) const {
    return (g < 0.0F ? slope * g : g) * u;
  }
};

/// h = g: what the GEMM and the stores cost without a gate. For measurements.
struct TakeGate {
  CUTLASS_HOST_DEVICE float operator()(float g, float) const { return g; }
};

/// The epilogue tile that CollectiveBuilder and GatedVisitor must both be given: TileM is 128 for
/// cooperative schedules and 64 for ping-pong ones; 64 columns, or a pair of chunks if that is
/// more.
template <int TileM, int Chunk>
using GatedEpilogueTile =
    cute::Shape<cute::Int<TileM>, cute::Int<(2 * Chunk > 64 ? 2 * Chunk : 64)>>;

}  // namespace sluice::cutlass
