// SPDX-License-Identifier: Apache-2.0
// The small words of the API: data types, operators, gates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "sluice/export.hpp"

namespace sluice {

/// Element type of an operand. kF64 is served by the reference variant only (gradient checks).
enum class DType : std::uint8_t { kBF16 = 0, kF16 = 1, kF32 = 2, kF64 = 3 };
inline constexpr int kDTypeCount = 4;

/// Bytes of one element.
[[nodiscard]] constexpr std::int64_t size_bytes(DType dtype) noexcept {
  return dtype == DType::kF64 ? 8 : dtype == DType::kF32 ? 4 : 2;
}

/// Distance from 1 to the next number of this type; the unit roundoff is half of it.
[[nodiscard]] constexpr double epsilon(DType dtype) noexcept {
  switch (dtype) {
    case DType::kBF16:
      return 0x1p-7;
    case DType::kF16:
      return 0x1p-10;
    case DType::kF32:
      return 0x1p-23;
    case DType::kF64:
      return 0x1p-52;
  }
  return 1.0;
}

/// What to compute. M tokens, D model width, H hidden width; operands and shapes in operands.hpp.
enum class Op : std::uint8_t {
  kGateUp = 0,       ///< h = act(x·Wgᵀ + bg) ⊙ (x·Wuᵀ + bu); optionally stores g and u
  kDown = 1,         ///< y = h·Wdᵀ + bd (+ residual)
  kMlp = 2,          ///< y from x: gate_up, then down
  kGateMul = 3,      ///< h = act(g) ⊙ u
  kGateMulGrad = 4,  ///< dg, du (and h again) from g, u, dh
  kGateUpGrad = 5,   ///< dg, du (and h again) from g, u, dy with dh = dy·Wd
  kMlpGrad = 6,      ///< dx, dw_gate, dw_up, dw_down, db_gate, db_up, db_down from x, g, u, dy
};
inline constexpr int kOpCount = 7;

/// act() of the gate. Every formula is in src/math/gate.hpp, once for all backends.
enum class Activation : std::uint8_t {
  kSilu = 0,      ///< v · sigmoid(alpha · v)
  kGeluTanh = 1,  ///< v/2 · (1 + tanh(sqrt(2/pi) · (v + 0.044715 v³)))
  kGeluErf = 2,   ///< v/2 · (1 + erf(v / sqrt 2))
  kRelu = 3,      ///< max(v, 0)
  kSigmoid = 4,   ///< sigmoid(alpha · v)
  kIdentity = 5,  ///< v
};
inline constexpr int kActivationCount = 6;

/// The gate and its run-time parameters, equal on every path:
///
///   v = min(gate_multiplier · g, limit)
///   w = clamp(u, -limit, limit) + up_offset
///   h = output_multiplier · act(v) · w
///
/// Numerics: evaluated in the accumulator's type (fp32, or fp64 in the reference) and rounded once,
/// to h's type. NaN in g or u gives NaN, also through the clamps. An element on the clamp's
/// boundary (v or |u| equal to limit) counts as inside: its gradient passes.
struct Gate {
  Activation activation = Activation::kSilu;
  float alpha = 1.0F;  ///< finite; only kSilu and kSigmoid may differ from 1
  float limit = std::numeric_limits<float>::infinity();  ///< > 0, or infinity for no clamp
  float up_offset = 0.0F;                                ///< finite
  float gate_multiplier = 1.0F;                          ///< finite
  float output_multiplier = 1.0F;                        ///< finite

  /// The clamped SwiGLU of gpt-oss: silu with alpha 1.702, limit 7, up + 1.
  [[nodiscard]] static constexpr Gate clamped_swiglu() noexcept {
    return {.activation = Activation::kSilu, .alpha = 1.702F, .limit = 7.0F, .up_offset = 1.0F};
  }

  friend bool operator==(const Gate&, const Gate&) = default;
};

/// Names as the command line and results spell them: "bf16", "gate_up", "silu".
[[nodiscard]] SLUICE_EXPORT const char* to_string(DType dtype) noexcept;
[[nodiscard]] SLUICE_EXPORT const char* to_string(Op op) noexcept;
[[nodiscard]] SLUICE_EXPORT const char* to_string(Activation activation) noexcept;

}  // namespace sluice
